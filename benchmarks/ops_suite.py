"""Ops: runs bench_ops.py under pytest in a process of its own and passes its records on."""

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from encoder_fast.benchmarks.op_peers import PEERS
from encoder_fast.benchmarks.options import Emit, Options, Tell
from encoder_fast.kernels import dispatch

BENCH = Path(__file__).with_name("bench_ops.py")
QUICK_WORKLOADS = ("8x128", "1x2048")
LOOK_EVERY_S = 0.2


def check_packages() -> None:
    """
    Raises:
        ModuleNotFoundError: pytest or pytest-benchmark is missing.
    """
    for package in ("pytest", "pytest_benchmark"):
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(
                f"the ops suite needs {package}: pip install 'encoder-fast[bench]'"
            )


def op_names() -> tuple[str, ...]:
    """What can be chosen as `ops`."""
    return tuple(dispatch.op_tables())


def backend_names() -> tuple[str, ...]:
    """What can be chosen as `backends`: ours that have an op, then peers."""
    own = [name for table in dispatch.op_tables().values() for name in table]
    return (*dict.fromkeys(own), *dict.fromkeys(peer.name for peer in PEERS))


def run(
    options: Options,
    emit: Emit,
    tell: Tell,
    ops: tuple[str, ...] = (),
    backends: tuple[str, ...] = (),
) -> None:
    """Emit a "roof" record for each dtype and an "op" record for each cell, as they are measured.

    Empty `ops` and `backends` mean all. A quick run times forwards of two workloads, without the
    specification. A cell that takes the process down is one failed cell: the rest goes on in a new
    process.

    Raises:
        RuntimeError: pytest could not start, or died beside a cell, with its last lines.
    """
    watch = _Watch(emit, tell, options.scratch / "ops.jsonl")
    command = _command(options, ops, backends, watch.lines)
    log = options.scratch / "ops.log"
    more = []
    while True:
        status = _watched([*command, *more], log, watch)
        if status >= 0:
            break
        died = watch.lost(f"the process died of signal {-status}")
        if died is None:
            break
        more = ["--op-after", died]
    if status not in (0, 1, 5):
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:]
        raise RuntimeError(f"pytest ended with status {status}: " + " / ".join(tail))


def _command(options: Options, ops, backends, lines: Path) -> list[str]:
    floats = [dtype for dtype in options.dtypes if dtype != "int8"]
    chosen = {
        "--op-names": ops,
        "--op-models": options.models,
        "--op-workloads": options.workloads or (QUICK_WORKLOADS if options.quick else ()),
        "--op-dtypes": floats,
        "--op-passes": ("forward",) if options.quick else (),
        "--op-backends": backends or _backends(options),
        "--op-device": (options.device,),
        "--op-threads": (str(options.threads),),
        "--op-roof-seconds": (str(options.seconds / 10),),
        "--op-lines": (str(lines),),
        "--benchmark-json": (str(lines.with_suffix(".json")),),
        "--benchmark-max-time": (str(options.seconds / 40),),
        "--benchmark-min-rounds": (str(options.rounds),),
    }
    command = [sys.executable, "-I", "-m", "pytest", str(BENCH)]
    command += ["--import-mode=importlib", "-p", "no:cacheprovider", "-q"]
    command += [f"{option}={','.join(values)}" for option, values in chosen.items() if values]
    return command if options.quick else [*command, "--op-slow"]


def _backends(options: Options) -> tuple[str, ...]:
    """Names for --op-backends; none means all."""
    if not options.quick:
        return ()
    left_out = {peer.name for peer in PEERS if peer.slow} | {"reference"}
    return tuple(name for name in backend_names() if name not in left_out)


class _Watch:
    """Reads the file that the child writes, and passes on what is new."""

    def __init__(self, emit: Emit, tell: Tell, lines: Path):
        self.emit, self.tell, self.lines = emit, tell, lines
        self.cell: list | None = None
        self.roofs: set[str] = set()
        self.start()

    def start(self) -> None:
        """A new child begins its file anew."""
        self.lines.write_text("", encoding="utf-8")
        self.read = 0

    def look(self) -> None:
        for record in self._new():
            if record["kind"] == "now":
                self.cell = record["cell"]
                self.tell("ops: " + " ".join(part for part in self.cell if part))
            elif record["kind"] == "roof":
                if record["dtype"] not in self.roofs:
                    self.emit(record)
                self.roofs.add(record["dtype"])
            else:
                self.cell = None
                self.emit(record)

    def _new(self) -> Iterator[dict]:
        with open(self.lines, encoding="utf-8") as file:
            file.seek(self.read)
            text = file.read()
        # A line that is still being written has no end yet.
        whole = text[: text.rfind("\n") + 1]
        self.read += len(whole.encode())
        yield from map(json.loads, whole.splitlines())

    def lost(self, reason: str) -> str | None:
        """Emit the cell that was running when the child died; returns its name."""
        from encoder_fast.benchmarks.op_plugin import cell_id

        if self.cell is None:
            return None
        keys = ("op", "backend", "shape", "dtype", "pass")
        record = dict(zip(keys, self.cell, strict=True))
        self.emit({"kind": "op", **record, "status": "failed", "reason": reason})
        return cell_id(tuple(self.cell))


def _watched(command: list[str], log: Path, watch: _Watch) -> int:
    """Exit status of the child. However this ends, what was measured has been emitted and the child
    is gone.
    """
    watch.start()
    with open(log, "w", encoding="utf-8") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)
        try:
            while child.poll() is None:
                watch.look()
                time.sleep(LOOK_EVERY_S)
        finally:
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(5)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
            watch.look()
    return child.returncode
