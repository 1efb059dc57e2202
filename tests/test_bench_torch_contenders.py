"""Contenders that run in torch: right on ragged batches and pairs, and clear about what they cannot
do. The oracle is the specification: the reference backend in fp32, each text alone.
"""

import dataclasses
import json
import shutil

import bench_tiny
import pytest
import torch

import encoder_fast as ef
from encoder_fast.benchmarks import accuracy, models
from encoder_fast.benchmarks.contenders import _torch, ours, torch_peers
from encoder_fast.benchmarks.engine import CannotRun, Contender
from encoder_fast.benchmarks.workloads import Inputs, Workload, inputs
from encoder_fast.kernels import _native, dispatch
from encoder_fast.kernels.dispatch import BACKENDS

ALL = (*ours.CONTENDERS, *torch_peers.CONTENDERS)
BY_NAME = {contender.name: contender for contender in ALL}
COMPILED = ("encoder_fast torch compiled", "transformers compiled", "transformers flex")
TEXT = ("encoder_fast text", "sentence-transformers")
EAGER = [c for c in ALL if c.name not in COMPILED and "flash-attn" not in c.name]
FAMILIES = ("modernbert-base", "bert-base", "roberta-base", "albert-base", "electra-small")
TYPED = {"bert-base", "albert-base", "electra-small"}
# Longer than ModernBERT's window of 129.
LONG = Workload("long", (200, 3, 31), "three texts")
ONE = Workload("one", (2,), "one text of nothing but special tokens")
LIMITS = {"float32": 1e-4, "bfloat16": 0.06}
"""Of a token's error, in lengths of the token's vector."""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("torch_contenders")


@pytest.fixture(scope="module")
def write(scratch):
    """Small checkpoints, written once."""
    return bench_tiny.writer(scratch)


def alone(model: models.Written, given: Inputs) -> torch.Tensor:
    """Hidden states `(T, W)` of texts that never met."""
    reference = ef.load(model.folder, dtype=torch.float32, backend="reference")
    types = given.types or [None] * len(given.ids)
    with torch.inference_mode():
        return torch.cat(
            [
                reference(
                    ef.Batch.from_lists([list(row)], None if kind is None else [list(kind)])
                ).last_hidden_state
                for row, kind in zip(given.ids, types, strict=True)
            ]
        )


def assert_right(ready, model: models.Written, given: Inputs, dtype: str) -> None:
    output, wanted = ready.output(), alone(model, given)
    wanted = accuracy.pool(wanted, given.lengths) if ready.pooled else wanted
    assert output.shape == wanted.shape
    assert output.dtype == torch.float32 and output.device.type == "cpu"
    assert ((output - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max() < LIMITS[dtype]


def build(name: str, model: models.Written, scratch, dtype: str):
    task = bench_tiny.task(model, scratch, dtype)
    if reason := BY_NAME[name].why_not(task):
        pytest.skip(reason)
    return BY_NAME[name].build(task)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", [c.name for c in EAGER])
def test_every_text_gets_what_it_gets_alone(write, scratch, name, family, dtype):
    model = write(family)
    engine = build(name, model, scratch, dtype)
    assert engine.ran
    for workload in (bench_tiny.MIXED, LONG, ONE, bench_tiny.PAIRS):
        given = inputs(workload, model.folder)
        assert (given.types is not None) == (workload.pairs and family in TYPED)
        if workload.pairs and name in TEXT:
            with pytest.raises(CannotRun, match="pairs"):
                engine.ready(given)
        else:
            assert_right(engine.ready(given), model, given, dtype)
    engine.close()


def test_the_check_of_these_tests_sees_token_types_and_neighbours(write, scratch):
    model = write("bert-base")
    given = inputs(bench_tiny.PAIRS, model.folder)
    untyped = dataclasses.replace(given, types=None)
    joined = dataclasses.replace(
        given, ids=(given.ids[0] + given.ids[1],), types=(given.types[0] + given.types[1],)
    )
    engine = build("encoder_fast torch", model, scratch, "bfloat16")
    for wrong in (untyped, joined):
        with pytest.raises(AssertionError):
            assert_right(engine.ready(wrong), model, given, "bfloat16")


@pytest.mark.parametrize("name", TEXT)
def test_no_text_is_cut_where_the_folder_says_so(write, scratch, tmp_path, name):
    model = write("bert-base")
    folder = shutil.copytree(model.folder, tmp_path / "limited")
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["model_max_length"] = 16
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    limited = dataclasses.replace(model, folder=folder)
    engine = build(name, limited, scratch, "float32")
    long, short = (inputs(w, folder) for w in (LONG, ONE))
    ready = engine.ready(long)
    engine.ready(short)
    assert_right(ready, limited, long, "float32")


def test_one_contender_for_each_backend_says_what_ran(write, scratch):
    assert {f"encoder_fast {backend}" for backend in BACKENDS} <= set(BY_NAME)
    assert BY_NAME["encoder_fast reference"].slow
    for backend in ("torch", "reference"):
        ran = build(f"encoder_fast {backend}", write("bert-base"), scratch, "float32").ran
        assert "attention" in ran and set(ran.values()) == {backend}


@pytest.fixture
def pooling(monkeypatch):
    """A backend of the name that has one op; where it comes first, `auto` takes it."""

    def add(name: str, why_not=dispatch.serves_always):
        table = dispatch.op_tables()["pool"]
        run = dispatch.Implementation(table["torch"].run, why_not)
        monkeypatch.setattr(dispatch, "BACKENDS", (name, *(b for b in BACKENDS if b != name)))
        monkeypatch.setitem(table, name, run)

    return add


def test_a_backend_without_all_ops_is_timed_as_people_get_it(write, scratch, pooling):
    pooling("native")
    contender = _contender_of("native")
    task = bench_tiny.task(write("bert-base"), scratch)
    assert contender.why_not(task) is None
    ran = contender.build(task).ran
    assert ran["pool"] == "native"
    torch_alone = build("encoder_fast torch", write("bert-base"), scratch, "float32").ran
    assert set(torch_alone.values()) == {"torch"}


def test_a_backend_that_runs_no_op_is_no_contender(write, scratch, pooling):
    pooling("native", lambda request: "no compiler was found")
    for op, table in dispatch.op_tables().items():
        if "native" in table and op != "pool":
            pytest.skip("a native engine is installed here")
    reason = _contender_of("native").why_not(bench_tiny.task(write("bert-base"), scratch))
    assert reason.startswith("native runs no op of this model: ")
    assert reason.endswith("no compiler was found") or "no compiler was found; " in reason


def _contender_of(backend: str) -> Contender:
    return Contender(backend, ours._padded_call(backend), ours._why_not(backend))


def test_a_backend_that_cannot_run_the_model_says_why(write, scratch, monkeypatch):
    def refuse(backend, request):
        assert request == _torch.Request(torch.device("cpu"), torch.bfloat16, 32, 64)
        raise _torch.BackendError("attention on torch: head width 32")

    monkeypatch.setattr(_torch, "resolve", refuse)
    task = bench_tiny.task(write("bert-base"), scratch, "bfloat16")
    assert BY_NAME["encoder_fast torch"].why_not(task) == "attention on torch: head width 32"


@pytest.mark.parametrize("contender", ALL, ids=lambda c: c.name)
def test_refuses_int8_and_a_device_that_is_not_here(write, scratch, contender):
    task = bench_tiny.task(write("bert-base"), scratch, "int8")
    if contender.name == "encoder_fast native int8":
        assert (contender.why_not(task) is None) == _native.has_int8()
        assert (
            contender.why_not(dataclasses.replace(task, dtype="float32")) == "computes in int8 only"
        )
        assert "not on cuda" in contender.why_not(dataclasses.replace(task, device="cuda"))
        return
    assert contender.why_not(task)
    if "flash-attn" in contender.name:
        assert contender.why_not(task) == "runs on a GPU only"
        return
    assert "not int8" in contender.why_not(task)
    if not torch.cuda.is_available():
        gone = dataclasses.replace(task, dtype="bfloat16", device="cuda")
        assert "cuda" in contender.why_not(gone).lower()


@pytest.mark.parametrize(
    ("version", "package"), [(2, "flash-attn"), (3, "hopper"), (4, "flash-attn-4")]
)
def test_flash_attention_says_what_is_missing(write, scratch, monkeypatch, version, package):
    why_not = BY_NAME[f"transformers flash-attn {version}"].why_not
    task = dataclasses.replace(bench_tiny.task(write("bert-base"), scratch), device="cuda")
    assert why_not(task) == "computes in bfloat16 and float16 only"
    task = dataclasses.replace(task, dtype="bfloat16")

    def absent(name):
        raise torch_peers.PackageNotFoundError(name)

    monkeypatch.setattr(torch_peers, "distribution", absent)
    assert "not installed" in why_not(task) and package in why_not(task)
    monkeypatch.setattr(torch_peers, "distribution", lambda name: None)
    monkeypatch.setattr(torch_peers, "_needs_transformers", lambda task: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "compute capability" in why_not(task)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert why_not(task) is None


def test_a_missing_package_is_named(write, scratch, monkeypatch):
    monkeypatch.setattr(_torch, "find_spec", lambda name: None)
    task = bench_tiny.task(write("bert-base"), scratch)
    for contender in torch_peers.CONTENDERS:
        if "flash-attn" not in contender.name:
            package = contender.name.split()[0]
            assert contender.why_not(task) == f"not installed: pip install {package}"


@pytest.mark.parametrize("name", COMPILED)
def test_compiling_for_a_cpu_takes_a_compiler_and_headers(
    write, scratch, monkeypatch, tmp_path, name
):
    pytest.importorskip("transformers")
    task = bench_tiny.task(write("bert-base"), scratch)
    monkeypatch.setattr(_torch.shutil, "which", lambda name: "/somewhere")
    monkeypatch.setattr(_torch.sysconfig, "get_path", lambda name: str(tmp_path))
    assert "Python.h" in BY_NAME[name].why_not(task)
    (tmp_path / "Python.h").touch()
    assert BY_NAME[name].why_not(task) is None
    monkeypatch.setattr(_torch.shutil, "which", lambda name: None)
    assert "needs a C++ compiler" in BY_NAME[name].why_not(task)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_engines_are_right_and_compile_nothing_when_timed(
    tmp_path, scratch, monkeypatch, name
):
    from torch._dynamo import config as dynamo_config
    from torch._dynamo.utils import counters
    from torch._inductor import config as inductor_config

    monkeypatch.setitem(bench_tiny.SMALL, "num_hidden_layers", 2)
    model = bench_tiny.written("bert-base", tmp_path)
    # More graphs than torch allows by itself, as in a run over many models and shapes.
    with dynamo_config.patch(recompile_limit=1):
        engine = build(name, model, scratch, "bfloat16")
        given = [inputs(workload, model.folder) for workload in (bench_tiny.MIXED, LONG)]
        ready = [engine.ready(one) for one in given]
        before = counters["stats"]["unique_graphs"]
        assert before
        # The first after the second was made: neither took the other's weights.
        for one, its_input in zip(ready, given, strict=True):
            assert_right(one, model, its_input, "bfloat16")
            assert torch.equal(one.output(), one.output())
        assert counters["stats"]["unique_graphs"] == before
        assert dynamo_config.recompile_limit == 1 and not inductor_config.freezing
