"""An engine file of a few lines for the worker of the harness."""

import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from encoder_fast.benchmarks import remote
from encoder_fast.benchmarks.engine import Task
from encoder_fast.benchmarks.workloads import Inputs

INPUTS = Inputs(((5, 6, 7), (8, 9)), None, ("a b c", "d e"), 0)
LARGER = Inputs(((3,) * 40, (4,) * 8), None, None, 0)
ENGINE = """
import os, signal, subprocess, sys, time
from types import SimpleNamespace
import numpy

class CannotRun(Exception):
    pass

class Ready:
    pooled = False

    def __init__(self, inputs):
        self.ids = [i for row in inputs.ids for i in row]

    def call(self):
        work(self.ids)
        return numpy.array([[i, -i] for i in self.ids])

    def output(self):
        return self.call()

    def seconds(self, repeats):
        start = time.perf_counter()
        for _ in range(repeats):
            self.call()
        return time.perf_counter() - start

def build(task):
    assert task.folder.is_absolute() and task.threads == 1
    start(task)
    return SimpleNamespace(ready=ready, ran="fake")

def start(task):
    pass

def ready(inputs):
    return Ready(inputs)

def work(ids):
    pass
"""


def start(folder: Path, changes: str = "", **more) -> remote.RemoteEngine:
    """A worker with ENGINE and `changes` after it; `more` goes to `remote_engine`."""
    file = folder / f"fake{len(list(folder.iterdir()))}.py"
    file.write_text(ENGINE + textwrap.dedent(changes), encoding="utf-8")
    task = Task("fake", folder, "float32", "cpu", 1, folder)
    return remote.remote_engine(remote.HERE, file, task, **more)


@contextmanager
def hosting(folder: Path) -> Iterator[Callable[..., remote.RemoteEngine]]:
    """`start` in `folder`; the workers end with the block."""
    with ExitStack() as stack:

        def run(changes: str = "", **more) -> remote.RemoteEngine:
            return stack.enter_context(closing(start(folder, changes, **more)))

        yield run
