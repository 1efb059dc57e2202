"""Files of tiny models with changed contents, and comparisons by bits, for the tests of weights."""

import json

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

FIELDS = (
    "last_hidden_state",
    "logits",
    "pair_logits",
    "start_logits",
    "end_logits",
    "pooler_output",
)


def logits(model) -> list[torch.Tensor]:
    """What a call computes, for comparing bits."""
    out = model(tiny.ids(2, 9))
    return [value for name in FIELDS if (value := getattr(out, name)) is not None]


def same(ours, theirs) -> bool:
    a, b = logits(ours), logits(theirs)
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def hf_logits(model) -> dict:
    with torch.no_grad():
        out = model(input_ids=tiny.ids(2, 9))
    return {name: value for name, value in out.items() if isinstance(value, torch.Tensor)}


@pytest.fixture(name="rewrite")
def rewrite_fixture(tmp_path):
    """A copy of a saved tiny model whose tensors (and config) were changed by functions."""

    def change(family, head=None, tensors=lambda t: t, config=lambda c: c, source=None):
        source = source or tiny.saved(family, head)
        values = json.loads((source / "config.json").read_text())
        changed = tensors(load_file(source / "model.safetensors"))
        save_file(
            {k: v.contiguous().clone() for k, v in changed.items()}, tmp_path / "model.safetensors"
        )
        (tmp_path / "config.json").write_text(json.dumps(config(values)))
        return tmp_path

    return change
