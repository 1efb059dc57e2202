"""Every op x backend x shape x dtype x pass, timed by pytest-benchmark.

    python -m pytest benchmarks/bench_ops.py --benchmark-json=a.json
    python -m pytest benchmarks/bench_ops.py --op-names attention,mlp --op-workloads 8x512
    python -m pytest benchmarks/bench_ops.py --benchmark-autosave, later --benchmark-compare
    python benchmarks/compare.py a.json b.json

The cells come from the op tables and op_shapes.py: a new backend or op is here by itself. Before a
cell is timed its answer is checked (op_check.py); a wrong one gets no number. The roof that a time
is compared with is measured once a dtype, and the control of timing.py runs before and after.
"""

from functools import cache

import pytest
import torch
from torch import Tensor

from encoder_fast.benchmarks import op_check, roof
from encoder_fast.benchmarks.op_plugin import LINES, PLAN, cell_id
from encoder_fast.benchmarks.op_shapes import OpShape
from encoder_fast.benchmarks.op_subjects import PASSES, Subject
from encoder_fast.benchmarks.timing import Clock, Control

SHORTEST_ROUND_S = 0.001
"""A round holds as many calls as fill this."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    plan = metafunc.config.stash[PLAN]
    clock = Clock(plan.device)

    def now() -> float:
        clock.wait()
        return clock.now()

    cells = list(plan.cells())
    if after := metafunc.config.getoption("op_after"):
        names = [cell_id(cell) for cell in cells]
        cells = cells[names.index(after) + 1 :]
    given = []
    for cell in cells:
        op, _, *rest = cell
        group = " ".join((op, *rest)) if all(rest) else op
        mark = pytest.mark.benchmark(group=group, timer=now, min_time=SHORTEST_ROUND_S)
        given.append(pytest.param(*cell, id=cell_id(cell), marks=mark))
    metafunc.parametrize("op, backend, shape, dtype, passes", given)


@cache
def control_of(dtype: torch.dtype, device: str) -> Control:
    return Control(dtype, device)


@pytest.fixture(scope="session")
def roof_of(request):
    """Function: dtype -> the measured roof."""
    config = request.config
    device, seconds = config.stash[PLAN].device, config.getoption("op_roof_seconds")

    @cache
    def measured(dtype: torch.dtype) -> roof.Roof:
        found = roof.measure(dtype, device, seconds, control=control_of(dtype, device))
        config.stash[LINES].write(found.record())
        return found

    return measured


@pytest.fixture
def cell(request, op, backend, shape, dtype, passes) -> tuple[Subject, OpShape, torch.dtype]:
    """Skips, with the backend's own reason, what it does not do."""
    plan = request.config.stash[PLAN]
    now = (op, backend, shape, dtype, passes)
    request.config.stash[LINES].write({"kind": "now", "cell": now})
    subject = plan.subjects(op)[backend]
    if reason := subject.absent(plan.device):
        pytest.skip(reason)
    if shape is None:
        pytest.skip(f"op_shapes.py has no inputs for {op}")
    found, dtype = plan.shapes(op)[shape], getattr(torch, dtype)
    if reason := subject.why_not(found, dtype, plan.device, passes):
        pytest.skip(reason)
    return subject, found, dtype


def check(subject: Subject, shape: OpShape, dtype: torch.dtype, device: str, passes: str) -> None:
    """Fail unless the answer is as good as plain torch's."""
    checked = shape.checked or shape
    wanted = op_check.expected(checked, dtype, device, passes == PASSES[1])
    ours = subject.answer(op_check.arguments(checked, dtype, device), wanted)
    if found := op_check.fault(shape.op, ours, wanted):
        pytest.fail(op_check.WRONG + found, pytrace=False)


def is_finite(output) -> bool:
    """Of whatever a call returned."""
    given = output if isinstance(output, tuple) else (output,)
    return all(bool(x.isfinite().all()) for x in given if isinstance(x, Tensor))


def test_op(benchmark, request, roof_of, cell, passes):
    subject, shape, dtype = cell
    device = request.config.stash[PLAN].device
    check(subject, shape, dtype, device, passes)
    roof_now, control = roof_of(dtype), control_of(dtype, device)
    call = subject.call(op_check.arguments(shape, dtype, device), passes)
    # The first calls pack weights, compile or choose kernels.
    for _ in range(2):
        call()
    before = control.seconds()
    output = benchmark(call)
    after = control.seconds()
    if not is_finite(output):
        pytest.fail(f"{op_check.WRONG}numbers that are not finite", pytrace=False)
    if benchmark.stats is None:
        return
    found, cost, control_s = benchmark.stats.stats, shape.cost(dtype, passes), (before + after) / 2
    benchmark.extra_info |= {
        "op": subject.op,
        "backend": subject.name,
        "shape": shape.name,
        "dtype": str(dtype).removeprefix("torch."),
        "pass": passes,
        "device": device,
        "ms": found.median * 1e3,
        "ms_low": found.q1 * 1e3,
        "ms_high": found.q3 * 1e3,
        "flops": cost.flops,
        "bytes": cost.bytes,
        "flops_per_s": cost.flops / found.median,
        "bytes_per_s": cost.bytes / found.median,
        "roof": roof_now.in_phase(control_s).fraction(cost, found.median),
        "control_s": control_s,
        "control_before_s": before,
        "control_after_s": after,
        "threads": torch.get_num_threads(),
        "checked_on": shape.name if shape.checked is None else shape.checked.name,
    }
