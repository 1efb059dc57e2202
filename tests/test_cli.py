"""The command line: exit status, one-line errors, and outputs that are whole or absent."""

import builtins
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from encoder_fast import cli, hardware
from encoder_fast.files import atomic_path
from encoder_fast.kernels import _native
from encoder_fast.text import TextEncoder

LINES = ["first text", "", "dritte Zeile, größer", "the fourth\u2028has a line separator"]


@pytest.fixture
def work(tmp_path, monkeypatch):
    """An empty folder to work in, with a file of texts outside of it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "lines.txt").write_bytes(("\r\n".join(LINES) + "\r\n").encode())
    records = [{"body": line, "doc": f"d{i}"} for i, line in enumerate(LINES)]
    text = "\n\n".join(json.dumps(record) for record in records)
    (tmp_path / "in" / "docs.jsonl").write_text(text)
    monkeypatch.chdir(tmp_path / "out")
    return tmp_path


@pytest.fixture(scope="module")
def expected(minilm_folder):
    return TextEncoder(minilm_folder).encode(LINES)


@pytest.fixture
def embed(minilm_folder, work):
    def run(source, output, *more):
        argv = ["embed", source, "--model", str(minilm_folder), "--output", output, *more]
        return cli.main(argv)

    return run


def left_over():
    return sorted(path.name for path in Path().iterdir())


def test_embed_text_to_npy(embed, expected, capsys):
    assert embed("../in/lines.txt", "a.npy") == 0
    assert left_over() == ["a.npy"]
    got = np.load("a.npy")
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, atol=1e-6)
    said = capsys.readouterr()
    assert said.out == ""
    backend = "torch" if _native.C is None else "native"
    assert "4 texts, " in said.err
    assert f"real tokens/s (float32, cpu, backend {backend})" in said.err


def test_embed_jsonl_to_parquet(embed, expected):
    parquet = pytest.importorskip("pyarrow.parquet")
    options = ["--field", "body", "--id-field", "doc", "--with-text"]
    assert embed("../in/docs.jsonl", "a.parquet", *options) == 0
    table = parquet.read_table("a.parquet")
    assert table.column_names == ["id", "text", "embedding"]
    assert table["id"].to_pylist() == ["d0", "d1", "d2", "d3"]
    assert table["text"].to_pylist() == LINES
    assert table["embedding"].type.list_size == 384
    np.testing.assert_allclose(np.stack(table["embedding"].to_numpy()), expected, atol=1e-6)
    assert embed("../in/docs.jsonl", "a.parquet", "--field", "body") == 0
    assert parquet.read_table("a.parquet")["id"].to_pylist() == [0, 1, 2, 3]


def test_embed_standard_input_with_options_and_json(embed, minilm_folder, monkeypatch, capsys):
    stdin = io.TextIOWrapper(io.BytesIO("\ufeffone\ntwo".encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    options = ["--truncate-dim", "8", "--pooling", "cls+max", "--no-normalize", "--prompt", "p: "]
    assert embed("-", "b.npy", *options, "--batch-tokens", "9", "--json", "--dtype", "float32") == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["texts"] == 2 and numbers["dimension"] == 8 and numbers["tokens"] == 10
    encoder = TextEncoder(minilm_folder)
    wanted = encoder.encode(
        ["one", "two"], pooling=["cls", "max"], normalize=False, truncate_dim=8, prompt="p: "
    )
    np.testing.assert_allclose(np.load("b.npy"), wanted, atol=1e-5)


@pytest.mark.parametrize("doc", [10**30, "\ud800"])
def test_an_id_that_no_parquet_can_hold_is_bad_input(embed, work, capsys, doc):
    pytest.importorskip("pyarrow")
    (work / "in" / "ids.jsonl").write_text(json.dumps({"text": "a", "doc": doc}))
    assert embed("../in/ids.jsonl", "a.parquet", "--id-field", "doc") == 2
    error = capsys.readouterr().err
    assert "--id-field: an id does not fit" in error and error.count("\n") == 1
    assert left_over() == []


def test_closed_standard_input_is_bad_input(embed, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert embed("-", "a.npy") == 2
    assert "standard input is closed" in capsys.readouterr().err


def test_embed_nothing(embed, work):
    (work / "in" / "empty.txt").write_bytes(b"")
    assert embed("../in/empty.txt", "a.npy") == 0
    assert np.load("a.npy").shape == (0, 384)
    pytest.importorskip("pyarrow")
    assert embed("../in/empty.txt", "a.parquet") == 0


def test_dtype_auto_says_what_it_takes(embed, capsys, expected):
    assert embed("../in/lines.txt", "a.npy", "--dtype", "auto") == 0
    name, reason = hardware.fastest_dtype("cpu")
    assert f"dtype {name}: {reason}" in capsys.readouterr().err
    np.testing.assert_allclose(np.load("a.npy"), expected, atol=2e-2)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"avx2", "avx512f"}, "float32"),
        ({"avx512_bf16"}, "bfloat16"),
        ({"amx_tile", "amx_bf16"}, "bfloat16"),
        (set(), "float32"),
    ],
)
def test_fastest_dtype_follows_the_flags(monkeypatch, flags, name):
    monkeypatch.setattr(hardware, "cpu_info", lambda: ("some cpu", flags))
    assert hardware.fastest_dtype("cpu")[0] == name


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ('{"text": "a"}\n{"text": ', "bad.jsonl:2: not a JSON record"),
        ('{"text": "a"}\n\n["b"]', "bad.jsonl:3: a record must be a JSON object, got list"),
        ('{"text": 5}', "bad.jsonl:1: field 'text' must be a string, got int"),
        ('{"body": "a"}', "bad.jsonl:1: no field 'text'; the record has 'body'"),
        (b'{"text": "a"}\n{"text": "\xff"}', "bad.jsonl:2: not UTF-8"),
        ('{"text": "a"}\n{"text": "b\\ud800"}', "bad.jsonl:2: field 'text' is not valid Unicode"),
    ],
)
def test_a_bad_record_is_named_by_its_line(embed, work, capsys, records, words):
    data = records if isinstance(records, bytes) else records.encode()
    (work / "in" / "bad.jsonl").write_bytes(data)
    assert embed("../in/bad.jsonl", "a.npy") == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert left_over() == []


@pytest.mark.parametrize(
    ("source", "output", "more", "words"),
    [
        ("../in/none.txt", "a.npy", [], "No such file"),
        ("../in/lines.txt", "a.csv", [], "must end in .npy or .parquet"),
        ("../in/lines.txt", "no/such/a.npy", [], "there is no folder"),
        ("../in/lines.txt", "a.parquet", ["--id-field", "x"], "needs JSONL"),
        ("../in/docs.jsonl", "a.npy", ["--id-field", "doc"], "--id-field needs a .parquet"),
        ("../in/lines.txt", "a.npy", ["--with-text"], "--with-text needs a .parquet"),
        ("../in/docs.jsonl", "a.npy", ["--field", ""], "no field ''"),
        ("../in/lines.txt", "a.npy", ["--device", "nope"], "device: got 'nope'"),
        ("../in/lines.txt", "a.npy", ["--pooling", ""], "pooling"),
        ("../in", "a.npy", [], "../in: Is a directory"),
        ("../in/lines.txt", "a.npy", ["--truncate-dim", "999"], "truncate_dim is 999"),
        ("../in/lines.txt", "a.npy", ["--max-length", "9999"], "max_length is 9999"),
        ("../in/lines.txt", "a.npy", ["--batch-tokens", "0"], "batch_tokens is 0"),
        ("../in/lines.txt", "a.npy", ["--pooling", "middle"], "middle"),
        ("../in/lines.txt", "a.npy", ["--prompt-name", "nope"], "prompt_name 'nope'"),
        ("../in/lines.txt", "a.npy", ["--backend", "nope"], "nope"),
        ("../in/lines.txt", "a.npy", ["--model", "./no-model"], "no-model"),
    ],
)
def test_bad_input_is_one_line_and_status_2(embed, capsys, source, output, more, words):
    assert embed(source, output, *more) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1 and error.startswith("encoder-fast embed: ")
    assert left_over() == []


@pytest.mark.parametrize("argv", [[], ["nope"], ["embed"], ["embed", "x", "--dtype", "int8"]])
def test_bad_usage_is_one_line_and_status_2(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_help_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    assert "example" in said and f"encoder-fast {command}" in said


def test_help_and_version_of_the_program(capsys):
    for option, words in (("--help", "example"), ("--version", "encoder-fast 0")):
        with pytest.raises(SystemExit) as stop:
            cli.main([option])
        assert stop.value.code == 0
        assert words in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
@pytest.mark.parametrize("before", [None, b"old"])
def test_a_run_that_fails_half_way_leaves_the_old_file(embed, monkeypatch, suffix, before, capsys):
    output = Path(f"a.{suffix}")
    if before:
        output.write_bytes(before)

    def stream(self, texts, **options):
        yield np.zeros((2, 384), np.float32), 5
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(TextEncoder, "stream", stream)
    assert embed("../in/lines.txt", str(output)) == 1
    assert "RuntimeError: out of memory (--debug" in capsys.readouterr().err
    assert left_over() == ([output.name] if before else [])
    assert not before or output.read_bytes() == before
    with pytest.raises(RuntimeError):
        embed("../in/lines.txt", str(output), "--debug")


def test_a_full_disk_leaves_nothing(embed, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert embed("../in/lines.txt", "a.npy") == 1
    assert "No space left" in capsys.readouterr().err
    assert left_over() == []


def test_terminated_run_leaves_nothing(minilm_folder, work):
    (work / "in" / "many.txt").write_text(("some words to embed " * 40 + "\n") * 20_000)
    command = [sys.executable, "-m", "encoder_fast.cli", "embed", "../in/many.txt"]
    command += ["--model", str(minilm_folder), "--output", "a.npy"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not left_over() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left_over() and left_over()[0].endswith(".tmp")
    process.send_signal(signal.SIGTERM)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and error == "encoder-fast embed: interrupted\n"
    assert left_over() == []


def test_atomic_path(tmp_path, monkeypatch):
    def refuse(path, **options):
        raise PermissionError(13, "Permission denied", str(path))

    target = tmp_path / "a.bin"
    with atomic_path(target) as temporary:
        assert temporary.parent == tmp_path and not target.exists()
        temporary.write_bytes(b"new")
    assert target.read_bytes() == b"new"
    target.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(target)
    with atomic_path(link) as temporary:
        temporary.write_bytes(b"newer")
    assert link.is_symlink() and target.read_bytes() == b"newer"
    assert target.stat().st_mode & 0o777 == 0o640
    with pytest.raises(ValueError, match="not a regular file"), atomic_path(tmp_path):
        pass
    with pytest.raises(FileNotFoundError, match="no folder"), atomic_path(tmp_path / "x" / "y"):
        pass
    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(PermissionError, match=r"a\.bin") as refused, atomic_path(target):
        pass
    assert ".tmp" not in str(refused.value)
    monkeypatch.undo()
    with pytest.raises(KeyboardInterrupt), atomic_path(target):
        raise KeyboardInterrupt
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "link"]


def test_parquet_without_pyarrow_is_said_before_work(embed, monkeypatch, capsys):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("pyarrow"):
            raise ImportError("no pyarrow here")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert embed("../in/none.txt", "a.parquet") == 2
    assert "needs pyarrow (pip install pyarrow)" in capsys.readouterr().err
