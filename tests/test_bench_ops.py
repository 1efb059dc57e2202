"""The ops suite: what is timed, against what, and that a wrong answer gets no number."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from encoder_fast import kernels
from encoder_fast.architectures import architecture_of
from encoder_fast.benchmarks import models, op_check, op_plugin, op_shapes, ops_suite, roof
from encoder_fast.benchmarks.op_plugin import Plan, cell_id
from encoder_fast.benchmarks.op_subjects import PASSES, Subject, subjects
from encoder_fast.benchmarks.options import Options
from encoder_fast.benchmarks.workloads import WORKLOADS, Workload
from encoder_fast.config_json import Settings
from encoder_fast.kernels import _cost, dispatch

RAGGED = Workload("ragged", (40, 7, 90, 3), "four texts")
TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
TABLES = dispatch.op_tables()
PLAN = Plan(tuple(TABLES), op_shapes.MODELS, (), ("float32",), PASSES, (), "cpu", True)


@cache
def tiny_shapes(op: str) -> list[op_shapes.OpShape]:
    """Inputs of a small ModernBERT, whose windows are shorter than the texts, and a small BERT."""
    found = {}
    for model in op_shapes.MODELS:
        values = models.CONFIGS[model] | TINY
        if model == "modernbert-base":
            values["local_attention"] = 16
        config = architecture_of(values["model_type"]).config(Settings(values))
        found |= {shape.name: shape for shape in op_shapes.shapes(op, config, RAGGED)}
    return list(found.values())


def every(names):
    cases = [
        pytest.param(subject, shape, id=f"{op}-{subject.name}-{shape.name}".replace(" ", "_"))
        for op in TABLES
        for subject in subjects(op)
        if names(subject) and subject.absent("cpu") is None
        for shape in tiny_shapes(op)
    ]
    return pytest.mark.parametrize("subject, shape", cases)


def test_every_op_and_backend_is_timed_on_the_models_shapes():
    workloads = tuple(WORKLOADS[name] for name in op_shapes.WORKLOADS)
    cells = list(replace(PLAN, workloads=workloads).cells())
    assert len({cell_id(cell) for cell in cells}) == len(cells)
    timed = {(op, backend) for op, backend, shape, _, _ in cells if shape}
    assert {(op, backend) for op, table in TABLES.items() for backend in table} <= timed
    shapes = {shape for op, _, shape, _, _ in cells if op == "attention" and shape}
    assert "8x512 H12 D64 global" in shapes and "1x8192 H12 D64 window 64" in shapes
    assert "1x32 H12 D64 window 64" not in shapes, "that window sees the whole text"


def test_a_new_backend_and_a_new_op_appear_by_themselves(monkeypatch):
    table = {"reference": dispatch.Implementation(print), "new": dispatch.Implementation(print)}
    more = TABLES | {"pool": TABLES["pool"] | {"new": TABLES["pool"]["torch"]}, "other": table}
    monkeypatch.setattr(dispatch, "op_tables", lambda: more)
    plan = replace(PLAN, ops=("pool", "other"), workloads=(WORKLOADS["1x32"],))
    cells = list(plan.cells())
    assert ("pool", "new", "1x32 W768 mean", "float32", "forward") in cells
    assert ("other", "new", None, None, None) in cells, "an op without inputs is said to be so"


def test_costs_are_those_of_the_op_files():
    def cost(op: str, number: int = 0):
        config = op_shapes.config_of("modernbert-base")
        return op_shapes.shapes(op, config, WORKLOADS["8x128"])[number].cost

    half, T, W = torch.bfloat16, 1024, 768
    expected = {
        cost("embed"): kernels.embed.cost(T, W, 1, 2),
        cost("linear"): kernels.linear.cost(T, W, 3 * W, 2),
        cost("linear", 1): kernels.linear.cost(T, W, W, 2),
        cost("add_norm"): kernels.add_norm.cost(T, W, 2),
        cost("rope"): kernels.rope.cost(T, 12, 64, 2),
        cost("attention"): kernels.attention.cost((128,) * 8, None, 12, 64, 2),
        cost("attention", 1): kernels.attention.cost((128,) * 8, 64, 12, 64, 2),
        cost("mlp"): kernels.mlp.cost(T, W, 1152, True, 2),
        cost("pool"): kernels.pool.cost(T, 8, W, 2),
        cost("linear_cross_entropy"): kernels.linear_cross_entropy.cost(307, W, 50368, 2),
    }
    for of, wanted in expected.items():
        assert of(half, "forward") == wanted
    both = cost("mlp")(half, "forward+backward")
    assert both.flops == 3 * kernels.mlp.cost(T, W, 1152, True, 2).flops


@every(lambda subject: subject.name != "peer torch.compile")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_right_answers_pass(subject, shape, dtype):
    for passes in PASSES:
        if reason := subject.why_not(shape, dtype, "cpu", passes):
            pytest.skip(f"{shape.op} on {subject.name}: {reason}")
        wanted = op_check.expected(shape, dtype, "cpu", passes == PASSES[1])
        ours = subject.answer(op_check.arguments(shape, dtype, "cpu"), wanted)
        assert op_check.fault(shape.op, ours, wanted) is None
        subject.call(op_check.arguments(shape, dtype, "cpu"), passes)()


def wrong(subject: Subject, what: str) -> Subject:
    def run(**native):
        result = subject.run(**native)
        results = result if isinstance(result, tuple) else (result,)
        y = results[0]
        if what == "result":
            y = y * 1.01
        elif what == "gradient":
            y = y.detach() + 1.01 * (y - y.detach())
        else:
            y = y + float("nan")
        return (y, *results[1:])

    return replace(subject, run=run)


@every(lambda subject: subject.name == "torch")
def test_a_wrong_answer_is_refused(subject, shape):
    arguments = op_check.arguments(shape, torch.float32, "cpu")
    wanted = op_check.expected(shape, torch.float32, "cpu", True)
    for what, text in (("result", "result 0: "), ("gradient", "d "), ("nan", "not finite")):
        ours = wrong(subject, what).answer(arguments, wanted)
        assert text in op_check.fault(shape.op, ours, wanted)


def test_inputs_beyond_the_references_memory_are_checked_on_fewer_tokens():
    config = op_shapes.config_of("modernbert-base")
    for op in TABLES:
        for shape in op_shapes.shapes(op, config, WORKLOADS["1x8192"]):
            big = op in ("attention", "linear_cross_entropy")
            assert (shape.checked is not None) == big
            if big:
                assert shape.checked.part.label == shape.part.label
                assert shape.checked.tokens == op_shapes.CHECKED_TOKENS


def test_the_roof_bounds_an_op_by_flops_or_bytes():
    measured = roof.measure(torch.float32, "cpu", budget_s=0.05, stream_bytes=2**22)
    assert measured.flops_per_s > 1e8 and measured.bytes_per_s > 1e7 and measured.control_s > 0
    known = roof.Roof("float32", "cpu", flops_per_s=100.0, bytes_per_s=10.0, control_s=1.0)
    assert known.seconds(_cost.Cost(flops=200, bytes=10)) == 2
    assert known.fraction(_cost.Cost(flops=100, bytes=20), seconds=4) == 0.5
    assert known.in_phase(2.0).fraction(_cost.Cost(flops=100, bytes=20), seconds=4) == 1
    assert known.record()["kind"] == "roof"


def test_an_unknown_name_lists_those_that_are_known():
    class Config:
        def getoption(self, name):
            return "pool,pull"

    with pytest.raises(pytest.UsageError, match=r"--op-names: got pull; allowed: .*pool"):
        op_plugin._chosen(Config(), "op_names", TABLES, ())


FEW = ["--op-models=minilm-l6", "--op-workloads=1x32", "--op-dtypes=float32", "--op-threads=1"]
FEW += ["--op-roof-seconds=0.01", "--benchmark-max-time=0.01", "--benchmark-min-rounds=2"]


def bench(folder: Path, *more: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-I", "-m", "pytest", str(ops_suite.BENCH), "-p", "no:cacheprovider"]
    return subprocess.run([*command, *FEW, *more], cwd=folder, capture_output=True, text=True)


def test_the_file_stands_alone_and_compares_with_a_stored_run(tmp_path):
    storage = f"--benchmark-storage=file://{tmp_path / 'kept'}"
    which = ["--op-names=add_norm,attention,pool", "--op-passes=forward"]
    written, lines = tmp_path / "a.json", tmp_path / "a.jsonl"
    saved = ["--benchmark-save=first", f"--benchmark-json={written}", f"--op-lines={lines}"]
    done = bench(tmp_path, *which, storage, *saved)
    assert done.returncode == 0, done.stdout
    found = json.loads(written.read_text())["benchmarks"]
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    timed = {r["backend"]: r for r in records if r["kind"] == "op" and r["op"] == "add_norm"}
    info = {
        b["extra_info"]["backend"]: b["extra_info"]
        for b in found
        if b["params"]["op"] == "add_norm"
    }
    assert {"torch", "reference", "peer F.layer_norm"} <= info.keys()
    assert timed["peer liger"]["status"] == "skipped"
    for name, one in info.items():
        assert timed[name].items() >= one.items() and timed[name]["status"] == "ok"
        cost = kernels.add_norm.cost(32, 384, 4)
        assert (one["flops"], one["bytes"]) == (cost.flops, cost.bytes)
        assert one["flops_per_s"] == pytest.approx(one["flops"] / one["ms"] * 1e3)
        assert min(one["roof"], one["control_s"], one["ms_low"]) > 0
    again = bench(tmp_path, *which, storage, "--benchmark-compare=0001", "-k", "pool and torch")
    assert again.returncode == 0, again.stdout
    assert "0001_first" in again.stdout and "NOW" in again.stdout and "1 passed" in again.stdout


def options(scratch: Path, **changes) -> Options:
    values = {
        "models": ("minilm-l6",),
        "workloads": ("1x32",),
        "contenders": (),
        "dtypes": ("float32", "int8"),
        "device": "cpu",
        "threads": 1,
        "seconds": 0.1,
        "rounds": 2,
        "memory": False,
        "quick": True,
        "scratch": scratch,
    }
    return Options(**values | changes)


def test_the_suite_passes_on_records_and_keeps_them_when_interrupted(tmp_path):
    records, told = [], []

    def emit(record):
        records.append(record)
        if record["kind"] == "op" and record["status"] == "ok":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ops_suite.run(options(tmp_path), emit, told.append, ops=("pool", "rope"))
    assert [r["kind"] for r in records] == ["roof", "op"]
    assert records[1]["backend"] == "torch", "a quick run leaves the specification out"
    assert any("pool torch 1x32 W384 mean float32 forward" in line for line in told)


def test_a_cell_that_kills_the_process_costs_that_cell_only(tmp_path, monkeypatch):
    lines = tmp_path / "ops.jsonl"
    now = {"kind": "now", "cell": ["pool", "torch", "1x32 W384 mean", "float32", "forward"]}
    good = {"kind": "op", "op": "rope", "status": "ok"}
    code = f"""
import os, pathlib, signal, sys
again = "pool-torch-1x32_W384_mean-float32-forward" in sys.argv
pathlib.Path({str(lines)!r}).write_text({json.dumps(good)!r} if again else {json.dumps(now)!r})
with open({str(lines)!r}, "a") as file:
    file.write(chr(10))
if not again:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    monkeypatch.setattr(ops_suite, "_command", lambda *given: [sys.executable, "-c", code])
    records = []
    ops_suite.run(options(tmp_path), records.append, lambda text: None)
    lost, kept = records
    assert lost["status"] == "failed" and lost["reason"] == "the process died of signal 9"
    assert lost["op"] == "pool" and lost["pass"] == "forward" and kept == good


def test_a_quick_run_leaves_out_the_specification_and_what_is_slow(tmp_path, monkeypatch):
    table = TABLES["pool"] | {"native": dispatch.Implementation(print)}
    monkeypatch.setattr(dispatch, "op_tables", lambda: TABLES | {"pool": table})
    assert "native" in ops_suite.backend_names() and "pool" in ops_suite.op_names()
    names = ops_suite._backends(options(tmp_path))
    assert {"native", "torch", "peer sdpa"} <= set(names)
    assert not {"reference", "peer torch.compile"} & set(names)
    assert ops_suite._backends(options(tmp_path, quick=False)) == ()
    command = ops_suite._command(options(tmp_path), ("pool",), ("native",), tmp_path / "a")
    assert "--op-names=pool" in command and "--op-backends=native" in command


def test_a_wrong_answer_is_refused_and_an_error_failed():
    def record(message):
        params = {"op": "pool", "backend": "x", "dtype": "float32", "shape": "s", "passes": "p"}
        item = SimpleNamespace(callspec=SimpleNamespace(params=params))
        error = SimpleNamespace(reprcrash=SimpleNamespace(message=message))
        return op_plugin._record(item, SimpleNamespace(skipped=0, failed=1, longrepr=error))

    wrong = record(f"Failed: {op_check.WRONG}result 0: off")
    assert (wrong["status"], wrong["reason"]) == ("refused", f"{op_check.WRONG}result 0: off")
    assert record("RuntimeError: no")["status"] == "failed"


def test_a_pytest_that_cannot_start_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="--op-names: got pull; allowed"):
        ops_suite.run(options(tmp_path), print, print, ops=("pull",))
