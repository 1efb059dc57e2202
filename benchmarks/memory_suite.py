"""Peak memory of one forward: each contender alone in a process of its own."""

from encoder_fast.benchmarks import memory, workloads
from encoder_fast.benchmarks.contenders import CONTENDERS
from encoder_fast.benchmarks.options import Emit, Tell
from encoder_fast.benchmarks.remote import HERE, RemoteEngine, remote_engine
from encoder_fast.benchmarks.timing import reason


def measure_memory(
    entries, wanted: list, finished: list, remote: set, emit: Emit, tell: Tell
) -> None:
    """Records for the (contender, workload) in `finished`, smallest input first: what a process
    has once taken, it may keep.

    Args:
        entries: the `models_suite.Field` that was raced.
        wanted: its workloads.
        remote: names of the contenders that live in a process of their own anyway.
    """
    if why := memory.why_not(entries.options.device):
        tell(f"no memory figures: {why}")
        return
    ordered = sorted(wanted, key=lambda workload: workload.slots)
    for name in dict.fromkeys(name for name, _ in finished):
        mine = [w for w in ordered if (name, w.name) in finished]
        if not mine:
            continue
        tell(f"{entries.written.name}: memory of {name}")
        drawn = [workloads.inputs(w, entries.written.folder) for w in mine]
        found, why = [{}] * len(mine), None
        try:
            engine = _alone(entries, name, name in remote)
            try:
                found = engine.memory(drawn)
            finally:
                engine.close()
        except Exception as error:
            why = reason(error)
        for workload, numbers in zip(mine, found, strict=True):
            fault = why or numbers.get("reason")
            base = entries.record(name, workload.name, "failed" if fault else "ok", fault)
            emit(base | workload.counts | numbers | {"kind": "memory", "reason": fault})


def _alone(entries, name: str, remote: bool) -> RemoteEngine:
    """One contender in a process of its own."""
    task = entries.task(entries.dtypes[name])
    if remote:
        return CONTENDERS[name].build(task)
    return remote_engine(HERE, name, task)
