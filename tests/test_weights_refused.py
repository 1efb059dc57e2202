"""Weights: what is wrong, corrupt or hostile is refused in one error that names it."""

import json
import os
import pickle
import shutil

import pytest
import tiny
import torch
from safetensors.torch import load_file
from tiny import one_thread  # noqa: F401
from weight_files import rewrite_fixture, same  # noqa: F401

import encoder_fast as ef
from encoder_fast.weights import resolve_folder


def drop(name):
    return lambda tensors: {k: v for k, v in tensors.items() if k != name}


REFUSED = {
    "missing": (
        drop("encoder.layer.1.output.dense.weight"),
        ["missing", r"layer\.1\.output\.dense\.weight"],
    ),
    "missing table": (drop("embeddings.word_embeddings.weight"), ["missing", "word_embeddings"]),
    "one of three stacked": (
        drop("encoder.layer.0.attention.self.key.bias"),
        ["missing", r"self\.key\.bias"],
    ),
    "unexpected": (
        lambda t: t | {"encoder.layer.7.output.dense.bias": torch.ones(32)},
        ["unexpected", r"layer\.7"],
    ),
    "unexpected beside the layers": (
        lambda t: t | {"adapter.up": torch.ones(2)},
        ["unexpected", r"adapter\.up"],
    ),
    "unexpected under a known module": (
        lambda t: t | {"classifier.lora_A.weight": torch.ones(2, 2)},
        ["unexpected", r"classifier\.lora_A"],
    ),
    "unexpected under the pooler": (
        lambda t: t | {"pooler.junk": torch.ones(2)},
        ["unexpected", r"pooler\.junk"],
    ),
    "misshaped": (
        lambda t: t | {"encoder.layer.0.output.dense.weight": torch.ones(48, 32)},
        [r"layer\.0\.output\.dense\.weight", r"\(48, 32\)", r"\(32, 48\)"],
    ),
    "misshaped table": (
        lambda t: t | {"embeddings.position_embeddings.weight": torch.ones(40, 32)},
        ["position_embeddings", r"\(40, 32\)", r"\(42, 32\)"],
    ),
    "misshaped part": (
        lambda t: t | {"encoder.layer.0.attention.self.key.weight": torch.ones(32, 31)},
        [r"self\.key\.weight", r"\(32, 31\)"],
    ),
    "parts that only add up": (
        lambda t: (
            t
            | {
                "encoder.layer.0.attention.self.query.bias": torch.ones(16),
                "encoder.layer.0.attention.self.key.bias": torch.ones(48),
            }
        ),
        [r"self\.(query|key)\.bias", r"\(16,\)"],
    ),
    "two spellings": (
        lambda t: t | {"embeddings.LayerNorm.gamma": torch.ones(32)},
        ["gamma", "same parameter"],
    ),
    "integer weights": (
        lambda t: t | {"embeddings.LayerNorm.weight": torch.ones(32).long()},
        [r"LayerNorm\.weight", "int64"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_C50_wrong_weights_are_named(case, rewrite):
    change, patterns = REFUSED[case]
    folder = rewrite("BE", None, change)
    with pytest.raises(ef.WeightsError) as caught:
        ef.load(folder)
    for pattern in patterns:
        caught.match(pattern)


class Marker:
    """Unpickling this creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("legacy", [True, False], ids=["plain pickle", "zip"])
def test_C64_code_in_a_pickle_never_runs(legacy, tmp_path):
    shutil.copy(tiny.saved("BE") / "config.json", tmp_path)
    marker, file = tmp_path / "marker", tmp_path / "pytorch_model.bin"
    if legacy:
        file.write_bytes(pickle.dumps({"embeddings.word_embeddings.weight": Marker(marker)}))
    else:
        torch.save({"embeddings.word_embeddings.weight": Marker(marker)}, file)
    with pytest.raises(ef.WeightsError, match=r"pytorch_model\.bin"):
        ef.load(tmp_path)
    assert not marker.exists()


def lying(data: bytes) -> bytes:
    """The first tensor claims bytes beyond the end of the file."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    name = next(n for n in header if n != "__metadata__")
    header[name]["data_offsets"][1] += 10**9
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


CORRUPT = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "last byte missing": lambda data: data[:-1],
    "text": lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "header longer than the file": lambda data: (2**40).to_bytes(8, "little") + data[8:],
    "lying offsets": lying,
    "header is no json": lambda data: data[:8] + b"#" * 40 + data[48:],
}


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("case", CORRUPT)
def test_C64_corrupt_files_are_one_error(case, file, tmp_path):
    source = tiny.saved("BE")
    shutil.copy(source / "config.json", tmp_path)
    data = (source / "model.safetensors").read_bytes()
    if file.endswith(".bin"):
        if case.startswith(("header", "lying")):
            pytest.skip("a header is safetensors'")
        torch.save(load_file(source / "model.safetensors"), tmp_path / file)
        data = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(CORRUPT[case](data))
    with pytest.raises(ef.WeightsError, match=file.replace(".", r"\.")):
        ef.load(tmp_path)


@pytest.mark.parametrize(
    "shard", ["../other.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ""]
)
def test_C64_an_index_cannot_leave_its_folder(shard, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    shutil.copy(tiny.saved("BE") / "config.json", inner)
    shutil.copy(tiny.saved("BE") / "model.safetensors", tmp_path / "other.safetensors")
    (inner / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(ef.WeightsError, match=r"index\.json: shard"):
        ef.load(inner)


@pytest.mark.parametrize("text", ["[]", "{}", '{"weight_map": {"a": 3}}', "not json"])
def test_C64_a_bad_index_is_one_error(text, tmp_path):
    shutil.copy(tiny.saved("BE") / "config.json", tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ef.WeightsError, match=r"index\.json"):
        ef.load(tmp_path)


def test_C64_auto_map_runs_nothing(rewrite):
    folder = rewrite("BE", config=lambda c: c | {"auto_map": {"AutoModel": "evil.Model"}})
    (folder / "evil.py").write_text(f"open({str(folder / 'marker')!r}, 'w')\n")
    assert same(ef.load(folder), tiny.our_model("BE"))
    assert not (folder / "marker").exists()


@pytest.mark.parametrize("text", ["not json", "[]", '"bert"', "\xff"])
def test_a_bad_config_is_one_error(text, tmp_path):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ef.ConfigError, match=r"config\.json"):
        ef.load(tmp_path)


def test_an_empty_folder_and_one_without_weights(tmp_path):
    with pytest.raises(ef.ConfigError, match=r"config\.json: not found"):
        ef.load(tmp_path)
    shutil.copy(tiny.saved("BE") / "config.json", tmp_path)
    with pytest.raises(ef.WeightsError, match=r"model\.safetensors.*pytorch_model\.bin"):
        ef.load(tmp_path)


def test_a_file_and_a_bad_id_are_told_apart(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(ef.WeightsError, match=r"path.*is a file"):
        resolve_folder(file)
    for bad in ("no such/folder/at all", "a/b/c", "", "org/na me"):
        with pytest.raises(ef.WeightsError, match=r"path: got .*hub id"):
            resolve_folder(bad)
    assert resolve_folder(tmp_path) == tmp_path


@pytest.mark.parametrize("name", ["encoder-fast-tests/no-such-model", "no-such-model"])
def test_a_hub_id_offline_is_one_clear_error(name):
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    with pytest.raises(ef.WeightsError) as caught:
        ef.load(name)
    caught.match(rf"path: got '{name}', no such folder, and the hub did not serve it")
    assert "\n" not in str(caught.value)
