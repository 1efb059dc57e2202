"""The search for launch numbers: only right and faster ones win, and the table is never broken."""

import os
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from closeness import assert_as_good_as
from op_harness import layout, one_thread  # noqa: F401

from encoder_fast.benchmarks import tune, tune_targets
from encoder_fast.benchmarks.tune_targets import Target
from encoder_fast.kernels import _grouped, _launch_table, _launches, attention

KEY = ("cpu", "float32", 64)


class Size(NamedTuple):
    size: int


def target_of(work: dict[int, int], wrong: tuple[int, ...] = (), present: int = 8) -> Target:
    """A made-up kernel: launch -> how many products it does, those in `wrong` with a wrong
    result.
    """
    x = torch.randn(128, 128)

    def start(launch):
        def call():
            for _ in range(work[launch.size]):
                x @ x
            return torch.full((2, 2), 1.0 + (launch.size in wrong))

        return call

    return Target(
        "made-up",
        keys=lambda kind: (KEY,),
        present=lambda key: Size(present),
        candidates=lambda key: tuple(map(Size, work)),
        build=lambda key, device: start,
        check=lambda key, device: tune_targets.law(torch.ones(2, 2).double(), torch.ones(2, 2)),
    )


def search(target: Target, seconds: float = 1.0) -> tune.Decision:
    return tune.search(target, KEY, "cpu", seconds, lambda text: None)


def until_better(target: Target) -> tune.Decision:
    """A busy machine may have no steady round for a while: more searches, never a wider rule."""
    for _ in range(8):
        decision = search(target)
        if decision.better:
            break
    return decision


@pytest.fixture
def table(tmp_path):
    """A copy of the table that a test may spoil."""
    path = tmp_path / "table.py"
    path.write_bytes(tune.TABLE.read_bytes())
    return path


def test_a_fast_but_wrong_candidate_is_never_chosen():
    target = target_of({8: 60, 1: 0, 2: 20, 3: 61}, wrong=(1,))
    decision = until_better(target)
    assert decision.better and decision.best == Size(2)
    [(launch, why)] = decision.refused
    assert launch == Size(1) and why.startswith("error 1.00e+00")
    assert decision.ratio[1] > 1.5
    text = "\n".join(decision.lines())
    assert "size=1 is out: error" in text and "takes size=2" in text


def test_candidates_that_are_no_faster_leave_the_present_entry():
    decision = search(target_of({8: 20, 1: 30, 2: 40}))
    assert not decision.better
    assert "keeps size=8" in "\n".join(decision.lines())


def test_a_gain_within_the_spread_is_no_gain():
    args = (KEY, Size(8), Size(2))
    assert tune.Decision(*args, (1.05, 1.1, 1.2), (0.98, 1.0, 1.04)).better
    assert not tune.Decision(*args, (1.05, 1.1, 1.2), (0.9, 1.0, 1.06)).better
    assert not tune.Decision(*args, (1.01, 1.1, 1.2), (1.0, 1.0, 1.0)).better
    assert not tune.Decision(*args).better


def test_a_candidate_that_raises_is_out_and_a_wrong_present_one_ends_the_search(table, capsys):
    target = target_of({8: 5, 3: 5}, wrong=(8,))
    with pytest.raises(RuntimeError, match=r"size=8, now in use: error"):
        search(target)
    before = table.read_bytes()
    assert tune.run((target,), "cpu", 0.1, table, dry_run=False) == 1
    assert "not tuned" in capsys.readouterr().out and table.read_bytes() == before
    good = target_of({8: 5, 3: 5})
    start = good.build(KEY, "cpu")

    def build(key, device):
        return lambda launch: start(launch) if launch.size == 8 else 1 / 0

    [(launch, why)] = search(replace(good, build=build), 0.1).refused
    assert launch == Size(3) and why.startswith("ZeroDivisionError")


def better_always(monkeypatch):
    decision = tune.Decision(KEY, Size(8), Size(2), (1.3, 1.4, 1.5), (0.99, 1.0, 1.01))
    monkeypatch.setattr(tune, "search", lambda *args: decision)
    return target_of({8: 1})


def test_only_a_real_run_writes(monkeypatch, table):
    target, before = better_always(monkeypatch), table.read_bytes()
    assert tune.run((target,), "cpu", 1, table, dry_run=True) == 0
    assert table.read_bytes() == before
    assert tune.run((target,), "cpu", 1, table, dry_run=False) == 0
    row = tune.read(table)["made-up"][KEY]
    assert row["size"] == 2 and "1.40x 8" in row["measured"]
    assert tune.read(table)["window"] == _launch_table.TABLE["window"]
    assert table.read_text().startswith('"""Measured launches.')
    assert tune.run((target,), "cpu", 1, table, dry_run=False) == 0
    assert list(tune.read(table)["made-up"]) == [KEY]


@pytest.mark.parametrize("moment", ["fsync", "replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_write_leaves_the_old_table(monkeypatch, table, moment, error):
    target, before = better_always(monkeypatch), table.read_bytes()

    def interrupted(*args):
        raise error

    monkeypatch.setattr(os, moment, interrupted)
    with pytest.raises(error):
        tune.run((target,), "cpu", 1, table, dry_run=False)
    assert table.read_bytes() == before
    assert list(table.parent.iterdir()) == [table]


def test_the_committed_table_is_valid():
    assert tune.read(tune.TABLE) == _launch_table.TABLE
    assert tune.TABLE.read_text().endswith(tune.render(_launch_table.TABLE))
    assert {target.name for target in tune.TARGETS} == _launch_table.TABLE.keys()
    for (kind, dtype, half), row in _launch_table.TABLE["window"].items():
        assert row.keys() == {"queries", "dense", "measured"}
        assert kind == "cpu" or kind.startswith(("sm_", "gfx_"))
        assert getattr(torch, dtype).is_floating_point and half > 0
        assert 16 <= row["queries"] <= row["dense"]


@pytest.mark.parametrize("kind", ["sm_1234", "meta", ""])
@pytest.mark.parametrize("half, queries", [(0, 64), (4, 64), (64, 64), (100, 100), (4096, 256)])
def test_an_unknown_device_has_the_rule(kind, half, queries):
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert _launches.window(kind, dtype, half) == (queries, queries + 2 * half)


def test_a_row_of_the_table_is_used(monkeypatch):
    row = _launches.Window(96, 200)
    monkeypatch.setitem(_launches._WINDOWS, ("cpu", "float32", 4), row)
    assert _launches.window(_launches.arch(torch.device("cpu")), torch.float32, 4) == row
    plan = _grouped.prepare(layout(200, 201), (4, None), torch.float32)
    assert [tuple(group.masks[4].shape) for group in plan.groups] == [
        (1, 1, 200, 200),
        (3, 1, 96, 104),
    ]


@pytest.mark.parametrize("launch", tune_targets._window_candidates(("cpu", "float32", 9)), ids=str)
def test_every_candidate_computes_the_same(launch):
    where = layout(700, 1, 97, 130, 32, 96)
    qkv = torch.randn(sum(where.lengths), 3, 2, 8)
    exact, plain = (attention.reference(x, where, 9)[0] for x in (qkv.double(), qkv))
    plan = _grouped.prepare(where, (9,), torch.float32, lambda *key: launch)
    assert_as_good_as(_grouped.attend(qkv, plan, 9), plain, exact)


def test_the_command_searches_here(monkeypatch, capsys):
    monkeypatch.setattr(tune_targets, "LENGTHS", {"cpu": (300, 200, 70)})
    monkeypatch.setattr(tune_targets, "HEADS", 2)
    monkeypatch.setattr(tune_targets, "DTYPES", {"cpu": ("bfloat16",)})
    before = tune.TABLE.read_bytes()
    assert tune.main(["--device", "cpu", "--dry-run", "--seconds", "0.1", "--most", "3"]) == 0
    out = capsys.readouterr().out
    assert "window ('cpu', 'bfloat16', 64)" in out
    assert "queries=64 dense=192" in out and "is out" not in out
    assert tune.TABLE.read_bytes() == before


def test_a_device_that_is_not_there_is_refused(capsys):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert tune.main(["--device", "cuda", "--dry-run"]) == 2
    assert "cuda" in capsys.readouterr().err
