"""Weights: every legal spelling of a checkpoint loads to the same bits, our files load elsewhere, the rest is refused."""

import json
import os
import pickle
import shutil
import warnings

import pytest
import tiny
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny import one_thread  # noqa: F401

import encoder_fast as ef
from encoder_fast import weights
from encoder_fast.weights import resolve_folder, sources

EVERY_FILE = [(f, h) for f in tiny.EVERY_TYPE for h in (None, *tiny.HEADS_OF[f])]
FIELDS = ("last_hidden_state", "logits", "pair_logits", "start_logits", "end_logits", "pooler_output")


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


@pytest.fixture
def rewrite(tmp_path):
    """A copy of a saved tiny model whose tensors (and config) were changed by functions."""

    def change(family, head=None, tensors=lambda t: t, config=lambda c: c, source=None):
        source = source or tiny.saved(family, head)
        values = json.loads((source / "config.json").read_text())
        changed = tensors(load_file(source / "model.safetensors"))
        save_file({k: v.contiguous().clone() for k, v in changed.items()}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(config(values)))
        return tmp_path

    return change


def renamed(change):
    return lambda tensors: {change(name): value for name, value in tensors.items()}


def old_norms(name: str) -> str:
    if "LayerNorm" in name or "layer_norm" in name or "norm" in name.lower():
        return name.removesuffix("weight") + "gamma" if name.endswith("weight") else name[:-4] + "beta"
    return name


# ---- C50: names on disk


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_C50_gamma_and_beta(family, rewrite):
    folder = rewrite(family, "masked_lm", renamed(old_norms))
    assert any(name.endswith(".gamma") for name in load_file(folder / "model.safetensors"))
    assert same(ef.load(folder, "masked_lm"), tiny.our_model(family, "masked_lm"))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("head", [None, "masked_lm"])
def test_C50_wrapper_prefixes(prefix, head, rewrite):
    folder = rewrite("BE", head, renamed(lambda name: prefix + name))
    assert same(ef.load(folder, head), tiny.our_model("BE", head))


def test_C50_a_wrapper_inside_the_name(rewrite):
    """torch.compile of the backbone alone."""
    folder = rewrite("MB", "masked_lm", renamed(lambda n: n.replace("model.", "model._orig_mod.", 1)))
    assert same(ef.load(folder, "masked_lm"), tiny.our_model("MB", "masked_lm"))


@pytest.mark.parametrize("family", ["BE", "RO", "AL", "EL"])
def test_C50_position_ids_of_old_files_are_not_weights(family, rewrite):
    prefix = load_file(tiny.saved(family, "masked_lm") / "model.safetensors")
    start = next(n for n in prefix if n.endswith("word_embeddings.weight")).removesuffix("word_embeddings.weight")
    extra = {f"{start}position_ids": torch.arange(42)[None], f"{start}token_type_ids": torch.zeros(1, 42).long()}
    folder = rewrite(family, "masked_lm", lambda tensors: tensors | extra)
    assert same(ef.load(folder, "masked_lm"), tiny.our_model(family, "masked_lm"))


DECODERS = {
    "BE": ("cls.predictions.decoder", "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"),
    "RO": ("lm_head.decoder", "roberta.embeddings.word_embeddings.weight", "lm_head.bias"),
    "AL": ("predictions.decoder", "albert.embeddings.word_embeddings.weight", "predictions.bias"),
    "EL": ("generator_lm_head", "electra.embeddings.word_embeddings.weight", None),
    "MB": ("decoder", "model.embeddings.tok_embeddings.weight", None),
}


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("present", [True, False], ids=["on disk", "absent"])
def test_C50_a_tied_decoder_may_be_on_disk(family, present, rewrite):
    decoder, table, bias = DECODERS[family]

    def change(tensors):
        tensors.pop(f"{decoder}.weight", None)
        if bias:
            tensors.pop(f"{decoder}.bias", None)
        if present:
            tensors[f"{decoder}.weight"] = tensors[table]
            if bias:
                tensors[f"{decoder}.bias"] = tensors[bias]
        return tensors

    assert same(ef.load(rewrite(family, "masked_lm", change), "masked_lm"), tiny.our_model(family, "masked_lm"))


@pytest.mark.parametrize("family", ["BE", "RO", "AL"])
def test_C50_a_bias_under_the_decoders_name_alone(family, rewrite):
    decoder, _, bias = DECODERS[family]

    def change(tensors):
        tensors[f"{decoder}.bias"] = tensors.pop(bias)
        return tensors

    assert same(ef.load(rewrite(family, "masked_lm", change), "masked_lm"), tiny.our_model(family, "masked_lm"))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_C50_an_untied_decoder_is_its_own_weight(family, tmp_path):
    changes = {"tie_word_embeddings": False}
    ours = tiny.our_model(family, "masked_lm", **changes)
    assert not torch.equal(ours.head.decoder.weight, ours.encoder.embeddings.token.weight)
    expected = hf_logits(tiny.hf_model(family, "masked_lm", **changes))["logits"]
    torch.testing.assert_close(ours(tiny.ids(2, 9)).logits, expected, rtol=0, atol=2e-5)
    ours.save_pretrained(tmp_path)
    assert same(ef.load(tmp_path, "masked_lm"), ours)
    with torch.no_grad():
        ours.encoder.embeddings.token.weight.mul_(2)
    assert not torch.equal(ours.head.decoder.weight, ours.encoder.embeddings.token.weight / 2)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_C50_a_backbone_file_in_a_head(family):
    folder = tiny.saved(family)
    with pytest.raises(ef.WeightsError, match=r"missing .*(classifier|head).*num_labels"):
        ef.load(folder, "token_classification")
    with pytest.warns(UserWarning, match=r"new head: .*head\.out\.weight.*random"):
        model = ef.load(folder, "token_classification", num_labels=5)
    out = model(tiny.ids(2, 9))
    assert out.logits.shape == (2, 9, 5)
    assert torch.equal(out.last_hidden_state, tiny.our_model(family)(tiny.ids(2, 9)).last_hidden_state)
    assert all(p.isfinite().all() for p in model.parameters())
    assert model.head.out.bias.eq(0).all() and model.head.out.weight.std() > 0.01


@pytest.mark.parametrize("family, head", tiny.EVERY_HEAD)
def test_C50_a_head_file_in_a_backbone(family, head):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ef.load(tiny.saved(family, head))
    x = tiny.our_model(family, head)(tiny.ids(2, 9)).last_hidden_state
    assert torch.equal(model(tiny.ids(2, 9)).last_hidden_state, x)


def test_C50_a_classifier_of_another_size_is_refused():
    folder = tiny.saved("BE", "sequence_classification")
    with pytest.raises(ef.WeightsError, match=r"classifier\.\w+ has shape.*2.*7"):
        ef.load(folder, "sequence_classification", num_labels=7)


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("format", ["safetensors", "bin"])
def test_C50_sharded_files(family, format, tmp_path):
    model = tiny.hf_model(family, "masked_lm")
    if format == "safetensors":
        model.save_pretrained(tmp_path, max_shard_size="8KB")
        assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    else:
        tensors = load_file(tiny.saved(family, "masked_lm") / "model.safetensors")
        shutil.copy(tiny.saved(family, "masked_lm") / "config.json", tmp_path)
        shards = {name: f"pytorch_model-{i % 3}.bin" for i, name in enumerate(tensors)}
        for shard in set(shards.values()):
            torch.save({n: t for n, t in tensors.items() if shards[n] == shard}, tmp_path / shard)
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": shards}))
    assert same(ef.load(tmp_path, "masked_lm"), tiny.our_model(family, "masked_lm"))


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_C50_the_files_dtype_is_kept_or_cast(stored, rewrite):
    folder = rewrite("BE", None, lambda t: {name: value.to(stored) for name, value in t.items()})
    assert {p.dtype for p in ef.load(folder).parameters()} == {stored}
    wide = ef.load(folder, dtype="float32")
    assert {p.dtype for p in wide.parameters()} == {torch.float32}
    expected = tiny.our_model("BE").state_dict()
    for name, value in wide.state_dict().items():
        assert torch.equal(value, expected[name].to(stored).float()), name


def test_C50_a_pickle_of_tensors_loads(tmp_path):
    source = tiny.saved("BE", "masked_lm")
    shutil.copy(source / "config.json", tmp_path)
    torch.save(load_file(source / "model.safetensors"), tmp_path / "pytorch_model.bin")
    assert same(ef.load(tmp_path, "masked_lm"), tiny.our_model("BE", "masked_lm"))


# ---- round trips


@pytest.mark.parametrize("family, head", EVERY_FILE)
def test_C50_transformers_reads_our_files_to_the_same_bits(family, head, tmp_path):
    tiny.our_model(family, head).save_pretrained(tmp_path)
    hf_class = getattr(transformers, tiny.CLASS_PREFIX[family] + tiny.CLASS_SUFFIX[head])
    theirs, report = hf_class.from_pretrained(
        tmp_path, attn_implementation="eager", output_loading_info=True, local_files_only=True
    )
    assert not report["missing_keys"] and not report["mismatched_keys"]
    assert not report["unexpected_keys"]
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [hf_class.__name__]
    ours, original = hf_logits(theirs.eval()), hf_logits(tiny.hf_model(family, head))
    assert ours.keys() == original.keys()
    for name, value in original.items():
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
    {"num_hidden_layers": 6, "num_hidden_groups": groups, "inner_group_num": inner, "embedding_size": E}
    for groups, inner, E in ((1, 1, 16), (2, 1, 32), (3, 2, 16))
]


@pytest.mark.parametrize("changes", ALBERTS, ids=lambda c: f"{c['num_hidden_groups']}x{c['inner_group_num']}")
def test_C52_albert_groups_survive_a_round_trip(changes, tmp_path):
    model = tiny.our_model("AL", "masked_lm", **changes)
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    original = load_file(tiny.saved("AL", "masked_lm", **changes) / "model.safetensors")
    assert stored.keys() == original.keys()
    assert all(torch.equal(stored[name], original[name]) for name in stored)


@pytest.mark.parametrize("family, head", EVERY_FILE)
def test_rename_tables_are_a_bijection(family, head):
    """Each parameter has names of its own, and together they are exactly the names in transformers' file."""
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
        monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space"):
        other.save_pretrained(tmp_path)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert same(ef.load(tmp_path), tiny.our_model("BE"))


# ---- refused


def drop(name):
    return lambda tensors: {k: v for k, v in tensors.items() if k != name}


REFUSED = {
    "missing": (drop("encoder.layer.1.output.dense.weight"), ["missing", r"layer\.1\.output\.dense\.weight"]),
    "missing table": (drop("embeddings.word_embeddings.weight"), ["missing", "word_embeddings"]),
    "one of three stacked": (drop("encoder.layer.0.attention.self.key.bias"), ["missing", r"self\.key\.bias"]),
    "unexpected": (lambda t: t | {"encoder.layer.7.output.dense.bias": torch.ones(32)}, ["unexpected", r"layer\.7"]),
    "unexpected beside the layers": (lambda t: t | {"adapter.up": torch.ones(2)}, ["unexpected", r"adapter\.up"]),
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
        lambda t: t | {
            "encoder.layer.0.attention.self.query.bias": torch.ones(16),
            "encoder.layer.0.attention.self.key.bias": torch.ones(48),
        },
        [r"self\.(query|key)\.bias", r"\(16,\)"],
    ),
    "two spellings": (lambda t: t | {"embeddings.LayerNorm.gamma": torch.ones(32)}, ["gamma", "same parameter"]),
    "integer weights": (
        lambda t: t | {"embeddings.LayerNorm.weight": torch.ones(32).long()}, [r"LayerNorm\.weight", "int64"],
    ),
}  # fmt: skip


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


@pytest.mark.parametrize("shard", ["../other.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ""])
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
    with pytest.raises(ef.WeightsError, match="path.*is a file"):
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
