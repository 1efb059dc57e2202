"""How the torch backend groups sequences must not be seen in what it computes."""

import pytest
import torch
from closeness import assert_as_good_as
from op_harness import attend, layout, layout_of, one_thread  # noqa: F401

from encoder_fast.kernels import _grouped

HALVES = pytest.mark.parametrize("half", [None, 4])


def compared(lengths, half, where=None):
    where = layout(*lengths) if where is None else where
    qkv = torch.randn(sum(lengths), 3, 2, 8)
    ours = attend("torch", qkv, where, half)
    plain = attend("reference", qkv, where, half)
    assert_as_good_as(ours, plain, attend("reference", qkv.double(), where, half))


@HALVES
def test_C20_more_sequences_than_one_call_takes(monkeypatch, half):
    monkeypatch.setattr(_grouped, "SEQUENCES_PER_CALL", 3)
    lengths = (5, 90, 5, 5, 0, 5, 90, 5, 5, 5, 90, 90, 90)
    plan = _grouped.prepare(layout(*lengths), (half,), torch.float32)
    assert max(group.count for group in plan.groups) == 3
    assert sum(group.count for group in plan.groups) == 12
    compared(lengths, half)


def test_C20_seventy_thousand_sequences_in_calls_below_the_grid_limit():
    plan = _grouped.prepare(layout(*(1,) * 70_000), (None,), torch.float32)
    assert [group.count for group in plan.groups] == [32_768, 32_768, 4_464]


def test_C10_holes_only_part_sequences_where_a_window_could_tell():
    columns = [[0, 1, 2, 9], [0, 1, 2, 3], [0, 5, 6, 7]]
    whole = _grouped.prepare(layout_of(columns), (None,), torch.float32)
    apart = _grouped.prepare(layout_of(columns), (None, 4), torch.float32)
    assert [g.count for g in whole.groups] == [3]
    assert [g.count for g in apart.groups] == [1, 1, 1]
    for half in (None, 4):
        compared((4, 4, 4), half, layout_of(columns))
