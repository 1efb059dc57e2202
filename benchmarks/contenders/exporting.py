"""What engines that convert a model share: one plain forward to convert, and a place to keep it."""

import contextlib
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from encoder_fast.benchmarks.contenders._torch import installed, quiet_transformers
from encoder_fast.benchmarks.engine import Task
from encoder_fast.benchmarks.workloads import Inputs


def why_not(task: Task, packages: tuple[str, ...], dtypes: tuple[str, ...]) -> str | None:
    """The reasons that all of them share; `packages` are import names that pip knows as well."""
    if reason := installed(*packages):
        return reason
    if task.device != "cpu":
        return "runs on the CPU only"
    if task.dtype not in dtypes:
        return f"computes in {' and '.join(dtypes)} only"
    return None


def settings(task: Task) -> dict:
    """The checkpoint's config.json."""
    return json.loads((task.folder / "config.json").read_text(encoding="utf-8"))


def has_types(task: Task) -> bool:
    """Whether the model is given token types; RoBERTa has an embedding of a single type."""
    return settings(task).get("type_vocab_size", 0) > 1


def kept(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, filled by `make(an empty folder)` unless an earlier build or process has done so.

    It appears under its name only when complete.
    """
    if not folder.exists():
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as temporary:
            made = Path(temporary) / "made"
            made.mkdir()
            make(made)
            made.rename(folder)
    return folder


class LastHidden(nn.Module):
    """transformers' model as a function of tensors: `(ids_BS, mask_BS[, types_BS])`, int64.

    Returns the last hidden state `(B, S, W)`. `explicit_positions` gives every text its own row of
    positions: ONNX's RotaryEmbedding wants cosines for each text, transformers makes one row.
    """

    def __init__(self, folder: Path, attention: str, explicit_positions: bool = False):
        super().__init__()
        from transformers import AutoModel

        quiet_transformers()
        self.model = AutoModel.from_pretrained(
            folder, attn_implementation=attention, dtype=torch.float32
        ).eval()
        self.explicit_positions = explicit_positions

    def forward(self, ids_BS: Tensor, mask_BS: Tensor, types_BS: Tensor | None = None) -> Tensor:
        given = {"input_ids": ids_BS, "attention_mask": mask_BS}
        if types_BS is not None:
            given["token_type_ids"] = types_BS
        if self.explicit_positions:
            texts, longest = ids_BS.shape
            given["position_ids"] = torch.arange(longest)[None].expand(texts, -1)
        return self.model(**given).last_hidden_state


NAMES = ("ids", "mask", "types")
"""Of the inputs of a converted model; the last one only where the model has token types."""


def example(typed: bool) -> tuple[Tensor, ...]:
    """Inputs to convert with: two texts, one of them padded, or the mask would be traced away."""
    ids_BS = torch.ones(2, 16, dtype=torch.int64)
    mask_BS = ids_BS.clone()
    mask_BS[1, 9:] = 0
    given = (ids_BS, mask_BS, torch.zeros_like(ids_BS))
    return given if typed else given[:2]


def arrays(inputs: Inputs, typed: bool) -> dict:
    """name -> numpy int64 `(B, S)`, as a converted model takes it."""
    types_BS = torch.zeros_like(inputs.ids_BS) if inputs.types_BS is None else inputs.types_BS
    given = (inputs.ids_BS, inputs.mask_BS, types_BS)[: 3 if typed else 2]
    return {name: x.numpy() for name, x in zip(NAMES, given, strict=False)}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the converters' warnings: every table would begin with pages of them."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
