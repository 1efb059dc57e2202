"""The finetune suite: everyone computes the same step, and a wrong gradient gets no speed."""

import dataclasses
import functools
from types import SimpleNamespace

import bench_tiny
import pytest
import torch

from encoder_fast.benchmarks import (
    finetune_suite,
    memory,
    models,
    models_suite,
    step_contenders,
    steps,
    workloads,
)
from encoder_fast.benchmarks.engine import CannotRun, Contender, Engine, Task
from encoder_fast.benchmarks.finetune_suite import compare
from encoder_fast.benchmarks.options import Options
from encoder_fast.benchmarks.step_contenders import BASELINE, CONTENDERS, StepTask

pytest.importorskip("transformers")

FAMILIES = ("modernbert-base", "bert-base", "roberta-base", "albert-base", "electra-small")
PACKED, PADDED = "encoder_fast torch packed", "encoder_fast torch padded"
CHECKPOINTED = "transformers sdpa checkpointed"
ON_A_CPU = [name for name in CONTENDERS if not name.endswith(("compiled", "flash-attn 2"))]


@functools.cache
def checkpoint(family: str, scratch):
    """A small masked-LM checkpoint and the input of `bench_tiny.MIXED`."""
    written = bench_tiny.written(family, scratch)
    return steps.write(written, scratch), workloads.inputs(bench_tiny.MIXED, written.folder)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("steps")


def task_of(family: str, scratch, dtype: str = "float32") -> Task:
    folder, _ = checkpoint(family, scratch)
    return Task(family, folder, dtype, "cpu", 1, scratch)


def step_of(name: str, family: str, scratch, dtype: str = "float32"):
    _, drawn = checkpoint(family, scratch)
    return CONTENDERS[name].build(task_of(family, scratch, dtype)).ready(drawn)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_everyone_computes_the_same_step(family, dtype, scratch):
    oracle = step_of(BASELINE, family, scratch).answer()
    assert all(gradient.abs().max() > 0 for gradient in oracle.gradients.values())
    baseline = step_of(BASELINE, family, scratch, dtype).answer()
    done = []
    for name in ON_A_CPU:
        why = CONTENDERS[name].why_not(task_of(family, scratch, dtype))
        if why is not None or (family, name) == ("albert-base", CHECKPOINTED):
            continue
        why, numbers = compare(step_of(name, family, scratch, dtype).answer(), oracle, baseline)
        assert why is None and numbers["error_rms"] <= 3, (name, why, numbers)
        done.append(name)
    assert {PACKED, PADDED, BASELINE, "transformers eager"} <= set(done)


def test_the_compiled_step_is_the_same(scratch, monkeypatch):
    monkeypatch.setitem(bench_tiny.SMALL, "num_hidden_layers", 1)
    name, one_layer = "transformers compiled", scratch / "one-layer"
    if why := CONTENDERS[name].why_not(task_of("electra-small", one_layer)):
        pytest.skip(why)
    oracle = step_of(BASELINE, "electra-small", one_layer).answer()
    step = step_of(name, "electra-small", one_layer)
    assert compare(step.answer(), oracle, oracle)[0] is None
    torch.compiler.reset()


def test_packed_and_padded_are_the_same_step(scratch):
    packed, padded = (
        step_of(name, "modernbert-base", scratch).answer() for name in (PACKED, PADDED)
    )
    torch.testing.assert_close(packed.loss, padded.loss)
    assert packed.gradients.keys() == padded.gradients.keys() and len(packed.gradients) == 11
    for name, gradient in packed.gradients.items():
        torch.testing.assert_close(gradient, padded.gradients[name])


@pytest.mark.parametrize("name", [PACKED, BASELINE])
def test_a_step_trains_and_an_answer_does_not(name, scratch):
    step = step_of(name, "bert-base", scratch)
    before = {n: p.detach().clone() for n, p in step.model.named_parameters()}
    first = step.answer()
    assert all(torch.equal(p, before[n]) for n, p in step.model.named_parameters())
    assert step.seconds(2) > 0
    moved = [n for n, p in step.model.named_parameters() if not torch.equal(p, before[n])]
    assert len(moved) > 0.9 * len(before)
    assert all(p.grad is None for p in step.model.parameters())
    # The rate is so small that it is still the same problem.
    assert first.loss * 0.999 < step.answer().loss < first.loss


def test_dropout_is_off_and_everyone_has_the_same_optimiser(scratch):
    for family in FAMILIES:
        made = [step_of(name, family, scratch) for name in (PACKED, BASELINE)]
        assert all(torch.equal(step.answer().loss, step.answer().loss) for step in made)
        ours, theirs = (step.optimiser for step in made)
        assert type(ours) is type(theirs) and ours.defaults == theirs.defaults
        sizes = [sum(p.numel() for p in step.model.parameters()) for step in made]
        assert sizes[0] == sizes[1], family


def test_three_in_ten_tokens_have_a_label(scratch):
    _, drawn = checkpoint("bert-base", scratch)
    rows = steps.labels(drawn)
    assert rows == steps.labels(dataclasses.replace(drawn)) and steps.labelled(drawn) == 42
    for ids, labels in zip(drawn.ids, rows, strict=True):
        assert all(label in (token, -100) for token, label in zip(ids, labels, strict=True))
    assert steps.labelled(dataclasses.replace(drawn, ids=((5,),))) == 1


def test_why_not(scratch):
    flash = CONTENDERS["transformers flash-attn 2"]
    task = task_of("bert-base", scratch)
    assert flash.why_not(task) == "runs on CUDA only"
    on_gpu = dataclasses.replace(task, device="cuda")
    assert "bfloat16" in flash.why_not(on_gpu)
    sparse = CONTENDERS["transformers sdpa sparse"]
    assert sparse.why_not(task) == "transformers' bert has no sparse_prediction"
    assert sparse.why_not(task_of("modernbert-base", scratch)) is None
    with pytest.raises(CannotRun, match="AlbertForMaskedLM has no gradient checkpointing"):
        step_of(CHECKPOINTED, "albert-base", scratch)
    slow = {c.name for c in step_contenders.ALL if c.slow}
    assert {"transformers eager", "transformers compiled", PADDED} <= slow and PACKED not in slow


def test_flops_are_three_times_the_forward(scratch):
    config = bench_tiny.written("electra-small", scratch / "flops").config
    forward = models_suite.flops(config, (40, 7))
    head = 14 * 2 * (64 * 32 + 32 * 1000)
    assert finetune_suite.step_flops(config, (40, 7), 14) == 3 * (forward + head)


@pytest.fixture
def suite(monkeypatch, tmp_path):
    """Runs the suite on a small ModernBERT; returns the records."""

    def run(*more: Contender, names=(PACKED,), records=None, **changes):
        table = CONTENDERS | {contender.name: contender for contender in more}
        monkeypatch.setattr(finetune_suite, "CONTENDERS", table)
        monkeypatch.setattr(models, "write", bench_tiny.written)
        small = {"mixed": bench_tiny.MIXED, "long": workloads.Workload("long", (600,), "")}
        monkeypatch.setattr(workloads, "WORKLOADS", small)
        names = (*names, *(contender.name for contender in more))
        options = Options(
            ("modernbert-base",), ("mixed",), names, ("float32",), "cpu", 1, 0.0, 2, False, False,
            tmp_path,
        )  # fmt: skip
        records = [] if records is None else records
        finetune_suite.run(dataclasses.replace(options, **changes), records.append, lambda text: 0)
        return records

    return run


def of(records, contender, workload="mixed"):
    (record,) = (r for r in records if (r["contender"], r["workload"]) == (contender, workload))
    return record


def changed(name: str, change) -> Contender:
    """Our packed contender after `change(step)`."""

    def build(task: Task) -> Engine:
        engine = CONTENDERS[PACKED].build(task)

        def ready(drawn):
            step = engine.ready(drawn)
            change(step)
            return step

        return Engine(ready, engine.ran)

    return Contender(name, build, lambda task: None)


def scaled_gradient(step) -> None:
    weight = step.model.get_parameter("encoder.layers.0.mlp.up.weight")
    weight.register_hook(lambda gradient: gradient * 1.1)


def no_gradient(step) -> None:
    step.model.get_parameter("encoder.layers.0.mlp.up.weight").requires_grad_(False)


def new_loss(change):
    def apply(step) -> None:
        loss = step.loss
        step.loss = lambda: change(loss())

    return apply


def out_of_memory(loss):
    raise MemoryError


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (scaled_gradient, "refused", "gradient of encoder.layers.0.mlp.up.weight"),
        (new_loss(lambda loss: loss + 1), "refused", "error of the loss"),
        (new_loss(lambda loss: loss * float("nan")), "refused", "not finite"),
        (no_gradient, "failed", "no gradient of encoder.layers.0.mlp.up.weight"),
        (new_loss(out_of_memory), "failed", "out of memory"),
    ],
)
def test_no_speed_for_a_wrong_step(suite, change, status, words):
    records = suite(changed("wrong", change))
    record = of(records, "wrong")
    assert record["status"] == status and words in record["reason"]
    assert "ms" not in record and of(records, PACKED)["status"] == "ok"


def test_records_and_memory(suite):
    options = {"names": (PACKED, "nobody"), "workloads": ("mixed", "long"), "memory": True}
    records = suite(**options, dtypes=("float32", "int8"))
    record, theirs = of(records, PACKED), of(records, BASELINE)
    assert (record["kind"], record["status"], record["reason"]) == ("step", "ok", None)
    assert (record["model"], record["dtype"]) == ("modernbert-base", "float32")
    assert [record[key] for key in ("texts", "longest", "tokens", "slots")] == [4, 90, 140, 360]
    assert record["tokens_per_s"] == pytest.approx(140 / record["ms"] * 1e3)
    assert record["rounds"] == 2 and record["baseline"] == BASELINE and record["roof"] > 0
    assert len(record["ratios"]) == record["steady"]
    assert theirs["ratios"] == [1.0] * theirs["steady"]
    assert record["error_rms"] <= 3 and record["error_loss"] <= 3 and record["cosine"] > 0.999
    assert record["ran"]["attention"] == "torch"
    assert of(records, None, "long")["reason"] == "modernbert-base takes 512 tokens at most"
    assert "takes no training step" in of(records, "nobody")["reason"]
    if memory.why_not() is None:
        assert record["memory_reason"] is None
        assert record["peak_mib"] > record["added_mib"] > 0
        # All logits, their fp32 copies and gradients, against those of labelled tokens alone.
        assert theirs["added_mib"] > record["added_mib"]


def test_float16_is_skipped_with_its_reason(suite):
    records = suite(dtypes=("float16",))
    assert {r["status"] for r in records} == {"skipped"} and len(records) == 2
    assert all("float16 would need loss scaling" in r["reason"] for r in records)


def test_a_memory_process_that_fails_leaves_the_time(suite):
    record = of(
        suite(changed("unknown to workers", lambda step: None), memory=True, names=()),
        "unknown to workers",
    )
    assert record["status"] == "ok" and record["ms"] > 0
    if memory.why_not() is None:
        assert record["peak_mib"] is None and "unknown to workers" in record["memory_reason"]


def test_interrupting_keeps_what_was_timed(suite, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(finetune_suite, "_memory", interrupted)
    records = []
    with pytest.raises(KeyboardInterrupt):
        suite(records=records, memory=True)
    assert of(records, PACKED)["status"] == of(records, BASELINE)["status"] == "ok"


def test_without_a_baseline_nobody_is_timed(suite, monkeypatch):
    def build(task: Task) -> Engine:
        if task.dtype == "bfloat16":
            raise MemoryError
        return CONTENDERS[BASELINE].build(task)

    records = suite(Contender(BASELINE, build, lambda task: None), dtypes=("bfloat16",))
    assert of(records, BASELINE)["status"] == "failed"
    assert of(records, PACKED)["status"] == "refused"
    assert "nothing to compare with" in of(records, PACKED)["reason"]


def test_a_worker_builds_what_its_task_names(scratch):
    _, drawn = checkpoint("bert-base", scratch)
    threads = torch.get_num_threads()
    task = StepTask(**vars(task_of("bert-base", scratch)), contender=PADDED)
    engine = step_contenders.build(task)
    assert torch.get_num_threads() == threads == 1
    plain = {f.name: getattr(drawn, f.name) for f in dataclasses.fields(drawn)}
    assert (
        engine.ready(SimpleNamespace(**plain)).answer().loss
        == step_of(PADDED, "bert-base", scratch).answer().loss
    )
