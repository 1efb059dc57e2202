"""The models suite with engines that behave and engines that do not."""

import bench_tiny
import pytest
import torch

from encoder_fast.architectures import architecture_of
from encoder_fast.benchmarks import accuracy, models, models_suite, workloads
from encoder_fast.benchmarks.contenders import BASELINE
from encoder_fast.benchmarks.engine import CannotRun, Contender, Engine, Ready, Task
from encoder_fast.benchmarks.options import Options
from encoder_fast.config_json import Settings

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

    def run(*contenders: Contender, dtypes=("bfloat16",), names=("one", "two")):
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


def test_without_a_baseline_there_is_no_race(suite, monkeypatch):
    with pytest.raises(RuntimeError, match="transformers sdpa, the baseline of all ratios"):
        suite(fake(BASELINE, why=lambda task: "transformers is not installed"))


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


def test_pooled_answers_are_compared_with_pooled_answers():
    lengths = (3, 5)
    hidden = torch.randn(8, 4)
    pooled = accuracy.pool(hidden, lengths)
    assert torch.equal(pooled[1], hidden[3:].mean(0))
    assert accuracy.judge(pooled, pooled, pooled + 1e-3, int8=False).reason is None
    assert "shape" in accuracy.judge(hidden, pooled, pooled, int8=False).reason


def test_flops_are_those_of_the_paper_shapes():
    """ModernBERT-base: 110.3 M parameters in the linears, 220.6 MFLOP a token beside attention."""
    values = models.CONFIGS["modernbert-base"]
    config = architecture_of("modernbert").config(Settings(values))
    one = models_suite.flops(config, (1,))
    assert one == pytest.approx(220.6e6, rel=0.002)
    assert models_suite.flops(config, (1, 1)) == 2 * one
