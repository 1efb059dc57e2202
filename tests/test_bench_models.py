"""The models suite with engines that behave and engines that do not."""

import dataclasses
import weakref

import bench_tiny
import pytest
import torch

from encoder_fast.benchmarks import models, models_suite, workloads
from encoder_fast.benchmarks.contenders import BASELINE
from encoder_fast.benchmarks.engine import CannotRun, Contender, Engine, Ready, Task
from encoder_fast.benchmarks.options import Options

WIDTH = 8


def answer(inputs) -> torch.Tensor:
    """What every fake model computes: `(T, 8)`, a function of the ids."""
    ids_T = torch.tensor([i for row in inputs.ids for i in row], dtype=torch.float32)
    return torch.sin(ids_T[:, None] * torch.arange(1, WIDTH + 1))


def fake(name: str, change=lambda x: x, why=None, slow=False, **engine) -> Contender:
    """A contender whose answer is `change(answer)`; rounds to the dtype as a real one would."""

    def build(task: Task) -> Engine:
        def ready(inputs) -> Ready:
            dtype = torch.bfloat16 if task.dtype == "int8" else task.torch_dtype
            return Ready(lambda: answer(inputs).to(dtype), lambda x: change(x.float()))

        return Engine(ready, **engine)

    return Contender(name, build, why or (lambda task: no_int8(task)), slow)


def no_int8(task: Task) -> str | None:
    return "computes no int8" if task.dtype == "int8" else None


def raises(error: BaseException):
    def call(*_):
        raise error

    return call


@pytest.fixture
def suite(monkeypatch, tmp_path):
    """Runs the suite with the given contenders on two workloads; returns records and lines told."""

    def run(*contenders: Contender, dtypes=("bfloat16",), names=("one", "two"), **more):
        field = {c.name: c for c in (fake(BASELINE), *contenders)}
        monkeypatch.setattr(models_suite, "CONTENDERS", field)
        monkeypatch.setattr(models, "write", bench_tiny.written)
        small = {
            "one": workloads.Workload("one", (9, 4), ""),
            "two": workloads.Workload("two", (7,), ""),
            "long": workloads.Workload("long", (600,), ""),
        }
        monkeypatch.setattr(workloads, "WORKLOADS", small)
        options = Options(
            ("bert-base",), names, tuple(field), dtypes, "cpu", 1, 0.0, 2, False, False, tmp_path
        )
        options = dataclasses.replace(options, **more)
        records, told = [], []
        try:
            models_suite.run(options, records.append, told.append)
        finally:
            run.records, run.told = records, told
        return records

    return run


def of(records, contender, workload="one"):
    (record,) = (r for r in records if (r["contender"], r["workload"]) == (contender, workload))
    return record


def test_a_good_contender_gets_a_speed(suite):
    records = suite(fake("ours", ran={"attention": "torch"}))
    record = of(records, "ours")
    assert record["status"] == "ok" and record["reason"] is None
    assert (record["texts"], record["longest"], record["tokens"], record["slots"]) == (2, 9, 13, 18)
    assert record["tokens_per_s"] == pytest.approx(13 / record["ms"] * 1e3)
    assert record["slots_per_s"] == pytest.approx(18 / record["ms"] * 1e3)
    assert record["rounds"] == 2 and 0 <= record["steady"] <= 2
    assert len(record["ratios"]) == record["steady"] and record["baseline"] == BASELINE
    assert record["ran"] == {"attention": "torch"} and record["roof"] > 0
    assert record["error_rms"] == pytest.approx(1)
    assert of(records, BASELINE)["ratios"] == [1.0] * of(records, BASELINE)["steady"]


def scaled(x):
    return x * 1.05


def one_wrong_token(x):
    return torch.cat([x[:-1], -x[-1:]])


def not_finite(x):
    return x.index_fill(0, torch.tensor([0]), float("nan"))


def neighbour(x):
    return x.roll(1, 0)


@pytest.mark.parametrize(
    "change", [scaled, one_wrong_token, not_finite, neighbour, lambda x: x[1:]]
)
def test_no_speed_for_a_wrong_answer(suite, change):
    record = of(suite(fake("wrong", change)), "wrong")
    assert record["status"] == "refused" and record["reason"]
    assert "ms" not in record and "ratio" not in record


@pytest.mark.parametrize(
    ("contender", "status", "words"),
    [
        (fake("x", why=lambda task: "needs a GPU"), "skipped", "needs a GPU"),
        (Contender("x", raises(OSError("no file")), no_int8), "failed", "OSError: no file"),
        (
            fake("x", why=raises(ImportError("libopenvino.so"))),
            "failed",
            "ImportError: libopenvino.so",
        ),
        (
            Contender("x", lambda t: Engine(raises(CannotRun("one text only"))), no_int8),
            "skipped",
            "one text only",
        ),
        (
            Contender("x", lambda t: Engine(raises(MemoryError())), no_int8),
            "failed",
            "out of memory",
        ),
        (
            Contender(
                "x", lambda t: Engine(lambda i: Ready(raises(ValueError("bad")), None)), no_int8
            ),
            "failed",
            "ValueError: bad",
        ),
    ],
)
def test_a_contender_that_cannot_is_reported_and_the_run_goes_on(suite, contender, status, words):
    records = suite(contender, fake("last"))
    found = [r for r in records if r["contender"] == "x"]
    assert found and all(r["status"] == status and words in r["reason"] for r in found)
    assert all(of(records, "last", name)["status"] == "ok" for name in ("one", "two"))


def test_failing_in_one_cell_loses_that_cell_only(suite):
    def ready(inputs):
        call = raises(MemoryError()) if len(inputs.ids) == 2 else lambda: answer(inputs)
        return Ready(call, lambda x: x)

    records = suite(Contender("big", lambda task: Engine(ready), no_int8))
    assert of(records, "big", "one")["status"] == "failed"
    assert of(records, "big", "two")["status"] == "ok"


def test_workloads_beyond_the_positions_are_skipped(suite):
    records = suite(names=("long", "two"))
    assert of(records, None, "long")["reason"] == "bert-base takes 512 tokens at most"
    assert of(records, BASELINE, "two")["status"] == "ok"


def test_int8_races_beside_the_float_dtype(suite):
    def why(task):
        return None if task.dtype == "int8" else "computes in int8 only"

    noisy = fake("noisy", lambda x: x + 0.02 * torch.cos(97 * x), why)
    rough = fake("rough", lambda x: x + 0.5 * torch.cos(97 * x), why)
    records = suite(noisy, rough, dtypes=("bfloat16", "int8"))
    assert of(records, "noisy")["status"] == "ok" and of(records, "noisy")["dtype"] == "int8"
    assert of(records, "noisy")["cosine"] > 0.99
    assert of(records, "rough")["status"] == "refused"
    assert "cosine" in of(records, "rough")["reason"]
    assert of(records, BASELINE)["dtype"] == "bfloat16"
    alone = suite(noisy, dtypes=("bfloat16",))
    assert of(alone, "noisy", None)["reason"] == "computes in int8 only"


def test_why_not_holds_the_reason_of_each_dtype_that_was_tried(suite):
    def why(task):
        return "has no BERT" if task.dtype == "int8" else "computes in int8 only"

    records = suite(fake("x", why=why), dtypes=("bfloat16", "int8"))
    reason = of(records, "x", None)["reason"]
    assert reason == "in bfloat16: computes in int8 only; in int8: has no BERT"
    gpu = suite(fake("x", why=lambda task: "needs a GPU"), dtypes=("bfloat16", "int8"))
    assert of(gpu, "x", None)["reason"] == "needs a GPU"


@pytest.mark.parametrize("where", ["why_not", "build"])
def test_without_a_baseline_there_is_no_race(suite, where):
    build = raises(MemoryError())
    bad = fake(BASELINE, why=lambda task: "transformers is not installed")
    records = suite(Contender(BASELINE, build, no_int8) if where == "build" else bad, fake("ours"))
    (record,) = records
    assert record["status"] == "failed" and record["contender"] is None
    words = "out of memory" if where == "build" else "the baseline of all ratios, cannot run: trans"
    assert words in record["reason"]


def test_an_oracle_that_fails_on_one_workload_loses_that_cell_only(suite):
    """fp32, padded: the first to lack memory."""

    def build(task: Task) -> Engine:
        def ready(inputs):
            if task.dtype == "float32" and len(inputs.ids) == 2:
                raise MemoryError
            return Ready(lambda: answer(inputs).to(task.torch_dtype), lambda x: x.float())

        return Engine(ready)

    records = suite(Contender(BASELINE, build, no_int8), fake("ours"))
    assert "that all are compared with failed: out of memory" in of(records, None)["reason"]
    assert of(records, "ours", "two")["status"] == of(records, BASELINE, "two")["status"] == "ok"


@pytest.mark.parametrize("bad", [not_finite, lambda x: x[1:]])
def test_a_bad_baseline_lets_nobody_pass(suite, bad):
    """Any error is at most three times NaN."""

    def build(task: Task) -> Engine:
        change = (lambda x: x) if task.dtype == "float32" else bad
        return Engine(lambda i: Ready(lambda: answer(i), change))

    records = suite(Contender(BASELINE, build, no_int8), fake("wrong", neighbour), fake("good"))
    for name in (BASELINE, "wrong", "good"):
        assert of(records, name)["status"] == "refused"


def test_engines_are_gone_before_memory_is_measured(suite, monkeypatch):
    class Weights:
        pass

    weights = []

    def build(task: Task) -> Engine:
        held = Weights()
        weights.append(weakref.ref(held))
        return Engine(lambda i: Ready(lambda: (answer(i), held)[0], lambda x: x.float()))

    def measured(entries, wanted, finished, remote, emit, tell):
        assert ("ours", "one") in finished and not remote
        assert [one() for one in weights] == [None]
        weights.clear()

    monkeypatch.setattr(models_suite, "measure_memory", measured)
    suite(Contender("ours", build, no_int8), memory=True)
    assert weights == []


@pytest.mark.parametrize("quick", [True, False])
def test_a_quick_run_leaves_out_the_memory_of_those_that_start_from_text(suite, monkeypatch, quick):
    measured = set()

    def measure(entries, wanted, finished, *_):
        measured.update(name for name, _ in finished)

    monkeypatch.setattr(models_suite, "measure_memory", measure)
    text = dataclasses.replace(fake("text"), from_text=True)
    suite(text, fake("ours"), memory=True, quick=quick)
    assert measured == {BASELINE, "ours"} | ({"text"} if not quick else set())


def test_interrupting_keeps_what_was_measured(suite):
    calls = []

    def ready(inputs):
        calls.append(inputs)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return Ready(lambda: answer(inputs), lambda x: x)

    with pytest.raises(KeyboardInterrupt):
        suite(Contender("ours", lambda task: Engine(ready), no_int8))
    assert {r["workload"] for r in suite.records} == {"one"}
    assert of(suite.records, "ours")["status"] == "ok"


def test_engines_are_closed(suite):
    closed = []
    suite(fake("a", close=lambda: closed.append("a")), fake("b", close=lambda: closed.append("b")))
    assert sorted(closed) == ["a", "b"]
