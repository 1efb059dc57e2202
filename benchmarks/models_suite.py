"""Models: contenders x workloads x dtype, interleaved in one process, right answers only."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch

from encoder_fast.benchmarks import models, workloads
from encoder_fast.benchmarks.accuracy import Verdict, judge, pool
from encoder_fast.benchmarks.contenders import BASELINE, CONTENDERS
from encoder_fast.benchmarks.engine import CannotRun, Contender, Engine, Task
from encoder_fast.benchmarks.memory_suite import measure_memory
from encoder_fast.benchmarks.options import Emit, Options, Tell
from encoder_fast.benchmarks.remote import RemoteEngine
from encoder_fast.benchmarks.timing import Control, Race, quartiles, race, reason
from encoder_fast.benchmarks.workloads import Workload
from encoder_fast.kernels import attention, linear, mlp


@dataclass
class Field:
    """The engines of one model and dtype, and why others are not among them."""

    written: models.Written
    dtype: str
    options: Options
    engines: dict[str, Engine] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)

    def task(self, dtype: str) -> Task:
        o = self.options
        return Task(self.written.name, self.written.folder, dtype, o.device, o.threads, o.scratch)

    def record(
        self, contender: str | None, workload: str | None, status: str, why: str | None = None
    ) -> dict:
        """What every record of this race holds."""
        return {
            "kind": "model",
            "model": self.written.name,
            "real_weights": self.written.real_weights,
            "workload": workload,
            "dtype": self.dtypes.get(contender, self.dtype),
            "race": self.dtype,
            "contender": contender,
            "status": status,
            "reason": why,
        }


def flops(config, lengths: tuple[int, ...]) -> int:
    """Floating-point operations of the encoder for its real tokens, from the ops' own costs."""
    T, W, H, D = sum(lengths), config.hidden_size, config.num_heads, config.head_width
    embedding = config.embedding_size
    total = 0 if embedding == W else linear.cost(T, embedding, W, 2).flops
    for layer in config.plan:
        total += linear.cost(T, W, 3 * W, 2).flops + linear.cost(T, W, W, 2).flops
        total += attention.cost(lengths, layer.half_window, H, D, 2).flops
        total += mlp.cost(T, W, config.intermediate_size, config.gated_mlp, 2).flops
    return total


def run(options: Options, emit: Emit, tell: Tell) -> None:
    """Every model and dtype; each finished cell is emitted at once, so that nothing is lost."""
    floats = [dtype for dtype in options.dtypes if dtype != "int8"]
    for name in options.models:
        tell(f"{name}: writing the checkpoint")
        written = models.write(name, options.scratch)
        wanted = [workloads.WORKLOADS[w] for w in options.workloads]
        good = [w for w in wanted if written.why_not(w) is None]
        for dtype in floats:
            entries = Field(written, dtype, options)
            for workload in wanted:
                if workload not in good:
                    why = written.why_not(workload)
                    emit(entries.record(None, workload.name, "skipped", why))
            if not good:
                continue
            try:
                _one_field(entries, good, emit, tell, int8=dtype == floats[0])
            except Exception as error:
                emit(entries.record(None, None, "failed", reason(error)))
            # Models hold cycles, and the next ones need their memory.
            gc.collect()


def _one_field(entries: Field, good: list, emit: Emit, tell: Tell, int8: bool) -> None:
    """Build, race and measure all engines of one model and dtype."""
    # Where int8 is asked for, int8 engines race in the first float dtype's rounds.
    int8 = int8 and "int8" in entries.options.dtypes
    with _built(entries, emit, tell, int8) as oracle:
        finished = []
        for workload in good:
            drawn = workloads.inputs(workload, entries.written.folder)
            finished += _one_workload(entries, oracle, workload, drawn, emit, tell)
    del oracle
    remote = {name for name, one in entries.engines.items() if isinstance(one, RemoteEngine)}
    # Beside them the process that is measured would have the less memory.
    entries.engines.clear()
    gc.collect()
    if entries.options.quick:
        finished = [cell for cell in finished if not CONTENDERS[cell[0]].from_text]
    if entries.options.memory:
        measure_memory(entries, good, finished, remote, emit, tell)


@contextmanager
def _built(entries: Field, emit: Emit, tell: Tell, int8: bool) -> Iterator[Engine]:
    """All engines that can be built, closed at the end; gives the oracle.

    Raises:
        RuntimeError: the baseline cannot run; without it there is neither check nor ratio.
        Exception: whatever its build raised.
    """
    with ExitStack() as stack:
        tell(f"{entries.written.name}: building the fp32 oracle")
        baseline = CONTENDERS[BASELINE]
        for task in (entries.task("float32"), entries.task(entries.dtype)):
            if why := baseline.why_not(task):
                raise RuntimeError(f"{BASELINE}, the baseline of all ratios, cannot run: {why}")
        oracle = baseline.build(entries.task("float32"))
        stack.callback(oracle.close)
        for name in dict.fromkeys((BASELINE, *entries.options.contenders)):
            contender = CONTENDERS[name]
            try:
                dtype, why = _dtype_of(contender, entries, int8)
                if dtype is None:
                    emit(entries.record(name, None, "skipped", why))
                    continue
                tell(f"{entries.written.name} {dtype}: building {name}")
                entries.dtypes[name] = dtype
                entries.engines[name] = contender.build(entries.task(dtype))
            except Exception as error:
                if name == BASELINE:
                    raise
                emit(entries.record(name, None, "failed", reason(error)))
                continue
            stack.callback(entries.engines[name].close)
        yield oracle


def _dtype_of(contender: Contender, entries: Field, int8: bool) -> tuple[str | None, str | None]:
    """The dtype that a contender runs in here: the race's, or int8 where that was asked for. None
    and the reasons where it runs in neither.
    """
    reasons = {}
    for dtype in (entries.dtype, "int8") if int8 else (entries.dtype,):
        why = contender.why_not(entries.task(dtype))
        if why is None:
            return dtype, None
        reasons.setdefault(why, dtype)
    if len(reasons) == 1:
        return None, next(iter(reasons))
    return None, "; ".join(f"in {dtype}: {why}" for why, dtype in reasons.items())


def _one_workload(entries, oracle, workload, drawn, emit, tell) -> list[tuple[str, str]]:
    """Check every engine, race the good ones, emit their records; returns (contender, workload) of
    those that were timed.
    """
    label = f"{entries.written.name} {entries.dtype} {workload.name}"
    tell(f"{label}: the fp32 answer")
    try:
        wanted = oracle.ready(drawn).output()
    except Exception as error:
        why = f"the fp32 run of {BASELINE} that all are compared with failed: {reason(error)}"
        emit(entries.record(None, workload.name, "failed", why))
        return []
    ready, verdicts, theirs = {}, {}, None
    for name, engine in entries.engines.items():
        tell(f"{label}: checking {name}")
        try:
            one = engine.ready(drawn)
            output = one.output()
        except CannotRun as error:
            emit(entries.record(name, workload.name, "skipped", str(error)))
            continue
        except Exception as error:
            emit(entries.record(name, workload.name, "failed", reason(error)))
            continue
        baseline = output if name == BASELINE else theirs
        verdict = _verdict(output, wanted, baseline, drawn, one.pooled, entries.dtypes[name])
        if verdict.reason is None:
            ready[name], verdicts[name] = one, verdict
            # Only a good one: an error of three times NaN would allow any.
            theirs = output if name == BASELINE else theirs
        else:
            refused = entries.record(name, workload.name, "refused", verdict.reason)
            emit(refused | _accuracy(verdict))
    if BASELINE not in ready:
        return []
    control = Control(getattr(torch, entries.dtype), entries.options.device)
    options = entries.options
    result = race(ready, control, options.seconds, options.rounds, lambda t: tell(f"{label}, {t}"))
    for name in ready:
        emit(_timed(entries, name, workload, result, control, verdicts[name]))
    return [(name, workload.name) for name in ready if name not in result.failures]


def _verdict(output, wanted, theirs, drawn, pooled: bool, dtype: str) -> Verdict:
    if theirs is None:
        return Verdict("the baseline failed here, so there is nothing to compare with")
    if pooled:
        wanted, theirs = pool(wanted, drawn.lengths), pool(theirs, drawn.lengths)
    return judge(output, wanted, theirs, dtype == "int8")


def _accuracy(verdict: Verdict) -> dict:
    return {
        "error_largest": verdict.largest,
        "error_rms": verdict.rms,
        "cosine": verdict.cosine,
    }


def _timed(entries: Field, name: str, workload, result: Race, control, verdict: Verdict) -> dict:
    """The record of one cell that was raced."""
    base = entries.record(name, workload.name, "ok") | _accuracy(verdict)
    if name in result.failures:
        return base | {"status": "failed", "reason": result.failures[name]}
    needed = flops(entries.written.config, workload.lengths)
    about = {"ran": entries.engines[name].ran, "note": CONTENDERS[name].note}
    return base | about | speed_keys(result, name, BASELINE, workload, needed, control)


def speed_keys(
    result: Race, name: str, baseline: str, workload: Workload, needed: int, control: Control
) -> dict:
    """Sizes, times and ratios of one contender that was raced, for a record; `needed` are the
    floating-point operations of one call.
    """
    seconds, ratios = result.median_seconds(name, baseline), result.ratios(name, baseline)
    low, middle, high = quartiles(ratios) if ratios else (None, None, None)
    times = quartiles(sorted(block.seconds * 1e3 for block in result.blocks[name] if block))
    return workload.counts | {
        "tokens_per_s": workload.tokens / seconds,
        "slots_per_s": workload.slots / seconds,
        "roof": needed / control.flops / result.in_controls(name),
        "ms": seconds * 1e3,
        "ms_low": times[0],
        "ms_high": times[2],
        "baseline": baseline,
        "ratio": middle,
        "ratio_low": low,
        "ratio_high": high,
        "ratios": ratios,
        "rounds": len(result.blocks[name]),
        "steady": len(result.steady(name, baseline)),
        "control_ms": result.control_seconds(name) * 1e3,
    }
