"""Finetune: one training step, contenders x workloads x dtype; right gradients only.

As in the models suite, everyone takes turns within a round, and the step of transformers with SDPA
is what ratios refer to. The oracle is transformers' fp32 step: the loss and each compared gradient
(steps.py) may be three times as far from it, by root mean square, as those of transformers in the
dtype of the race. Engines are built for one workload and dropped after it: weights, gradients and
optimiser states of several contenders are what fills the memory here.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from encoder_fast.benchmarks import memory, models, step_contenders, steps, workloads
from encoder_fast.benchmarks.accuracy import LIMIT, judge
from encoder_fast.benchmarks.engine import CannotRun, Engine, Task
from encoder_fast.benchmarks.models_suite import flops, speed_keys
from encoder_fast.benchmarks.options import Emit, Options, Tell
from encoder_fast.benchmarks.remote import HERE, remote_engine
from encoder_fast.benchmarks.step_contenders import BASELINE, CONTENDERS, StepTask
from encoder_fast.benchmarks.steps import Answer, Step
from encoder_fast.benchmarks.timing import Control, Race, race, reason
from encoder_fast.benchmarks.workloads import Inputs, Workload
from encoder_fast.kernels import linear


@dataclass
class Cell:
    """One model, dtype and workload: who runs in it and what their check gave."""

    written: models.Written
    folder: Path
    dtype: str
    workload: Workload
    options: Options
    engines: dict[str, Engine] = field(default_factory=dict)
    ready: dict[str, Step] = field(default_factory=dict)
    checks: dict[str, dict] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.written.name} {self.dtype} {self.workload.name} training"

    def task(self, dtype: str) -> Task:
        o = self.options
        return Task(self.written.name, self.folder, dtype, o.device, o.threads, o.scratch)

    def record(self, contender: str | None, status: str, why: str | None = None) -> dict:
        """What every record of this cell holds."""
        return {
            "kind": "step",
            "model": self.written.name,
            "real_weights": self.written.real_weights,
            "workload": self.workload.name,
            "dtype": self.dtype,
            "contender": contender,
            "status": status,
            "reason": why,
        }

    def drop(self, name: str) -> None:
        """Free a contender that was built."""
        self.ready.pop(name, None)
        if name in self.engines:
            self.engines.pop(name).close()
        _collect(self.options.device)


def run(options: Options, emit: Emit, tell: Tell) -> None:
    """Every model, dtype and workload; the records of a cell are emitted when it is done, or with
    what it has when it is interrupted.
    """
    scratch = options.scratch / "finetune"
    for name in options.models:
        tell(f"{name}: writing the checkpoint")
        written = models.write(name, scratch)
        folder = steps.write(written, scratch)
        for dtype in (d for d in options.dtypes if d != "int8"):
            for workload in (workloads.WORKLOADS[w] for w in options.workloads):
                cell = Cell(written, folder, dtype, workload, options)
                if why := written.why_not(workload):
                    emit(cell.record(None, "skipped", why))
                else:
                    _one_cell(cell, emit, tell)


def _one_cell(cell: Cell, emit: Emit, tell: Tell) -> None:
    drawn = workloads.inputs(cell.workload, cell.written.folder)
    with _released(cell):
        names = _taking_part(cell, emit)
        if BASELINE in names:
            _check_all(cell, names, drawn, emit, tell)
        records = _raced(cell, steps.labelled(drawn), tell)
    try:
        for record in records if cell.options.memory else ():
            if record["status"] == "ok":
                tell(f"{cell.label}: memory of {record['contender']}")
                record |= _memory(cell, record["contender"], drawn)
    finally:
        for record in records:
            emit(record)


def _taking_part(cell: Cell, emit: Emit) -> list[str]:
    """The baseline first, then who was asked for; those that cannot are emitted as skipped."""
    asked = cell.options.contenders or [c.name for c in step_contenders.ALL if not c.slow]
    names = []
    for name in dict.fromkeys((BASELINE, *asked)):
        if name not in CONTENDERS:
            why = f"takes no training step here; {', '.join(CONTENDERS)} do"
        else:
            why = CONTENDERS[name].why_not(cell.task(cell.dtype))
        if why is None:
            names.append(name)
        else:
            emit(cell.record(name, "skipped", why))
    return names


@contextmanager
def _released(cell: Cell) -> Iterator[None]:
    """Drops all engines of the cell at the end, however it comes."""
    try:
        yield
    finally:
        for name in list(cell.engines):
            cell.drop(name)


def _collect(device: str) -> None:
    # Models hold cycles, and torch keeps memory of the device that the next process needs.
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def _check_all(cell: Cell, names: list[str], drawn: Inputs, emit: Emit, tell: Tell) -> None:
    """Build everyone and compare their gradients; the good ones stay in the cell."""
    tell(f"{cell.label}: the fp32 answer")
    try:
        oracle = CONTENDERS[BASELINE].build(cell.task("float32")).ready(drawn).answer()
    except Exception as error:
        why = f"the fp32 step of {BASELINE} that all are compared with failed: {reason(error)}"
        emit(cell.record(None, "failed", why))
        return
    finally:
        _collect(cell.options.device)
    theirs = None
    for name in names:
        tell(f"{cell.label}: checking {name}")
        if theirs is None and name != BASELINE:
            why = "the baseline failed here, so there is nothing to compare with"
            emit(cell.record(name, "refused", why))
            continue
        answer = _answer(cell, name, drawn, emit)
        if answer is None:
            cell.drop(name)
            continue
        theirs = answer if name == BASELINE else theirs
        why, cell.checks[name] = compare(answer, oracle, theirs)
        if why is not None:
            emit(cell.record(name, "refused", why) | cell.checks[name])
            cell.drop(name)


def _answer(cell: Cell, name: str, drawn: Inputs, emit: Emit) -> Answer | None:
    """Build an engine into the cell and take its answer; None and a record where it has none."""
    try:
        cell.engines[name] = CONTENDERS[name].build(cell.task(cell.dtype))
        cell.ready[name] = cell.engines[name].ready(drawn)
        return cell.ready[name].answer()
    except CannotRun as error:
        emit(cell.record(name, "skipped", str(error)))
    except Exception as error:
        emit(cell.record(name, "failed", reason(error)))
    return None


def compare(answer: Answer, oracle: Answer, baseline: Answer) -> tuple[str | None, dict]:
    """Why an answer is refused, or None, and its errors for the record.

    Args:
        baseline: transformers' answer in the dtype of the race.

    "error_loss" and "error_rms" (the worst gradient's) are multiples of the baseline's error, both
    with accuracy.py's floor; "cosine" is the worst gradient's.
    """
    loss = judge(*(a.loss.reshape(1) for a in (answer, oracle, baseline)), int8=False)
    verdicts = {"loss": loss}
    for name in oracle.gradients:
        verdicts[name] = judge(*(a.gradients[name] for a in (answer, oracle, baseline)), int8=False)
    for name, verdict in verdicts.items():
        if verdict.rms is None:
            return f"{name}: {verdict.reason}", {}
    worst = max(verdicts, key=lambda name: verdicts[name].rms)
    gradients = [verdict for name, verdict in verdicts.items() if name != "loss"]
    numbers = {
        "error_loss": loss.rms,
        "error_largest": None,
        "error_rms": max(verdict.rms for verdict in gradients),
        "cosine": min(verdict.cosine for verdict in gradients),
    }
    rms = verdicts[worst].rms
    if rms <= LIMIT:
        return None, numbers
    what = "loss" if worst == "loss" else f"gradient of {worst}"
    return f"error of the {what} {rms:.1f}x that of the baseline, {LIMIT:g}x allowed", numbers


def _raced(cell: Cell, labelled: int, tell: Tell) -> list[dict]:
    """The records of those that were timed or failed while they were."""
    if BASELINE not in cell.ready:
        return []
    options = cell.options
    control = Control(getattr(torch, cell.dtype), options.device)
    told = lambda text: tell(f"{cell.label}, {text}")  # noqa: E731
    result = race(cell.ready, control, options.seconds, options.rounds, told)
    needed = step_flops(cell.written.config, cell.workload.lengths, labelled)
    return [_timed(cell, name, result, control, needed) for name in cell.ready]


def step_flops(config, lengths: tuple[int, ...], labelled: int) -> int:
    """Floating-point operations of forward and backward for the real tokens, and of the head for
    the labelled ones: the backward of a product is two of its size.
    """
    E = config.embedding_size
    head = linear.cost(labelled, config.hidden_size, E, 2).flops
    head += linear.cost(labelled, E, config.vocab_size, 2).flops
    return 3 * (flops(config, lengths) + head)


def _timed(cell: Cell, name: str, result: Race, control: Control, needed: int) -> dict:
    base = cell.record(name, "ok") | cell.checks[name]
    if name in result.failures:
        return base | {"status": "failed", "reason": result.failures[name]}
    return base | {
        "ran": cell.engines[name].ran,
        "note": CONTENDERS[name].note,
        "peak_mib": None,
        "added_mib": None,
        "memory_reason": None,
        **speed_keys(result, name, BASELINE, cell.workload, needed, control),
    }


def _memory(cell: Cell, name: str, drawn: Inputs) -> dict:
    """Peak memory of one step in a process of its own, beyond weights and optimiser states."""
    if why := memory.why_not(cell.options.device):
        return {"memory_reason": why}
    task = StepTask(**vars(cell.task(cell.dtype)), contender=name)
    try:
        engine = remote_engine(HERE, Path(step_contenders.__file__), task)
        try:
            (measured,) = engine.memory([drawn])
        finally:
            engine.close()
    except (CannotRun, MemoryError, RuntimeError) as error:
        return {"memory_reason": reason(error)}
    return {"memory_reason": measured["reason"]} if "reason" in measured else measured
