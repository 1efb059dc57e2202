"""`encoder-fast bench`: bad input in one line, and a run from the command to the page."""

import json

import pytest

from encoder_fast import cli
from encoder_fast.benchmarks import environment, models_suite, ops_suite


def raising(error: BaseException):
    def call(*_, **__):
        raise error

    return call


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["models", "--models", "gpt2"], "--models: got gpt2; allowed: modernbert-base, "),
        (["models", "--workloads", "9x9"], "--workloads: got 9x9; allowed: 1x32, 8x128, "),
        (["models", "--contenders", "x"], "--contenders: got x; allowed: encoder_fast "),
        (
            ["models", "finetune", "--contenders", "vllm"],
            "--contenders: got vllm; none takes part in finetune, which has: encoder_fast ",
        ),
        (["ops", "--ops", "pull"], "--ops: got pull; allowed: embed, linear"),
        (["ops", "--backends", "liger"], "--backends: got liger; allowed: "),
        (["models", "--ops", "pool"], "--ops: got pool; no suite that was named takes it"),
        (["ops", "--contenders", "vllm"], "--contenders: got vllm; no suite that was named"),
        (["models", "--seconds", "nan"], "--seconds: got nan, a finite number from 0 on needed"),
        (["models", "--seconds", "-1"], "--seconds: got -1.0"),
        (["models", "--dtype", "int4"], "--dtype: got int4; allowed: auto, float32"),
        (["models", "--dtype", "int8"], "--dtype: got int8 alone"),
        (["models", "--threads", "0"], "--threads: got 0"),
        (["models", "--device", "tpu"], "device: got 'tpu'"),
        (["speed"], "argument SUITE: invalid choice: 'speed'"),
    ],
)
def test_bad_input_is_one_line_with_what_is_allowed(options, words, capsys, tmp_path):
    argv = ["bench", *options, "--out", str(tmp_path / "out")]
    try:
        status = cli.main(argv)
    except SystemExit as left:
        status = left.code
    said = capsys.readouterr().err
    assert status == 2 and words in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def run(tmp_path, *options) -> int:
    argv = ["bench", "models", "--models", "minilm-l6", "--workloads", "1x32", "--threads", "1"]
    more = ["--dtype", "float32", "--seconds", "0", "--rounds", "1", "--name", "a"]
    return cli.main([*argv, *more, "--out", str(tmp_path), *options])


def test_a_run_prints_a_table_and_writes_lines_and_a_page(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert run(tmp_path, "--contenders", "encoder_fast torch", "--json") == 0
    records = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [r["kind"] for r in records] == ["environment", *["model"] * 2, *["memory"] * 2, "end"]
    assert [json.loads(x) for x in capsys.readouterr().out.splitlines()] == records
    timed = {r["contender"]: r for r in records if r["kind"] == "model"}
    assert timed["encoder_fast torch"]["status"] == "ok"
    assert timed["encoder_fast torch"]["ran"]["attention"] == "torch"
    assert all(r["peak_mib"] > 100 for r in records if r["kind"] == "memory")
    assert "encoder_fast torch" in (tmp_path / "a.html").read_text()


def test_interrupting_leaves_the_file_and_the_page(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(models_suite, "_one_workload", raising(KeyboardInterrupt()))
    assert run(tmp_path, "--contenders", "encoder_fast torch") == 130
    records = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert records[-1]["kind"] == "end" and records[-1]["status"] == "interrupted"
    assert "interrupted" in (tmp_path / "a.html").read_text()


def test_a_suite_that_breaks_costs_that_suite_only(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(ops_suite, "run", raising(OSError("no space")))
    argv = ["bench", "ops", "models", "--models", "minilm-l6", "--workloads", "1x32", "--no-memory"]
    argv += ["--dtype", "float32", "--seconds", "0", "--rounds", "1", "--threads", "1"]
    argv += ["--contenders", "encoder_fast torch", "--name", "a", "--out", str(tmp_path)]
    assert cli.main(argv) == 1
    records = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [r["status"] for r in records if r["kind"] == "model"] == ["ok", "ok"]
    assert records[-1]["status"] == "failed" and records[-1]["reason"] == "ops: OSError: no space"
    assert "Not all of it was measured: ops: OSError: no space" in capsys.readouterr().out
    assert "no space" in (tmp_path / "a.html").read_text()


def test_a_run_without_any_measurement_has_failed(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(models_suite, "_one_field", raising(MemoryError()))
    assert run(tmp_path) == 1
    records = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [r["kind"] for r in records] == ["environment", "model", "end"]
    assert records[1]["status"] == "failed" and records[1]["reason"] == "out of memory"


def test_an_earlier_failure_is_kept_when_a_later_suite_is_interrupted(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(ops_suite, "run", raising(OSError("no space")))
    monkeypatch.setattr(models_suite, "run", raising(KeyboardInterrupt()))
    assert cli.main(["bench", "ops", "models", "--name", "a", "--out", str(tmp_path)]) == 130
    end = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[-1])
    assert end["status"] == "interrupted" and end["reason"] == "ops: OSError: no space"


def test_the_command_can_be_typed_again(monkeypatch):
    for start in (["encoder-fast", "bench"], ["benchmarks/run.py"]):
        monkeypatch.setattr("sys.argv", [*start, "models", "--contenders", "encoder_fast torch"])
        command = environment.stamp("cpu", 1)["command"]
        assert command == "encoder-fast bench models --contenders 'encoder_fast torch'"


def test_bars_of_transformers_do_not_reach_the_log(tmp_path, capfd):
    pytest.importorskip("matplotlib")
    assert run(tmp_path, "--contenders", "encoder_fast torch", "--no-memory") == 0
    assert "Loading weights" not in capfd.readouterr().err
