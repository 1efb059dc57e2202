"""A speed is printed only for a right answer, on the very workload that is timed.

The oracle is transformers' own fp32 run. A float engine's error may be three times that of
transformers in the same dtype (the law for a whole model), the largest and the root mean square. An
int8 engine has no such peer: the mean cosine of its tokens with the oracle's is at least 0.99.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

LIMIT = 3.0
COSINE = 0.99
FLOOR = 1e-4
"""Of the oracle's RMS: an error below it counts as this much, so that fp32 has something to be
three times of."""


@dataclass(frozen=True)
class Verdict:
    """`reason` is None for a good output; the numbers are None where they could not be taken."""

    reason: str | None
    largest: float | None = None
    rms: float | None = None
    cosine: float | None = None


def pool(hidden_TW: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """The mean over each text: `(B, W)`."""
    return torch.stack([rows.mean(0) for rows in hidden_TW.split(list(lengths))])


def judge(output: Tensor, oracle: Tensor, baseline: Tensor, int8: bool) -> Verdict:
    """Verdict on `output`, all three fp32 `(T, W)`, or `(B, W)` for pooled engines.

    `baseline` is the output of transformers in the dtype of the race.
    """
    if output.shape != oracle.shape:
        return Verdict(f"output has shape {tuple(output.shape)}, not {tuple(oracle.shape)}")
    if not output.isfinite().all():
        return Verdict("output is not finite")
    floor = FLOOR * _rms(oracle)
    ours, theirs = (output - oracle).abs(), (baseline - oracle).abs()
    largest = ((ours.max() + floor) / (theirs.max() + floor)).item()
    rms = ((_rms(ours) + floor) / (_rms(theirs) + floor)).item()
    cosine = torch.nn.functional.cosine_similarity(output, oracle, dim=-1).mean().item()
    reason = None
    if int8 and cosine < COSINE:
        reason = f"mean cosine {cosine:.4f} with fp32, {COSINE} needed"
    elif not int8 and max(largest, rms) > LIMIT:
        reason = f"error {largest:.1f}x (rms {rms:.1f}x) that of the baseline, {LIMIT:g}x allowed"
    return Verdict(reason, largest, rms, cosine)


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()
