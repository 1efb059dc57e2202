"""Who is compared: one file for each kind of engine, each with its `CONTENDERS`."""

from encoder_fast.benchmarks.contenders import exported, ours, torch_peers, vllm
from encoder_fast.benchmarks.engine import Contender

BASELINE = "transformers sdpa"
"""What ratios refer to: what people have."""
ALL: tuple[Contender, ...] = (
    *ours.CONTENDERS,
    *torch_peers.CONTENDERS,
    *exported.CONTENDERS,
    *vllm.CONTENDERS,
)
CONTENDERS = {contender.name: contender for contender in ALL}
