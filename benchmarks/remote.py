"""An engine in a process of its own: other packages than ours, or nothing but this engine in
memory. The process runs worker.py.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from encoder_fast.benchmarks.engine import CannotRun, Engine, Task
from encoder_fast.benchmarks.workloads import Inputs

HERE = (sys.executable, "-I")
"""The Python that runs us."""
BUILD_LIMIT_S = 15 * 60
_LAST_WORDS = 600
"""Characters of the worker's output in an error: the end says why it died."""
_LOOK_S = 0.5
"""How often a waiting parent looks whether its worker lives; the answer itself wakes it at once."""


@dataclass
class RemoteReady:
    """An engine in a worker with one input: what `engine.Ready` is here."""

    worker: "Worker"
    number: int
    pooled: bool

    def output(self) -> Tensor:
        """One run, read: as `engine.Ready.output`."""
        shape, values = self.worker.ask("output", self.number)
        return torch.frombuffer(bytearray(values), dtype=torch.float32).reshape(shape)

    def seconds(self, repeats: int = 1) -> float:
        """Wall seconds of `repeats` runs, taken in the worker."""
        return self.worker.ask("seconds", self.number, repeats)


@dataclass
class RemoteEngine(Engine):
    """`memory(inputs)` gives "added_mib" and "peak_mib" of one run of each input (memory.py), or
    the "reason" why it failed.
    """

    memory: Callable[[Sequence[Inputs]], list[dict]] = field(kw_only=True)


def remote_engine(
    command: Sequence[str],
    what: str | Path,
    task: Task,
    env: dict[str, str] | None = None,
    build_limit_s: float = BUILD_LIMIT_S,
) -> RemoteEngine:
    """Build an engine in a new process. `close` ends the process, as do the end of this one and
    Ctrl-C during a call.

    Args:
        command: absolute path of a Python, and its options; `HERE` is our own.
        what: name of a contender, or path of an engine file (worker.py).
        env: variables beside those of this process.

    Raises:
        CannotRun, MemoryError: as raised in the worker.
        RuntimeError: anything else that the worker raised, its death, or no engine in
            `build_limit_s` seconds. The calls of the engine raise the same.
    """
    folder, scratch = task.folder.resolve(), task.scratch.resolve()
    worker = Worker(command, env or {}, scratch)
    plain = asdict(task) | {"folder": str(folder), "scratch": str(scratch)}
    names = (None, str(what.resolve())) if isinstance(what, Path) else (what, None)
    try:
        ran = worker.ask("build", *names, plain, limit_s=build_limit_s)
    except BaseException as error:
        words = worker.last_words()
        worker.close()
        if type(error) is RuntimeError and words not in str(error):
            # Many an engine says what is wrong in its log alone.
            raise RuntimeError(f"{error}{words}") from None
        raise
    return RemoteEngine(
        ready=lambda inputs: RemoteReady(worker, *worker.ask("ready", _plain(inputs))),
        ran=ran,
        close=worker.close,
        memory=lambda several: worker.ask("memory", [_plain(inputs) for inputs in several]),
    )


def _plain(inputs: Inputs) -> dict:
    """The fields alone, without what was computed from them."""
    return {name: getattr(inputs, name) for name in ("ids", "types", "texts", "pad_id")}


class Worker:
    """The process at the other end of the pipe. What it prints goes to an unnamed file, never into
    the pipe or onto the terminal.
    """

    def __init__(self, command: Sequence[str], env: dict[str, str], cwd: Path):
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the worker
        self._connection = Connection(ours.detach())
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(Path(__file__).with_name("worker.py")), str(theirs.fileno())],
                env=os.environ | env,
                # An engine may start `python -m`, which imports from the current folder first: in
                # a checkout it would take our kernels/ for Hugging Face's package of that name.
                cwd=cwd,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                # A group of its own: Ctrl-C reaches us alone, and we end it with its children.
                start_new_session=True,
            )
        self.close = weakref.finalize(self, _end, self._process, self._connection, self._log)

    def ask(self, *order, limit_s: float | None = None):
        """Send an order and wait for its answer. An interrupted order ends the worker, because its
        answer would be taken for the next one's.
        """
        if not self.close.alive:
            raise RuntimeError("the worker has been ended")
        try:
            answer = self._exchange(order, limit_s)
        except BaseException:
            self.close()
            raise
        if answer[0] == "done":
            return answer[1]
        _, kind, text = answer
        for known in (CannotRun, MemoryError):
            if kind == known.__name__:
                raise known(text)
        raise RuntimeError(text if kind == "RuntimeError" else f"{kind}: {text}")

    def _exchange(self, order: tuple, limit_s: float | None):
        end = None if limit_s is None else time.monotonic() + limit_s
        try:
            self._connection.send(order)
            while not self._connection.poll(_LOOK_S):
                # A child of the engine may hold the pipe open after the worker's death.
                if self._process.poll() is not None and not self._connection.poll(0):
                    raise EOFError
                if end is not None and time.monotonic() > end:
                    raise RuntimeError(f"not built after {limit_s:g} seconds{self.last_words()}")
            return self._connection.recv()
        except (EOFError, ConnectionError):
            raise RuntimeError(self._death()) from None

    def _death(self) -> str:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return f"worker closed its pipe{self.last_words()}"
        if code == -signal.SIGKILL:
            how = "died with signal 9 (out of memory?)"
        elif code < 0:
            how = f"died with signal {-code} ({signal.Signals(-code).name})"
        else:
            how = f"ended by itself with exit code {code}"
        return f"worker {how}{self.last_words()}"

    def last_words(self) -> str:
        if not self.close.alive:
            return ""
        log = self._log.fileno()
        start = max(0, os.fstat(log).st_size - _LAST_WORDS)
        # Not by seek: the worker writes where the offset is that it shares with us.
        words = os.pread(log, _LAST_WORDS, start).decode(errors="replace").strip()
        return f"; its last words: {words}" if words else ""


def _end(process: subprocess.Popen, connection: Connection, log) -> None:
    connection.close()
    # Gone already, with all its children, where there is no such group.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    log.close()
