"""An engine in a process of its own: what it computes and how it ends."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from bench_engine_file import ENGINE, INPUTS, LARGER, hosting

from encoder_fast.benchmarks.engine import CannotRun


@pytest.fixture
def host(tmp_path):
    """`start` in a folder of the test, which ends the workers."""
    with hosting(tmp_path) as run:
        yield run


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent does not."""
    try:
        return stat(pid)[0] not in "ZX"
    except OSError:
        return False


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on: proc(5)."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return text.rpartition(")")[2].split()


def gone(pid: int, within_s: float = 5) -> bool:
    end = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(child) for child in listed.split()]


def test_it_computes_and_keeps_every_input(host):
    engine = host()
    assert engine.ran == "fake"
    one, other = engine.ready(INPUTS), engine.ready(LARGER)
    assert one.output().dtype == torch.float32 and not one.pooled
    assert one.output().tolist() == [[i, -i] for i in (5, 6, 7, 8, 9)]
    assert other.output().shape == (48, 2)


def test_time_is_taken_in_the_worker(host):
    one = host("def work(ids): time.sleep(0.05)").ready(INPUTS)
    start = time.perf_counter()
    inside = one.seconds(3)
    outside = time.perf_counter() - start
    assert 0.15 <= inside <= outside
    empty = host().ready(INPUTS)
    assert empty.seconds(1) < 1e-3


def test_noise_does_not_disturb_it(host):
    noise = """
    def work(ids):
        print("x" * 200_000, flush=True)
        os.write(1, b"raw"), os.write(2, b"raw")
        subprocess.run([sys.executable, "-c", "print(1)"])
        assert sys.stdin.read() == ""
    """
    assert host(noise).ready(INPUTS).output().shape == (5, 2)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ("def start(task): raise ValueError('no such file')", RuntimeError, "ValueError: no such"),
        ("def start(task): raise RuntimeError('as it is')", RuntimeError, "^as it is$"),
        ("def start(task): print('why'); raise OSError('see log')", RuntimeError, "words: why"),
        ("def ready(inputs): raise CannotRun('one text only')", CannotRun, "^one text only$"),
        ("def work(ids): raise MemoryError('9 GiB')", MemoryError, "^9 GiB$"),
        ("def start(task): os._exit(3)", RuntimeError, "ended by itself with exit code 3"),
        ("def work(ids): os._exit(0)", RuntimeError, "ended by itself with exit code 0"),
        ("def start(task): sys.exit('bye')", RuntimeError, "exit code 1; its last words: bye"),
        (
            "def work(ids): os.kill(os.getpid(), signal.SIGKILL)",
            RuntimeError,
            r"worker died with signal 9 \(out of memory\?\)",
        ),
        (
            "def work(ids): print('at', ids, flush=True); os.kill(os.getpid(), signal.SIGSEGV)",
            RuntimeError,
            r"signal 11 \(SIGSEGV\); its last words: at \[5, 6",
        ),
        ("nonsense", RuntimeError, "NameError: name 'nonsense'"),
    ],
)
def test_errors_and_deaths_come_back_as_words(host, changes, error, words):
    with pytest.raises(error, match=words):
        host(changes).ready(INPUTS).output()


def test_an_error_leaves_the_worker_alive_and_a_death_does_not(host):
    engine = host("def work(ids):\n if len(ids) == 5: raise ValueError('five')\n")
    one, other = engine.ready(INPUTS), engine.ready(LARGER)
    with pytest.raises(RuntimeError, match="five"):
        one.output()
    assert other.output().shape == (48, 2)
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="the worker has been ended"):
        other.output()


def test_a_slow_build_is_ended(host, tmp_path):
    slow = f"""
    def start(task):
        print(os.getpid(), file=open({str(tmp_path / "pid")!r}, "w"), flush=True)
        time.sleep(60)
    """
    with pytest.raises(RuntimeError, match="not built after 2 seconds"):
        host(slow, build_limit_s=2)
    assert gone(int((tmp_path / "pid").read_text()))


def test_death_is_seen_though_a_child_holds_the_pipe(host):
    leaves = """
    def start(task):
        pass

    def work(ids):
        if os.fork() == 0:
            time.sleep(60)
        os._exit(4)
    """
    one = host(leaves).ready(INPUTS)
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="exit code 4"):
        one.output()
    assert time.monotonic() - start < 10


@pytest.mark.skipif(sys.platform != "linux", reason="looks into Linux's /proc")
def test_close_ends_the_children_too(host):
    engine = host("def start(task): subprocess.Popen(['sleep', '60'])")
    (worker,) = (pid for pid in children(os.getpid()) if children(pid))
    (child,) = children(worker)
    engine.close()
    assert gone(worker) and gone(child)


def test_ctrl_c_ends_the_worker(host, request):
    # A shell that starts pytest in the background lets it ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    one = host("def work(ids): time.sleep(60)").ready(INPUTS)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        one.output()
    with pytest.raises(RuntimeError, match="has been ended"):
        one.output()


PARENT = """
import os, sys, threading, time
from pathlib import Path
from encoder_fast.benchmarks import remote
from encoder_fast.benchmarks.engine import Task
from encoder_fast.benchmarks.workloads import Inputs
folder = Path(sys.argv[1])
engine = remote.remote_engine(
    remote.HERE, folder / "fake.py", Task("m", folder, "float32", "cpu", 1, folder)
)
print(engine.ran, flush=True)
{then}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it ends after its run")
@pytest.mark.parametrize(
    "then",
    [
        "os._exit(1)",
        "sys.exit()",
        "threading.Timer(0.3, os._exit, (1,)).start()\n"
        "engine.ready(Inputs(((1, 2),), None, None, 0)).output()",
    ],
    ids=["idle", "exit", "busy"],
)
def test_no_worker_outlives_its_parent(tmp_path, then):
    slow = ENGINE.replace('ran="fake"', "ran=str(os.getpid())") + "\ndef work(ids): time.sleep(60)"
    (tmp_path / "fake.py").write_text(slow, encoding="utf-8")
    command = [sys.executable, "-I", "-c", PARENT.format(then=then), str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60)
    assert gone(int(done.stdout))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into Linux's /proc")
def test_an_idle_worker_does_nothing(host):
    host().ready(INPUTS).output()
    (pid,) = children(os.getpid())
    time.sleep(0.3)
    before = stat(pid)[11:13]
    time.sleep(1)
    assert stat(pid)[11:13] == before


def test_the_task_and_token_types_arrive(host):
    engine = host(
        """
        def start(task):
            assert task.dtype == "float32" and task.scratch.is_dir()

        def ready(inputs):
            assert inputs.types == ((0, 0, 0), (0, 1)) and inputs.texts[1] == "d e"
            return Ready(inputs)
        """
    )
    typed = dataclasses.replace(INPUTS, types=((0, 0, 0), (0, 1)))
    assert engine.ready(typed).output().shape == (5, 2)
