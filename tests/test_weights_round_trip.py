"""Weights: transformers reads our files to the same bits, and back; a save is whole or nothing."""

import json
import os

import pytest
import tiny
import torch
import transformers
from safetensors.torch import load_file
from tiny import one_thread  # noqa: F401
from weight_files import hf_logits, same

import encoder_fast as ef
from encoder_fast import weights
from encoder_fast.weights import sources

EVERY_FILE = [(f, h) for f in tiny.EVERY_TYPE for h in (None, *tiny.HEADS_OF[f])]


@pytest.mark.parametrize("family, head", EVERY_FILE)
def test_C50_transformers_reads_our_files_to_the_same_bits(family, head, tmp_path):
    tiny.our_model(family, head).save_pretrained(tmp_path)
    hf_class = getattr(transformers, tiny.CLASS_PREFIX[family] + tiny.CLASS_SUFFIX[head])
    theirs, report = hf_class.from_pretrained(
        tmp_path, attn_implementation="eager", output_loading_info=True, local_files_only=True
    )
    assert not report["missing_keys"] and not report["mismatched_keys"]
    assert not report["unexpected_keys"]
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [
        hf_class.__name__
    ]
    original = tiny.hf_model(family, head)
    expected = hf_logits(original)
    # Copied into the same storage: torch's products with one column depend on its alignment.
    original.load_state_dict(theirs.state_dict())
    ours = hf_logits(original)
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(ours[name], value), name
    # ... and back, and from ours to ours.
    theirs.save_pretrained(tmp_path / "back")
    for folder in (tmp_path, tmp_path / "back"):
        assert same(ef.load(folder, head), tiny.our_model(family, head))


@pytest.mark.parametrize("head, labels", [("sequence_classification", 3), ("rerank", 1)])
def test_labels_and_dtype_survive_a_round_trip(head, labels, tmp_path):
    values = tiny.hf_config("BE").to_dict()
    model = ef.from_config(values, head, dtype="bfloat16", num_labels=labels)
    model.save_pretrained(tmp_path)
    again = ef.load(tmp_path, head)
    assert (again.dtype, again.config.num_labels) == (torch.bfloat16, labels)
    assert same(again, model)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert theirs.config.num_labels == labels and theirs.dtype == torch.bfloat16


ALBERTS = [
    {
        "num_hidden_layers": 6,
        "num_hidden_groups": groups,
        "inner_group_num": inner,
        "embedding_size": E,
    }
    for groups, inner, E in ((1, 1, 16), (2, 1, 32), (3, 2, 16))
]


@pytest.mark.parametrize(
    "changes", ALBERTS, ids=lambda c: f"{c['num_hidden_groups']}x{c['inner_group_num']}"
)
def test_C52_albert_groups_survive_a_round_trip(changes, tmp_path):
    model = tiny.our_model("AL", "masked_lm", **changes)
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    original = load_file(tiny.saved("AL", "masked_lm", **changes) / "model.safetensors")
    assert stored.keys() == original.keys()
    assert all(torch.equal(stored[name], original[name]) for name in stored)


@pytest.mark.parametrize("family, head", EVERY_FILE)
def test_rename_tables_are_a_bijection(family, head):
    """Each parameter has its own names; together they are exactly those in transformers' file."""
    model = tiny.our_model(family, head)
    table = sources(model, prefixed=head is not None)
    names = [name for source in table.values() for name in source.names]
    assert table.keys() == dict(model.named_parameters()).keys()
    assert len(names) == len(set(names))
    stored = load_file(tiny.saved(family, head) / "model.safetensors")
    assert set(names) == set(stored)
    for parameter, source in table.items():
        parts = model.get_parameter(parameter).chunk(len(source.names))
        for name, part in zip(source.names, parts, strict=True):
            assert torch.equal(part, stored[name]), (parameter, name)


@pytest.mark.parametrize("at", ["write", "rename"])
def test_a_failed_save_leaves_the_old_files(at, tmp_path, monkeypatch):
    tiny.our_model("BE").save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = ef.from_config(tiny.hf_config("BE").to_dict())
    if at == "write":

        def fail(tensors, path, metadata=None):
            path.write_bytes(b"half a file")
            raise OSError("no space left")

        monkeypatch.setattr(weights, "save_file", fail)
    else:
        monkeypatch.setattr(
            os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space left"))
        )
    with pytest.raises(OSError, match="no space"):
        other.save_pretrained(tmp_path)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert same(ef.load(tmp_path), tiny.our_model("BE"))
