"""Residual add and LayerNorm on hard rows: cancellation, overflow, constants (C34, C35)."""

import pytest
import torch
from closeness import assert_as_good_as
from op_harness import backends_of, one_thread, skip_if_refused  # noqa: F401

from encoder_fast.kernels import dispatch

each_backend = pytest.mark.parametrize("backend", backends_of("add_norm"))
each_width = pytest.mark.parametrize("W", [32, 96, 768, 1152, 2624])
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def add_norm(backend, x_TW, residual_TW=None, weight_W=None, bias_W=None, eps=1e-12):
    skip_if_refused("add_norm", backend, x_TW.dtype)
    weight_W = x_TW.new_ones(x_TW.shape[-1]) if weight_W is None else weight_W
    run = dispatch.op_tables()["add_norm"][backend].run
    return run(x_TW, residual_TW, weight_W, bias_W, eps)


@each_backend
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("eps", [1e-12, 1e-7, 1e-5])
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_C34_constant_row_gives_the_bias(backend, dtype, eps, value):
    x_TW = torch.full((2, 96), value, dtype=dtype).requires_grad_()
    bias_W = torch.randn(96).to(dtype)
    y_TW, s_TW = add_norm(backend, x_TW, -x_TW.detach(), None, bias_W, eps)
    assert torch.equal(y_TW, bias_W.expand(2, 96))
    assert torch.count_nonzero(s_TW) == 0
    y_TW, _ = add_norm(backend, x_TW, None, None, bias_W, eps)
    if value == 0:
        assert torch.equal(y_TW, bias_W.expand(2, 96))
    # A mean that is off by one rounding in fp32 is divided by sqrt(eps), or by itself.
    rounding = torch.finfo(torch.float32).eps * value
    allowed = min(1.0, rounding / eps**0.5) + torch.finfo(dtype).eps * 4
    assert (y_TW.double() - bias_W.double()).abs().max() <= allowed
    y_TW.sum().backward()
    assert x_TW.grad.isfinite().all()


@each_backend
@each_width
@pytest.mark.parametrize("split", [False, True], ids=["plain", "residual"])
def test_C35_variance_of_a_row_far_from_zero(backend, W, split):
    """Row 0: 1234 and one element 0.01 more. Row 1: 1000 + linspace(-1, 1). One-pass fp32 fails."""
    rows = torch.full((2, W), 1234.0)
    rows[0, W // 2] += 0.01
    rows[1] = 1000 + torch.linspace(-1, 1, W)
    residual = rows / 2 if split else None
    x_TW = rows - residual if split else rows
    inputs, results = [], []
    for dtype in (torch.float32, torch.float32, torch.float64):
        leaf = x_TW.detach().to(dtype).requires_grad_()
        inputs.append(leaf)
        results.append(leaf if residual is None else leaf + residual.to(dtype))
    ours = add_norm(backend, inputs[0], residual)[0]
    y = [ours, *(torch.nn.functional.layer_norm(s, (W,), eps=1e-12) for s in results[1:])]
    assert_as_good_as(*y)
    deviation = rows[0].double().std(correction=0).item()
    assert y[0][0, W // 2].item() == pytest.approx(0.01 * (1 - 1 / W) / deviation, rel=0.02)
    c = torch.randn(2, W)
    grads = [torch.autograd.grad(a, b, c.to(a.dtype))[0] for a, b in zip(y, inputs, strict=True)]
    assert_as_good_as(*grads, factor=3)


@each_backend
@each_width
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
def test_C35_squares_beyond_fp16(backend, W, dtype):
    x_TW = torch.tensor([3e4, -3e4], dtype=dtype).repeat(3, W // 2)
    y_TW, s_TW = add_norm(backend, x_TW)
    allowed = 0 if dtype == torch.float16 else 2 * torch.finfo(dtype).eps
    assert (y_TW - x_TW.sign()).abs().max() <= allowed
    assert torch.equal(s_TW, x_TW)


@each_backend
@each_width
def test_rows_are_centred_and_scaled(backend, W):
    x_TW, residual_TW = 5 + 3 * torch.randn(4, W), torch.randn(4, W)
    y_TW, s_TW = add_norm(backend, x_TW, residual_TW)
    assert torch.equal(s_TW, x_TW + residual_TW)
    assert y_TW.mean(1).abs().max() < 1e-5
    assert (y_TW.var(1, correction=0) - 1).abs().max() < 1e-5


@each_backend
def test_worked_number(backend):
    """(1, 3) has mean 2 and variance 1: with eps 3 each half is divided by 2."""
    weight_W, bias_W = torch.tensor([10.0, 1.0]), torch.tensor([0.5, 0.0])
    x_TW, residual_TW = torch.tensor([[4.0, 1.0]]), torch.tensor([[-3.0, 2.0]])
    y_TW, s_TW = add_norm(backend, x_TW, residual_TW, weight_W, bias_W, 3.0)
    assert s_TW.tolist() == [[1.0, 3.0]]
    assert y_TW.tolist() == [[-4.5, 0.5]]


@each_backend
def test_C35_fp16_sum_beyond_the_largest_number_is_normalised(backend):
    x_TW = torch.tensor([[6e4, -6e4] * 16, [6e4, 3e4] * 16], dtype=torch.float16)
    y_TW, _ = add_norm(backend, x_TW, x_TW)
    assert torch.equal(y_TW, torch.tensor([1.0, -1.0] * 16).half().expand(2, 32))
