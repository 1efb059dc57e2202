"""A process that holds one engine and does what it is told over a pipe: `python -I worker.py FD`.

The other end is remote.py. It runs a contender of this package, or, in an environment without
encoder_fast, an engine file: a module with `build(task)` that gives what `engine.Engine` gives.
So this file needs Python alone, and only plain values pass the pipe. Between two orders the process
sleeps, and it ends when the pipe closes.
"""

import ctypes
import importlib.util
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType, SimpleNamespace

_PR_SET_PDEATHSIG = 1


def load(path: Path) -> ModuleType:
    """The module in a file, whatever is installed."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def short(inputs: dict) -> dict:
    """The first text of `inputs`, cut to 16 tokens: for a warm-up."""

    def cut(row: tuple) -> tuple:
        return row if len(row) <= 16 else (*row[:15], row[-1])

    types, texts = inputs["types"], inputs["texts"]
    return inputs | {
        "ids": (cut(inputs["ids"][0]),),
        "types": None if types is None else (cut(types[0]),),
        "texts": None if texts is None else (" ".join(texts[0].split()[:14]),),
    }


class Host:
    """One engine and the inputs that it got ready for. The public methods are the orders."""

    def __init__(self):
        self._ready = []

    def build(self, contender: str | None, file: str | None, task: dict):
        """Build the engine of a contender or of an engine file; returns its `ran`."""
        paths = {name: Path(task[name]) for name in ("folder", "scratch")}
        self._device = task["device"]
        if file is not None:
            self._inputs = lambda given: SimpleNamespace(**given)
            self._engine = load(Path(file)).build(SimpleNamespace(**task | paths))
        else:
            import torch

            from encoder_fast.benchmarks import contenders, engine, workloads

            torch.set_num_threads(task["threads"])
            self._inputs = lambda given: workloads.Inputs(**given)
            self._engine = contenders.CONTENDERS[contender].build(engine.Task(**task | paths))
        return self._engine.ran

    def ready(self, inputs: dict) -> tuple[int, bool]:
        """Get ready for one input; returns its number and whether the output is pooled."""
        self._ready.append(self._engine.ready(self._inputs(inputs)))
        return len(self._ready) - 1, self._ready[-1].pooled

    def output(self, number: int) -> tuple[tuple[int, ...], bytes]:
        """Shape and fp32 values of one run."""
        import numpy

        values = numpy.ascontiguousarray(self._ready[number].output(), dtype=numpy.float32)
        return values.shape, values.tobytes()

    def seconds(self, number: int, repeats: int) -> float:
        """Wall seconds of `repeats` runs, taken here: the pipe costs nothing."""
        return self._ready[number].seconds(repeats)

    def memory(self, several: list[dict]) -> list[dict]:
        """Peak memory of one run of each input, over what the process held after a short run.

        From small to large, so that memory that an engine keeps for its next run counts. An input
        whose run fails, most likely for lack of memory, has a "reason" in place of numbers.
        """
        memory = load(Path(__file__).with_name("memory.py"))
        self._engine.ready(self._inputs(short(several[0]))).call()
        base = memory.settled(self._device)
        measured = {}
        for i in sorted(range(len(several)), key=lambda i: _slots(several[i])):
            try:
                one = self._engine.ready(self._inputs(several[i]))
                measured[i] = memory.measure(one.call, base, self._device)
            except Exception as error:
                measured[i] = {"reason": f"{type(error).__name__}: {error}"}
        return [measured[i] for i in range(len(several))]


def _slots(inputs: dict) -> int:
    return len(inputs["ids"]) * max(map(len, inputs["ids"]))


def _end_with_parent() -> None:
    """Linux ends this process with its parent, even in the middle of a run; elsewhere the closed
    pipe does, after it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(connection: Connection) -> None:
    """Carry out orders until the pipe closes: (order, *arguments) in, ("done", value) or
    ("failed", type of the exception, its text) out.
    """
    host = Host()
    while True:
        try:
            order, *arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = ("done", getattr(host, order)(*arguments))
        except Exception as error:
            answer = ("failed", type(error).__name__, str(error))
            # The parent may show the end of the log.
            sys.stdout.flush()
        connection.send(answer)


if __name__ == "__main__":
    _end_with_parent()
    end = int(sys.argv[1])
    # An open copy in a child of the engine would keep the pipe from closing.
    os.set_inheritable(end, False)
    serve(Connection(end))
