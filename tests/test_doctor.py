"""`doctor`, settings and the progress bar: what must work where other things do not."""

import json
import subprocess
import sys

import pytest

from encoder_fast import cli, settings
from encoder_fast.commands import doctor
from encoder_fast.progress import Progress

BROKEN = {
    "raises_at_import": "raise RuntimeError('cannot find\\nlibfancy.so')",
    "exits_at_import": "print('a banner'); import sys; sys.exit(3)",
    "not_python": "this is no python",
}


@pytest.fixture
def few_packages(monkeypatch):
    """Only quick imports, so that the report takes no time."""
    quick = ("torch", "numpy", "tokenizers", "rich")
    monkeypatch.setattr(doctor, "REQUIRED", [row for row in doctor.REQUIRED if row[0] in quick])
    monkeypatch.setattr(doctor, "OPTIONAL", [])


def report_of(capsys, *options):
    status = cli.main(["doctor", *options])
    return status, capsys.readouterr().out


def test_doctor_json(few_packages, capsys):
    status, said = report_of(capsys, "--json")
    report = json.loads(said)
    assert status == 0 and report["works"] and report["missing"] == []
    assert report["machine"]["usable_cores"] >= 1
    assert report["threads"]["torch_threads"] >= 1
    ops = report["backends"]["cpu"]["torch"]
    assert ops["attention"] is None and ops["pool"] is None


def test_doctor_as_text(few_packages, capsys):
    status, said = report_of(capsys)
    assert status == 0
    for words in ("versions", "torch", "machine", "usable_cores", "threads", "backends"):
        assert words in said
    assert "\x1b" not in said and said.rstrip().endswith("all that is needed is here")


def test_doctor_survives_broken_optional_packages(few_packages, monkeypatch, tmp_path, capsys):
    for name, source in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    names = [*BROKEN, "is_not_there"]
    rows = [(name, name.replace("_", "-"), "a test", "pip install it") for name in names]
    monkeypatch.setattr(doctor, "OPTIONAL", rows)
    status, said = report_of(capsys, "--json")
    missing = {row["what"]: row for row in json.loads(said)["missing"]}
    assert status == 0 and len(missing) == 4
    assert missing["raises-at-import"]["problem"] == "broken: RuntimeError: cannot find libfancy.so"
    assert missing["exits-at-import"]["problem"] == "broken: SystemExit: 3"
    assert missing["not-python"]["problem"].startswith("broken: SyntaxError")
    assert missing["is-not-there"]["problem"] == "not installed"
    assert missing["is-not-there"]["get"] == "pip install it"
    status, said = report_of(capsys)
    assert "how to get it" in said and "cannot find libfancy.so" in said


def test_doctor_fails_where_something_needed_is_missing(few_packages, monkeypatch, capsys):
    needed = [*doctor.REQUIRED, ("is_not_there", "is-not-there", "all", "pip install it")]
    monkeypatch.setattr(doctor, "REQUIRED", needed)
    status, said = report_of(capsys)
    assert status == 1 and said.rstrip().endswith("something needed is missing")


def test_doctor_reports_what_it_cannot_find_out(few_packages, monkeypatch, capsys):
    def fail(*_):
        raise OSError("no such\nthing")

    for name in ("_machine", "_threads", "_backends"):
        monkeypatch.setattr(doctor, name, fail)
    status, said = report_of(capsys, "--json")
    assert status == 0
    assert json.loads(said)["backends"] == {"problem": "OSError: no such thing"}
    assert "OSError: no such thing" in report_of(capsys)[1]


def test_doctor_runs_without_torch(tmp_path):
    """A broken torch is what a person calls `doctor` for."""
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: cannot open')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from encoder_fast.commands import doctor\n"
        "doctor.OPTIONAL = ()\n"
        "doctor.REQUIRED = doctor.REQUIRED[:2]\n"
        "from encoder_fast.cli import main\n"
        "sys.exit(main(['doctor', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["missing"][0]["problem"] == "broken: OSError: libtorch.so: cannot open"
    assert "problem" in report["backends"]


def test_settings(monkeypatch):
    for name in ("ENCODER_FAST_PROGRESS", "ENCODER_FAST_BATCH_TOKENS"):
        monkeypatch.delenv(name, raising=False)
    assert settings.progress() is None and settings.batch_tokens() == 16384
    monkeypatch.setenv("ENCODER_FAST_PROGRESS", "Off")
    monkeypatch.setenv("ENCODER_FAST_BATCH_TOKENS", "512")
    assert settings.progress() is False and settings.batch_tokens() == 512
    monkeypatch.setenv("ENCODER_FAST_PROGRESS", "maybe")
    with pytest.raises(ValueError, match="ENCODER_FAST_PROGRESS is 'maybe'; allowed: 1"):
        settings.progress()
    for wrong in ("-1", "0", "many"):
        monkeypatch.setenv("ENCODER_FAST_BATCH_TOKENS", wrong)
        with pytest.raises(ValueError, match="ENCODER_FAST_BATCH_TOKENS"):
            settings.batch_tokens()


class FakeClock:
    now = 0.0

    def monotonic(self):
        return self.now


@pytest.mark.parametrize(
    ("show", "terminal", "seconds", "appears"),
    [
        (None, True, 1.0, False),
        (None, True, 2.0, True),
        (None, False, 2.0, False),
        (True, True, 0.0, True),
        (True, False, 0.0, False),
        (False, True, 9.0, False),
    ],
)
def test_progress_appears_only_on_a_terminal_and_only_for_long_work(
    monkeypatch, capsys, show, terminal, seconds, appears
):
    from rich.console import Console

    monkeypatch.delenv("ENCODER_FAST_PROGRESS", raising=False)
    monkeypatch.setattr(Console, "is_terminal", property(lambda self: terminal))
    clock = FakeClock()
    monkeypatch.setattr("encoder_fast.progress.time", clock)
    with Progress(10, "working", show) as bar:
        clock.now = seconds
        bar.advance(3)
        bar.advance(3)
    said = capsys.readouterr()
    assert said.out == ""
    assert ("working" in said.err) == appears


def test_the_environment_switches_the_bar_off(monkeypatch):
    monkeypatch.setenv("ENCODER_FAST_PROGRESS", "0")
    assert Progress(1, "x").delay is None
    assert Progress(1, "x", show=True).delay == 0.0
