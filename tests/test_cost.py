"""Costs are the denominators of every claimed speed, so they are counted here a second way."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from encoder_fast.kernels import attention, linear, linear_cross_entropy, mlp
from encoder_fast.kernels._layout import visible


@pytest.mark.parametrize("half", [None, 0, 1, 4, 9, 10, 64])
@pytest.mark.parametrize("length", [0, 1, 2, 5, 9, 10, 11, 40])
def test_visible_pairs_are_those_of_the_definition(length, half):
    columns = torch.arange(length)
    assert attention.visible_pairs(length, half) == int(visible(columns, columns, half).sum())


def counted(call) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("gated", [False, True])
def test_mlp_cost_is_torchs_count(gated):
    T, W, F = 6, 16, 24
    x, up, down = torch.randn(T, W), torch.randn(F * (2 if gated else 1), W), torch.randn(W, F)
    run = mlp.IMPLEMENTATIONS["torch"].run
    assert mlp.cost(T, W, F, gated, 4).flops == counted(
        lambda: run(x, up, None, down, None, "gelu", gated)
    )


def test_linear_cost_is_torchs_count():
    x, weight = torch.randn(6, 16), torch.randn(24, 16)
    run = linear.IMPLEMENTATIONS["torch"].run
    assert linear.cost(6, 16, 24, 4).flops == counted(lambda: run(x, weight, None))


def test_attention_cost_is_torchs_count_for_one_dense_text():
    q = torch.randn(2, 10, 8)
    assert attention.cost((10,), None, 2, 8, 4).flops == counted(lambda: (q @ q.mT).softmax(-1) @ q)


def test_costs_add():
    total = linear.cost(2, 3, 4, 2) + linear.cost(2, 3, 4, 2)
    assert (total.flops, total.bytes) == (96, 2 * (6 + 12 + 8) * 2)
    assert linear_cross_entropy.cost(2, 3, 5, 4).bytes == (6 + 15) * 4
