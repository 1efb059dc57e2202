"""compare.py: what got slower between two runs, and what it refuses to compare."""

import json

import pytest

from encoder_fast.benchmarks import compare


def op(backend="torch", ms=1.0, control_s=0.01, spread=0.02, **more):
    record = {"kind": "op", "op": "mlp", "backend": backend, "shape": "8x128 W768", "status": "ok"}
    record |= {"dtype": "float32", "pass": "forward", "ms": ms, "control_s": control_s}
    return record | {"ms_low": ms * (1 - spread), "ms_high": ms * (1 + spread)} | more


def model(contender="ours", ms=10.0, ratio=2.0, spread=0.02, kind="model", **more):
    record = {"kind": kind, "model": "bert", "workload": "8x128", "dtype": "float32"}
    record |= {"contender": contender, "status": "ok", "ms": ms, "control_ms": 5.0}
    low, high = (ratio * (1 + sign * spread) if ratio else None for sign in (-1, 1))
    return (
        record | {"baseline": "base", "ratio": ratio, "ratio_low": low, "ratio_high": high} | more
    )


ENVIRONMENT = {"kind": "environment", "date": "2026-12-01", "device": "cpu", "threads": 2}


@pytest.fixture
def files(tmp_path):
    """Function: records of the two runs -> the arguments of the command."""

    def write(before, after):
        paths = []
        for name, records in (("a.jsonl", before), ("b.jsonl", after)):
            paths.append(tmp_path / name)
            paths[-1].write_text("\n".join(map(json.dumps, [ENVIRONMENT, *records])) + "\n")
        return [str(path) for path in paths]

    return write


def test_a_slow_machine_phase_cancels(files, capsys):
    assert compare.main(files([op()], [op(ms=3.0, control_s=0.03)])) == 0
    assert "1 compared: 0 slower, 0 faster" in capsys.readouterr().out


def test_slower_and_faster_are_printed_by_ratio(files, capsys):
    before = [op(), op("reference", ms=9), op("gone")]
    after = [op(ms=1.5), op("reference", ms=3), op("new")]
    assert compare.main(files(before, after)) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("slower   1.50x  op | mlp | torch | float32 | 8x128 W768 | forward")
    assert out[1].startswith("faster   3.00x  op | mlp | reference")
    assert out[2].startswith("appeared  op | mlp | new")
    assert out[3].startswith("disappeared  op | mlp | gone")
    assert out[4] == "2 compared: 1 slower, 1 faster"


def test_the_threshold_and_the_spread_decide(files):
    assert compare.main(files([op()], [op(ms=1.08)])) == 0
    assert compare.main([*files([op()], [op(ms=1.08)]), "--threshold", "1.05"]) == 1
    wide = files([op(spread=0.3)], [op(ms=1.4, spread=0.3)])
    assert compare.main(wide) == 0, "0.7 to 1.3 and 0.98 to 1.82 overlap"


@pytest.mark.parametrize("kind", ["model", "step"])
def test_models_are_compared_by_their_ratio_to_the_baseline(files, kind):
    slower = [model(ms=1.0, ratio=1.5, kind=kind)]
    assert compare.main(files([model(kind=kind)], slower)) == 1
    faster = [model(ms=99.0, ratio=2.1, kind=kind)]
    assert compare.main(files([model(kind=kind)], faster)) == 0


def test_the_baseline_and_what_has_no_ratio_are_compared_by_the_control(files):
    assert compare.main(files([model("base", ratio=1.0)], [model("base", ms=20, ratio=1.0)])) == 1
    assert compare.main(files([model()], [model(ms=20, ratio=None)])) == 1
    same = [model(ms=20, ratio=None, control_ms=10.0)]
    assert compare.main(files([model()], same)) == 0


def test_an_op_is_left_out_where_the_machine_changed_during_it(files, capsys):
    changed = op(ms=9.0, control_before_s=0.01, control_after_s=0.02)
    steady = op("reference", control_before_s=0.01, control_after_s=0.012)
    assert compare.main(files([op(), op("reference")], [changed, steady])) == 0
    out = capsys.readouterr().out
    assert "not comparable  op | mlp | torch" in out and "1 compared: 0 slower" in out


def test_int8_that_raced_in_other_floats_is_not_compared_by_its_ratio(files, capsys):
    """Four times a bf16 baseline and twice an fp32 one may be the same speed."""
    before = [model(ratio=4.0, dtype="int8", race="float32")]
    after = [model(ratio=2.0, dtype="int8", race="bfloat16")]
    assert compare.main(files(before, after)) == 0
    assert "not comparable  model | bert | 8x128 | int8 | ours" in capsys.readouterr().out


def test_one_steady_round_has_no_spread_to_decide_by(files):
    alone = [model(ratio=1.0, spread=0, steady=1, rounds=3, ms_low=8.0, ms_high=14.0)]
    assert compare.main(files([model(steady=3)], alone)) == 0


def test_other_machines_are_said_to_be_others(files, capsys):
    a, b = files([op()], [op(), ENVIRONMENT | {"threads": 4}])
    assert compare.main([a, b]) == 0
    assert "differs  threads: 2, then 4" in capsys.readouterr().out


def test_a_cell_that_failed_has_disappeared(files, capsys):
    after = [op(), op("reference", status="failed")]
    assert compare.main(files([op(), op("reference")], after)) == 0
    assert "disappeared  op | mlp | reference" in capsys.readouterr().out


def test_json_holds_every_change(files, capsys):
    assert compare.main([*files([op()], [op(ms=2)]), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["changes"][0]["times"] == pytest.approx(2) and len(found["slower"]) == 1


def test_pytest_benchmarks_file_beside_json_lines(files, tmp_path):
    a, _ = files([op()], [])
    info = {key: value for key, value in op(ms=2).items() if key not in ("kind", "status")}
    stored = tmp_path / "stored.json"
    stored.write_text(json.dumps({"benchmarks": [{"name": "test_op", "extra_info": info}]}))
    assert compare.main([a, str(stored)]) == 1


def test_a_run_that_was_stopped_keeps_what_it_measured(files, tmp_path):
    a, b = files([op()], [op()])
    with open(b, "a") as file:
        file.write('{"kind": "op", "op": "po')
    assert compare.main([a, b]) == 0


BAD = {
    "torn inside": ('{"kind": "op"\n{"kind": "end"}\n', "bad.json:1: not a line of JSON"),
    "empty": ("", "no benchmark records"),
    "text": ("hello\n", "bad.json:1: not a line of JSON"),
    "binary": ("\x00\xff\xfe\n", "bad.json:1: not a line of JSON"),
    "foreign json": ('{"a": 1}\n', "not a benchmark record"),
    "list": ("[1, 2]\n", "not a benchmark record"),
    "another benchmark": (
        '{"benchmarks": [{"name": "x", "stats": {}}]}\n',
        "not a benchmark record",
    ),
    "no op measured": ('{"kind": "end", "status": "done"}\n', "no measured op"),
    "incomplete": (json.dumps(op(ms_low=None)) + "\n", "not complete"),
    "without a key": ('{"kind": "op", "status": "ok", "op": "mlp"}\n', "op record without backend"),
    "nothing in common": (json.dumps(op("other")) + "\n", "no measured entry in common"),
}


@pytest.mark.parametrize("text, sentence", BAD.values(), ids=BAD.keys())
def test_bad_files_are_refused_in_a_sentence(files, tmp_path, capsys, text, sentence):
    a, _ = files([op()], [])
    bad = tmp_path / "bad.json"
    bad.write_bytes(text.encode("latin-1"))
    assert compare.main([a, str(bad)]) == 2
    error = capsys.readouterr().err
    assert sentence in error and "bad.json" in error and "expected" in error
    assert len(error.splitlines()) == 1


def test_a_missing_file_is_refused_in_a_sentence(files, tmp_path, capsys):
    a, _ = files([op()], [])
    assert compare.main([a, str(tmp_path / "none.json")]) == 2
    assert "none.json: no such file of benchmark records; expected" in capsys.readouterr().err


def test_a_threshold_below_one_is_refused(files, capsys):
    with pytest.raises(SystemExit) as stopped:
        compare.main([*files([op()], [op()]), "--threshold", "0.9"])
    assert stopped.value.code == 2 and "at least 1" in capsys.readouterr().err
