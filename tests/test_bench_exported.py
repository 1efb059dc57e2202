"""Engines that run a converted copy: right on ragged batches and pairs, beside transformers."""

import dataclasses

import bench_tiny
import pytest
import torch

from encoder_fast.benchmarks import accuracy, models
from encoder_fast.benchmarks.contenders import _torch
from encoder_fast.benchmarks.contenders.exported import CONTENDERS
from encoder_fast.benchmarks.workloads import Workload, inputs

BY_NAME = {contender.name: contender for contender in CONTENDERS}
# Longer than both the example of the export and ModernBERT's window of 129, and ragged.
RAGGED = Workload("ragged", (200, 7, 90, 3), "four texts")
ONE = Workload("one", (2,), "one text of nothing but special tokens")
TYPED = {"bert-base", "albert-base", "electra-small"}
FAMILIES = ("modernbert-base", "bert-base", "roberta-base", "albert-base", "electra-small")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("exported")


@pytest.fixture(scope="module")
def write(scratch):
    """Small checkpoints, written once: what the engines make of them is kept in `scratch`."""
    return bench_tiny.writer(scratch)


def theirs(model: models.Written, given, dtype: torch.dtype) -> torch.Tensor:
    """transformers with SDPA: `(T, W)` in fp32."""
    transformers = pytest.importorskip("transformers")
    peer = transformers.AutoModel.from_pretrained(
        model.folder, attn_implementation="sdpa", dtype=dtype
    ).eval()
    more = {} if given.types_BS is None else {"token_type_ids": given.types_BS}
    with torch.inference_mode():
        out = peer(input_ids=given.ids_BS, attention_mask=given.mask_BS, **more)
    return out.last_hidden_state[given.mask_BS.bool()].float()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("onnxruntime", "float32"),
        ("onnxruntime int8", "int8"),
        ("openvino", "float32"),
        ("openvino", "bfloat16"),
        ("ctranslate2", "float32"),
        ("ctranslate2 int8", "int8"),
    ],
)
def test_hidden_states_are_those_of_transformers(write, scratch, family, name, dtype):
    model = write(family)
    task = bench_tiny.task(model, scratch, dtype)
    reason = BY_NAME[name].why_not(task)
    if reason:
        pytest.skip(reason)
    engine = BY_NAME[name].build(task)
    assert engine.ran
    for workload in (RAGGED, bench_tiny.PAIRS, ONE):
        given = inputs(workload, model.folder)
        assert (given.types is not None) == (workload.pairs and family in TYPED)
        oracle = theirs(model, given, torch.float32)
        baseline = theirs(model, given, task.torch_dtype)
        ready = engine.ready(given)
        verdict = accuracy.judge(ready.output(), oracle, baseline, int8=dtype == "int8")
        print(family, name, dtype, workload.name, verdict)
        assert verdict.reason is None
        assert torch.equal(ready.output(), ready.output())
    engine.close()


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda c: c.name)
def test_a_model_converted_once_is_reused_and_leaves_nothing_half_done(write, contender, tmp_path):
    model = write("bert-base")
    dtype = "int8" if "int8" in contender.name else "float32"
    task = bench_tiny.task(model, tmp_path, dtype)
    if reason := contender.why_not(task):
        pytest.skip(reason)

    def files():
        return {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}

    contender.build(task)
    first = files()
    assert (tmp_path / f"{contender.name}-{model.name}-{dtype}").is_dir()
    assert all(p.parent.parent == tmp_path for p in first if p.is_file())
    contender.build(task)
    assert files() == first


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda c: c.name)
def test_refuses_what_it_cannot_do(write, scratch, contender, monkeypatch):
    model = write("modernbert-base")
    dtype = "int8" if "int8" in contender.name else "float32"
    task = bench_tiny.task(model, scratch, dtype)
    assert "only" in contender.why_not(dataclasses.replace(task, dtype="float16"))
    assert "CPU only" in contender.why_not(dataclasses.replace(task, device="cuda"))
    if "ctranslate2" in contender.name:
        assert "no modernbert" in contender.why_not(task)
    monkeypatch.setattr(_torch, "find_spec", lambda name: None)
    assert "pip install" in contender.why_not(task)
    assert contender.name.split()[0] in contender.why_not(task)


def test_conversion_that_fails_leaves_no_folder(tmp_path):
    from encoder_fast.benchmarks.contenders.exporting import kept

    def make(folder):
        (folder / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        kept(tmp_path / "model", make)
    assert list(tmp_path.iterdir()) == []


def test_onnxruntime_says_what_it_fused(write, scratch):
    task = bench_tiny.task(write("bert-base"), scratch)
    if reason := BY_NAME["onnxruntime"].why_not(task):
        pytest.skip(reason)
    ran = BY_NAME["onnxruntime"].build(task).ran
    assert ran["Attention"] == "3" and ran["SkipLayerNormalization"] == "6"


def test_openvino_says_where_the_cpu_has_no_bfloat16(write, scratch, monkeypatch):
    openvino = pytest.importorskip("openvino")

    class Core:
        def get_property(self, device, name):
            return ["FP32", "INT8"]

    monkeypatch.setattr(openvino, "Core", Core)
    task = bench_tiny.task(write("bert-base"), scratch, "bfloat16")
    assert "bfloat16 on this CPU" in BY_NAME["openvino"].why_not(task)
    assert BY_NAME["openvino"].why_not(dataclasses.replace(task, dtype="float32")) is None
