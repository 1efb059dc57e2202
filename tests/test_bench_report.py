"""Records on disk, and the tables made of them."""

import os
import signal
import subprocess
import sys

import bench_records as made
import pytest

from encoder_fast.benchmarks import report
from encoder_fast.benchmarks.headline import standings
from encoder_fast.benchmarks.records import interruption


def written(path, records):
    with report.Writer(path) as emit:
        for record in records:
            emit(record)
    return path


def test_what_is_written_is_read(tmp_path):
    path = written(tmp_path / "run.jsonl", made.whole())
    assert report.read(path) == made.whole()


def test_numbers_that_are_not_finite_become_null(tmp_path):
    record = made.timed("a", "1x32", cosine=float("nan"), ratios=[1.0, float("inf")])
    found = report.read(written(tmp_path / "run.jsonl", [record]))[0]
    assert found["cosine"] is None and found["ratios"] == [1.0, None]


def test_a_torn_last_line_is_left_out_and_then_cut_off(tmp_path):
    path = written(tmp_path / "run.jsonl", [made.ENVIRONMENT])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "model", "mod')
    assert report.read(path) == [made.ENVIRONMENT]
    written(path, [made.END])
    assert report.read(path) == [made.ENVIRONMENT, made.END]


def test_a_killed_run_leaves_what_it_measured(tmp_path):
    path = tmp_path / "run.jsonl"
    code = (
        "import os, signal, sys\n"
        "from encoder_fast.benchmarks.records import Writer\n"
        "emit = Writer(sys.argv[1])\n"
        "for i in range(3):\n"
        "    emit({'kind': 'end', 'status': str(i)})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code, str(path)])
    assert done.returncode == -signal.SIGKILL
    assert [record["status"] for record in report.read(path)] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no benchmark records"),
        (b"{}\n", r"run\.jsonl:1: not a benchmark record"),
        (b"[1]\n", r"run\.jsonl:1: not a benchmark record"),
        (b"time,speed\n", r"run\.jsonl:1: not a line of JSON"),
        (b"\xff\xfe\n", r"run\.jsonl:1: not a line of JSON"),
        (b'{"kind": "end", "status": "done"}\n{"ki\n', r"run\.jsonl:2: not a line of JSON"),
        (b'{"kind": "song"}\n', r"run\.jsonl:1: unknown kind of record 'song'; known: .*model"),
        (b'{"kind": "end"}\n', r"run\.jsonl:1: end record without status"),
    ],
)
def test_files_that_are_not_ours_are_refused(tmp_path, content, message):
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        report.read(path)
    if content:
        with pytest.raises(ValueError, match=r"run\.jsonl"):
            report.Writer(path)
        assert path.read_bytes() == content


def test_a_text_file_is_not_cut(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"one line without an end")
    with pytest.raises(ValueError, match="no benchmark records"):
        report.Writer(path)
    assert path.read_bytes() == b"one line without an end"


@pytest.mark.parametrize("name", ["absent.jsonl", "."])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(ValueError, match="no such file of benchmark records"):
        report.read(tmp_path / name)


def test_blocks_are_sorted_fastest_first_with_losses():
    title, header, rows, _ = report.tables(made.whole())[0]
    assert title == "modernbert-base bfloat16 (ratio to transformers sdpa)"
    block = [dict(zip(header, row, strict=True)) for row in rows if row[0] == "8x128"]
    order = sorted(made.ENGINES, key=lambda name: -made.ENGINES[name])
    assert [row["contender"] for row in block] == order
    found = {row["contender"]: row for row in block}
    assert found["openvino"]["ratio"] == "1.40 (1.36-1.46)"
    assert found["vllm"]["ratio"] == "0.60 (0.58-0.62)"
    assert found[made.BASELINE]["ratio"] == "baseline"
    ours = found["encoder_fast torch"]
    assert (ours["steady"], ours["roof"], ours["ran"]) == ("4 of 5", "62%", "torch")
    assert (ours["peak MiB"], ours["added MiB"]) == ("816", "16.4")


def test_no_steady_round_is_never_a_number():
    rows = report.tables(made.whole())[0][2]
    (row,) = (row for row in rows if row[1] == "onnxruntime int8")
    assert row[4:6] == ("no steady round", "0 of 5")
    zero_steady = made.timed("onnxruntime", "1x32", 1.7, steady=0)
    assert report.ratio_text(zero_steady) == "no steady round"


def test_who_was_not_timed_is_said_with_the_reason():
    notes = report.tables(made.whole())[0][3]
    assert "refused: onnxruntime int8 on 8x128: cosine 0.91 < 0.99 & <b>too low</b>" in notes
    assert "failed: onnxruntime int8 on search-log: RuntimeError: <script>alert(1)" in notes
    assert "skipped: transformers flash-attn 2: runs on cuda, not on cpu" in notes
    assert "skipped: all engines on 1x8192: modernbert-base takes 512 tokens at most" in notes


def test_steps_and_ops_have_their_tables():
    _, steps, ops, roof = report.tables(made.whole())
    assert steps[0].startswith("modernbert-base bfloat16, training step")
    assert [row[1] for row in steps[2]] == ["encoder_fast torch packed", made.BASELINE]
    assert steps[2][0][7:9] == ("3,000", "2,200")
    assert [row[2] for row in ops[2]] == ["peer sdpa", "torch", "reference", "torch"]
    assert ops[3] == ["skipped: mlp: peer liger: runs on cuda, not on cpu"]
    assert [row[-1] for row in ops[2]] == ["no", "yes", "yes", "yes"]
    assert roof[2] == [("cpu", "bfloat16", "400", "30.0")]


def test_more_than_the_roof_is_explained():
    fast = made.op("add_norm", "torch", 1.2, 1.8e10, roof=1.4)
    assert report.tables([fast])[0][3] == [report.IN_CACHE]
    assert report.tables([made.op("add_norm", "torch", 1.2, 1.8e10)])[0][3] == []


def test_who_is_absent_makes_no_table_of_its_own(capsys):
    """It has neither dtype nor pass: "Ops, None, None: nothing was timed" is no sentence."""
    absent = [r for r in made.ops() if r.get("status") == "skipped"]
    (table,) = report.tables(absent)
    assert table == ("Ops", report.OPS, [], ["skipped: mlp: peer liger: runs on cuda, not on cpu"])
    assert [title for title, *_ in report.tables(made.ops())] == [
        "Ops, bfloat16, forward",
        "Measured roof",
    ]


def test_the_last_record_of_a_cell_counts():
    first = made.untimed("failed", "openvino", "1x32", "out of memory")
    _, _, rows, notes = report.tables([first, made.timed("openvino", "1x32", 1.4)])[0]
    assert len(rows) == 1 and not [note for note in notes if "failed" in note]


def test_int8_stands_beside_the_floats_it_raced():
    int8 = made.timed("openvino int8", "1x32", 1.9, dtype="int8", race="bfloat16")
    (table,) = report.tables([made.timed(made.BASELINE, "1x32"), int8])
    assert [row[1] for row in table[2]] == ["openvino int8", made.BASELINE]


@pytest.mark.parametrize("columns", [80, 100, 300])
def test_it_fits_the_terminal(capsys, columns):
    report.show(made.whole(), columns)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= columns
    for name in made.ENGINES:
        assert name in text
    for part in ("no steady round", "4 of 5", "1.40 (1.36-1.46)", "0.60 (0.58-0.62)", "16.4"):
        assert part in text
    assert "cut off" not in text and "interrupted" not in text


def test_it_shows_what_there_is(capsys):
    report.show([made.ENVIRONMENT, made.untimed("failed", "vllm", None, "no wheel")], 80)
    text = capsys.readouterr().out
    assert "modernbert-base bfloat16: nothing was timed" in text
    assert "failed: vllm: no wheel" in text and "The run was cut off" in text


def test_what_is_missing_is_a_dash():
    bare = made.untimed("ok", made.BASELINE, "1x32", "") | {"ms": 5.0, "baseline": made.BASELINE}
    (row,) = report.tables([bare])[0][2]
    assert row[2:] == ("-", "5.00", "baseline", "0 of 0", "-", "-", "-", "-")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.01234, "0.0123"),
        (1.3, "1.30"),
        (99.94, "99.9"),
        (12345.6, "12,346"),
    ],
)
def test_numbers(value, text):
    assert report.number(value) == text


def test_interruptions():
    assert interruption([made.ENVIRONMENT, made.END]) is None
    assert "cut off" in interruption([made.ENVIRONMENT])
    assert "interrupted" in interruption([made.END | {"status": "interrupted"}])
    failed = made.END | {"status": "failed", "reason": "ops: OSError: no space"}
    assert interruption([failed]) == "Not all of it was measured: ops: OSError: no space"


def test_the_headline_says_wins_and_losses():
    found = {s.workload: s for s in standings([r for r in made.whole() if r["kind"] == "model"])}
    one = found["8x128"]
    assert (one.fastest, one.ours, one.rival) == ("openvino", "encoder_fast compiled", "openvino")
    assert one.lead == pytest.approx(1.31 / 1.4)
    assert one.against == "encoder_fast compiled: 0.94× openvino"


def test_without_ratios_there_is_no_headline():
    assert standings([made.timed(made.BASELINE, "1x32"), made.unsteady("openvino", "1x32")]) == []


def test_writer_appends_whole_lines(tmp_path):
    path = written(tmp_path / "run.jsonl", [made.ENVIRONMENT])
    size = os.path.getsize(path)
    with report.Writer(path) as emit:
        emit(made.END)
        assert path.read_bytes()[size:].endswith(b"}\n")
