"""The GPU check's runner: every outcome of a step is told apart and the JSON is always whole."""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from encoder_fast.benchmarks import gpu_check
from encoder_fast.benchmarks import run as harness
from encoder_fast.benchmarks.gpu_check import Step

NAMES = ["build", "import", "op-tests", "model-tests", "tune", "ops", "models", "finetune"]


def python(code: str, name: str = "a", share: float = 1.0, **more) -> Step:
    """A step that runs some Python."""
    command = f"{{python}} -I -u -c {shlex.quote(code)}"
    return Step(name, share, command, command, **more)


GOOD = python("print('fine')", "good")
BAD = python("print('what it said'); raise SystemExit(3)", "bad")
DEAD = python("import os; os.kill(os.getpid(), 9)", "dead")
SLOW = python("import time\nprint('begun')\ntime.sleep(60)", "slow")
DEAF = python(
    "import signal, time\n"
    "for n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, signal.SIG_IGN)\n"
    "print('begun')\ntime.sleep(60)",
    "deaf",
)


@pytest.fixture(autouse=True)
def signals_as_before():
    """`main` takes over two signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def read(out: Path) -> dict:
    return json.loads((out / "gpu-check.json").read_text())


def run(monkeypatch, out: Path, *steps: Step, minutes: float = 1.0) -> tuple[int, dict, list]:
    """Exit status, the JSON, and its steps."""
    monkeypatch.setattr(gpu_check, "STEPS", steps)
    monkeypatch.setattr(gpu_check, "environment", lambda: {"gpu": None})
    code = gpu_check.main(["--dry-run", "--out", str(out), "--minutes", str(minutes)])
    result = read(out)
    assert [step["name"] for step in result["steps"]] == [step.name for step in steps]
    assert "TABLE = {" in result["launch_table"] and result["seconds"] >= 0
    return code, result, result["steps"]


def test_outcomes_are_told_apart_and_stop_nothing(monkeypatch, tmp_path, capsys):
    code, _, (good, bad, dead, last) = run(monkeypatch, tmp_path, GOOD, BAD, DEAD, GOOD)
    assert code == 1
    assert (good["status"], good["reason"], good["returncode"]) == ("ok", None, 0)
    assert (bad["status"], bad["reason"], bad["returncode"]) == ("failed", "exit status 3", 3)
    assert bad["tail"] == ["what it said"] and (tmp_path / "bad.log").read_text()
    assert (dead["status"], dead["reason"], dead["returncode"]) == ("failed", "SIGKILL", -9)
    assert last["status"] == "ok" and last["command"][0] == sys.executable
    out = capsys.readouterr().out
    assert "    | what it said" in out and "good=ok bad=failed dead=failed good=ok" in out


def test_all_good_is_exit_status_0(monkeypatch, tmp_path):
    assert run(monkeypatch, tmp_path, GOOD, GOOD)[0] == 0


@pytest.mark.parametrize("step", [SLOW, DEAF], ids=lambda step: step.name)
def test_a_step_that_hangs_is_ended_in_its_own_time(monkeypatch, tmp_path, step):
    started = time.monotonic()
    steps = (step, python("pass", "after", share=2.0))
    code, _, (hung, after) = run(monkeypatch, tmp_path, *steps, minutes=0.2)
    assert code == 1 and hung["status"] == "timeout" and "not done in 3 s" in hung["reason"]
    assert hung["tail"][0] == "begun" and after["status"] == "ok"
    assert hung["limit_s"] == pytest.approx(4, abs=0.1) and hung["seconds"] < 5
    assert after["limit_s"] > 6 and time.monotonic() - started < 8


def test_what_a_step_leaves_behind_is_ended_too(monkeypatch, tmp_path):
    child = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {!r}]); print(p.pid)"
    )
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    _, _, (step,) = run(monkeypatch, tmp_path, python(child.format(deaf)))
    if not Path("/proc/self/stat").exists():
        pytest.skip("no /proc")
    status, end = Path(f"/proc/{step['tail'][0]}/stat"), time.monotonic() + 10
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end, "still running"
        time.sleep(0.05)


def test_without_the_import_the_rest_is_skipped(monkeypatch, tmp_path):
    vital = python("import nothing_of_that_name", "import", vital=True)
    code, _, (build, _, after) = run(monkeypatch, tmp_path, BAD, vital, GOOD)
    assert code == 1 and build["status"] == "failed"
    assert (after["status"], after["reason"]) == ("skipped", "step import did not succeed")


def test_no_time_left(monkeypatch, tmp_path):
    code, _, (_, late) = run(monkeypatch, tmp_path, python("pass", share=99), GOOD, minutes=0.02)
    assert code == 1
    assert (late["status"], late["reason"], late["command"]) == ("skipped", "no time left", None)


def test_a_command_that_does_not_exist(monkeypatch, tmp_path):
    missing = Step("missing", 1, "/no/such/program", "/no/such/program")
    _, _, (step, after) = run(monkeypatch, tmp_path, missing, GOOD)
    assert step["status"] == "failed" and step["reason"].startswith("did not start")
    assert after["status"] == "ok"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_middle_leaves_whole_json(tmp_path, number):
    """The step's processes are gone, and their output is kept."""
    bodies = {"one": "0", "two": "time.sleep(99)", "six": "0"}
    lines = ["from encoder_fast.benchmarks import gpu_check as g", "g.STEPS = ("]
    for name, body in bodies.items():
        step = python(f"import os, time; print(os.getpid()); {body}", name)
        lines.append(f"    g.{step!r},")
    lines += [")", f"raise SystemExit(g.main(['--dry-run', '--out', {str(tmp_path)!r}]))"]
    command = [sys.executable, "-I", "-c", "\n".join(lines)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as runner:
        log = tmp_path / "two.log"
        end = time.monotonic() + 40
        while not (log.exists() and log.read_text().strip()):
            assert time.monotonic() < end and runner.poll() is None
            time.sleep(0.05)
        runner.send_signal(number)
        runner.wait(20)
    assert runner.returncode == 130
    result = read(tmp_path)
    assert result["interrupted"] == number.name
    one, two, six = result["steps"]
    assert one["status"] == "ok"
    assert (two["status"], two["reason"]) == ("failed", "interrupted") and two["tail"]
    assert (six["status"], six["reason"]) == ("skipped", "not reached")
    with pytest.raises(ProcessLookupError):
        os.kill(int(two["tail"][0]), 0)


@pytest.mark.parametrize(
    "line, expected",
    [
        ("630 passed in 20.11s", (630, 0, 0, 0)),
        ("==== 2 failed, 3 passed, 1 skipped, 4 deselected in 1.50s ====", (3, 2, 1, 0)),
        ("1 error in 0.10s", (0, 0, 0, 1)),
        ("5 passed, 2 warnings, 2 errors in 75.00s (0:01:15)", (5, 0, 0, 2)),
        ("no tests ran in 0.01s", (0, 0, 0, 0)),
    ],
)
def test_counts_of_tests(line, expected):
    found = gpu_check.counts(f"...F\nE  in 3 s\n{line}\nafterwards\n")
    names = ("passed", "failed", "skipped", "errors")
    assert tuple(found[name] for name in names) == expected
    assert gpu_check.counts("killed") is None


def test_tests_are_counted(monkeypatch, tmp_path):
    """With pytest's own output, through the runner."""
    file = tmp_path / "test_it.py"
    file.write_text("import pytest\ndef test_a(): pass\ndef test_b(): assert 0\n")
    command = f"{{python}} -I -m pytest -q -p no:cacheprovider -c {os.devnull} {file}"
    _, _, (step,) = run(monkeypatch, tmp_path / "out", Step("tests", 1, command, command))
    assert step["tests"]["passed"] == step["tests"]["failed"] == 1
    assert (step["status"], step["returncode"]) == ("failed", 1)


def test_the_steps_are_all_there_and_name_real_things():
    assert [step.name for step in gpu_check.STEPS] == NAMES
    values = {"python": "p", "device": "cpu", "out": "o", "seconds": "9"}
    for step in gpu_check.STEPS:
        for text in (step.command, step.rehearsal):
            parts = [part.format_map(values | {"name": step.name}) for part in shlex.split(text)]
            files = [part for part in parts if part.startswith("tests/")]
            assert all((gpu_check.ROOT / name).is_file() for name in files), files
            assert bool(files) == step.name.endswith("-tests")
    assert gpu_check.LAUNCH_TABLE.is_file()


@pytest.mark.parametrize("name", ["ops", "models", "finetune"])
def test_the_benchmark_steps_are_understood(name):
    """By the harness's own parser and its tables of names."""
    [step] = [step for step in gpu_check.STEPS if step.name == name]
    for text in (step.command, step.rehearsal):
        given = {"name": name, "python": "p", "device": "cpu", "out": "o"}
        parts = [part.format_map(given) for part in shlex.split(text)]
        parser = argparse.ArgumentParser()
        harness.add_arguments(parser)
        args = parser.parse_args(parts[parts.index("encoder_fast.benchmarks.run") + 1 :])
        assert args.suites == [name] and args.name == name
        harness._checked(args)


def test_without_a_gpu_one_sentence(capsys, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert gpu_check.main(["--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "no GPU" in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_it_starts_before_the_package_is_installed():
    code = (
        "import sys, runpy; sys.modules['encoder_fast'] = None; sys.argv = ['x', '--help']; "
        f"runpy.run_path({gpu_check.__file__!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "--dry-run" in done.stdout, done.stderr


def test_an_unknown_device_of_the_tests_is_refused():
    command = [
        sys.executable,
        "-I",
        "-m",
        "pytest",
        "-q",
        "--device",
        "cuda:99",
        "tests/test_ops.py",
    ]
    done = subprocess.run(command, cwd=gpu_check.ROOT, capture_output=True, text=True)
    assert done.returncode == 4 and "--device: device: got 'cuda:99'" in done.stderr
