"""`encoder-fast bench`: bad input in one line, and a run from the command to the page."""

import json

import pytest

from encoder_fast import cli
from encoder_fast.benchmarks import models_suite


def failing(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["models", "--models", "gpt2"], "--models: got gpt2; allowed: modernbert-base, "),
        (["models", "--workloads", "9x9"], "--workloads: got 9x9; allowed: 1x32, 8x128, "),
        (["models", "--contenders", "x"], "--contenders: got x; allowed: encoder_fast torch, "),
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
    monkeypatch.setattr(models_suite, "_one_workload", failing)
    assert run(tmp_path, "--contenders", "encoder_fast torch") == 130
    records = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert records[-1]["kind"] == "end" and records[-1]["status"] == "interrupted"
    assert "interrupted" in (tmp_path / "a.html").read_text()
