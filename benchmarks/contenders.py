"""Who is compared. A contender is a name, a way to build a call, and the reason why it cannot take
part, if any.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

Call = Callable[[Tensor, Tensor], Tensor]
"""Padded ids and mask `(B, S)` -> last hidden state `(B, S, W)`."""


@dataclass(frozen=True)
class Contender:
    """One engine: `build(folder, dtype)` loads the weights of a checkpoint folder and returns a
    `Call`.
    """

    name: str
    build: Callable[[Path, torch.dtype], Call]
    why_not: Callable[[], str | None]


def _encoder_fast(folder: Path, dtype: torch.dtype) -> Call:
    import encoder_fast as ef

    model = ef.load(folder, dtype=dtype, backend="torch")
    return lambda ids, mask: model(ids, mask).last_hidden_state


def _transformers(attention: str) -> Callable[[Path, torch.dtype], Call]:
    def build(folder: Path, dtype: torch.dtype) -> Call:
        from transformers import AutoModel

        options = {"dtype": dtype, "attn_implementation": attention}
        model = AutoModel.from_pretrained(folder, **options).eval()
        return lambda ids, mask: model(ids, attention_mask=mask).last_hidden_state

    return build


def _no_transformers() -> str | None:
    return None if find_spec("transformers") else "transformers is not installed"


BASELINE = "transformers sdpa"
OURS = "encoder_fast torch"
CONTENDERS = {
    c.name: c
    for c in (
        Contender(OURS, _encoder_fast, lambda: None),
        Contender(BASELINE, _transformers("sdpa"), _no_transformers),
        Contender("transformers eager", _transformers("eager"), _no_transformers),
    )
}


def modernbert_base_folder(folder: Path) -> Path:
    """A checkpoint of ModernBERT-base's shape with random weights, written into `folder`."""
    import encoder_fast as ef

    torch.manual_seed(0)
    config = {
        "model_type": "modernbert",
        "vocab_size": 50368,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "pad_token_id": 50283,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
    }
    ef.from_config(config).save_pretrained(folder)
    return folder
