"""What pytest needs for bench_ops.py: options, the list of cells, and one record a cell, written as
soon as it is known, since pytest-benchmark writes its own file only when all is done.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from encoder_fast.benchmarks import models, op_check, op_shapes, workloads
from encoder_fast.benchmarks.op_subjects import PASSES, Subject, subjects
from encoder_fast.benchmarks.workloads import Workload
from encoder_fast.kernels import dispatch

DTYPES = ("float32", "bfloat16", "float16")
PLAN = pytest.StashKey["Plan"]()
LINES = pytest.StashKey["Lines"]()


@dataclass(frozen=True)
class Plan:
    """What the options choose. Empty `backends` means all but slow peers."""

    ops: tuple[str, ...]
    models: tuple[str, ...]
    workloads: tuple[Workload, ...]
    dtypes: tuple[str, ...]
    passes: tuple[str, ...]
    backends: tuple[str, ...]
    device: str
    slow: bool

    def shapes(self, op: str) -> dict[str, op_shapes.OpShape]:
        """Inputs of one op by name; what two models share comes once."""
        if op not in op_shapes.BUILDERS:
            return {}
        configs = [op_shapes.config_of(model) for model in self.models]
        found = [
            shape
            for workload in self.workloads
            for config in configs
            for shape in op_shapes.shapes(op, config, workload)
        ]
        return {shape.name: shape for shape in found}

    def subjects(self, op: str) -> dict[str, Subject]:
        """Who is timed on one op."""
        wanted = {subject.name: subject for subject in subjects(op)}
        if self.backends:
            return {name: s for name, s in wanted.items() if name in self.backends}
        return {name: s for name, s in wanted.items() if self.slow or not s.slow}

    def cells(self) -> Iterator[tuple[str, str, str | None, str | None, str | None]]:
        """(op, backend, shape, dtype, passes), backends innermost: they share one oracle.

        Who is absent from this machine is one cell, and so is an op without inputs.
        """
        for op in self.ops:
            found = self.subjects(op)
            there = {name: s for name, s in found.items() if s.absent(self.device) is None}
            yield from ((op, name, None, None, None) for name in found if name not in there)
            shapes = self.shapes(op)
            if not shapes and op not in op_shapes.BUILDERS:
                yield from ((op, name, None, None, None) for name in there)
            for shape in shapes:
                for dtype in self.dtypes:
                    for passes in self.passes:
                        yield from ((op, name, shape, dtype, passes) for name in there)


class Lines:
    """Appends records to a file, each line whole; without a file it does nothing."""

    def __init__(self, path: str | None):
        self.path = path
        if path:
            Path(path).write_text("", encoding="utf-8")

    def write(self, record: dict) -> None:
        if self.path:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("encoder_fast ops", "what bench_ops.py times").addoption
    several = {"default": "", "metavar": "A,B"}
    add("--op-names", help="ops, with commas between them (default: all)", **several)
    add("--op-models", help=f"default: {','.join(op_shapes.MODELS)}", **several)
    add("--op-workloads", help=f"default: {','.join(op_shapes.WORKLOADS)}", **several)
    add("--op-dtypes", help="default: float32,bfloat16; on cuda also float16", **several)
    add("--op-passes", help=f"default: {','.join(PASSES)}", **several)
    add("--op-backends", help="backends and peers (default: all but slow peers)", **several)
    add("--op-slow", action="store_true", help="also peers that take long to build")
    add("--op-device", default="cpu", help="cpu (default), cuda, cuda:1, ...")
    add("--op-threads", type=int, help="threads of torch (default: torch's own choice)")
    add("--op-roof-seconds", type=float, default=1.0, help="time to measure each roof")
    add("--op-after", metavar="ID", help="leave out this cell and all before it")
    add("--op-lines", metavar="FILE", help="write each record as a JSON line when it is known")


def cell_id(cell: tuple[str | None, ...]) -> str:
    """Name of a cell in pytest's brackets."""
    return "-".join(part.replace(" ", "_") for part in cell if part)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[PLAN] = _plan(config)
    config.stash[LINES] = Lines(config.getoption("op_lines"))
    if threads := config.getoption("op_threads"):
        torch.set_num_threads(threads)


def _plan(config: pytest.Config) -> Plan:
    device = config.getoption("op_device")
    usual = DTYPES if torch.device(device).type == "cuda" else DTYPES[:2]
    tables = dispatch.op_tables()
    backends = {s.name for op in tables for s in subjects(op)}
    named = _chosen(config, "op_workloads", workloads.WORKLOADS, op_shapes.WORKLOADS)
    return Plan(
        ops=_chosen(config, "op_names", tables, tuple(tables)),
        models=_chosen(config, "op_models", models.CONFIGS, op_shapes.MODELS),
        workloads=tuple(workloads.WORKLOADS[name] for name in named),
        dtypes=_chosen(config, "op_dtypes", DTYPES, usual),
        passes=_chosen(config, "op_passes", PASSES, PASSES),
        backends=_chosen(config, "op_backends", backends, ()),
        device=device,
        slow=config.getoption("op_slow"),
    )


def _chosen(config: pytest.Config, option: str, allowed, default: tuple) -> tuple[str, ...]:
    given = [name for name in config.getoption(option).split(",") if name]
    if unknown := [name for name in given if name not in allowed]:
        flag = "--" + option.replace("_", "-")
        raise pytest.UsageError(
            f"{flag}: got {', '.join(unknown)}; allowed: {', '.join(sorted(allowed))}"
        )
    return tuple(given) or default


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """One record a cell: a time, or why there is none."""
    report = yield
    if "passes" in getattr(item, "fixturenames", ()) and (
        report.when == "call" or (report.when == "setup" and not report.passed)
    ):
        record = _record(item, report)
        if record:
            item.config.stash[LINES].write(record)
    return report


def _record(item: pytest.Function, report: pytest.TestReport) -> dict | None:
    given = item.callspec.params
    record = {"kind": "op", **{n: given[n] for n in ("op", "backend", "dtype", "shape")}}
    record["pass"] = given["passes"]
    if report.skipped:
        return record | {"status": "skipped", "reason": _skip_reason(report)}
    if report.failed:
        error = report.longrepr
        message = getattr(getattr(error, "reprcrash", None), "message", None) or str(error)
        text = " ".join(message.split()).removeprefix("Failed: ")[:300]
        refused = text.startswith(op_check.WRONG)
        return record | {"status": "refused" if refused else "failed", "reason": text}
    benchmark = item.funcargs["benchmark"]
    if benchmark.stats is None:
        return None
    return record | dict(benchmark.extra_info) | {"status": "ok", "reason": None}


def _skip_reason(report: pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")
