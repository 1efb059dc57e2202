"""The native feed-forward block on every tier: numbers, gradients, dropout, bits."""

import pytest
import torch
from closeness import assert_as_good_as, assert_same_bits
from native_harness import each_dtype, each_tier, leaves, on, same_in, with_gradients

from encoder_fast.kernels import _native, _numeric, mlp
from encoder_fast.kernels.activations import ACTIVATIONS

each_form = pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
each_mode = pytest.mark.parametrize("keep", [True, False], ids=["kept", "recomputed"])
BEST = next(iter(_native.tiers()), None)


def draw(T, W, inner, gated, bias=True, dtype=torch.float32):
    rows = 2 * inner if gated else inner
    up, down = torch.randn(rows, W) / W**0.5, torch.randn(W, inner) / inner**0.5
    biases = (torch.randn(rows), torch.randn(W)) if bias else (None, None)
    return leaves(dtype, torch.randn(T, W), up, biases[0], down, biases[1])


def all_of(run, inputs, cotangent, *how) -> dict:
    return with_gradients(run(*inputs, *how), cotangent, inputs)


def assert_good(inputs, monkeypatch, activation, gated, keep=True) -> None:
    cotangent = torch.randn(inputs[0].shape).to(inputs[0].dtype)
    how = activation, gated
    ours = all_of(mlp.native_mlp, inputs, cotangent, *how, 0.0, keep)
    exact = all_of(mlp.reference, same_in(torch.float64, inputs), cotangent.double(), *how)
    with monkeypatch.context() as patch:
        patch.setattr(mlp, "wide", lambda x: x)
        plain = all_of(mlp.reference, same_in(inputs[0].dtype, inputs), cotangent, *how)
    assert_as_good_as(ours, plain, exact, factor=3)
    assert_as_good_as(ours["result"], plain["result"], exact["result"])


@each_tier
@each_dtype
@each_form
@each_mode
@pytest.mark.parametrize("shape", [(0, 8, 8), (1, 33, 1), (17, 31, 67), (130, 65, 97)], ids=str)
def test_result_and_gradients(tier, dtype, gated, keep, shape, monkeypatch):
    with on(tier):
        for bias in (True, False):
            assert_good(draw(*shape, gated, bias, dtype), monkeypatch, "gelu", gated, keep)


@each_tier
@each_dtype
@each_form
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(tier, dtype, gated, activation, monkeypatch):
    with on(tier):
        assert_good(draw(34, 32, 48, gated, True, dtype), monkeypatch, activation, gated)


def dropped(inputs_T, inner, p, seed):
    """What dropout multiplies the inner activation by: read off a block of identities."""
    eye, ones = torch.eye(inner), torch.ones(inputs_T, inner)
    torch.manual_seed(seed)
    with torch.no_grad():
        return mlp.native_mlp(ones, eye, None, eye, None, "relu", False, p)


@each_tier
@each_dtype
@each_form
@each_mode
def test_dropout_is_the_same_mask_in_both_directions(tier, dtype, gated, keep):
    T, inner, p = 70, 67, 0.3
    with on(tier):
        mask = dropped(T, inner, p, seed=3)
        assert abs((mask == 0).double().mean() - p) < 0.03

        def reference(x, up, up_bias, down, down_bias, activation, gated):
            h = torch.nn.functional.linear(x, up, up_bias)
            a, gate = h.chunk(2, -1) if gated else (h, None)
            h = ACTIVATIONS[activation](a)
            h = (h * gate if gated else h) * mask.to(h.dtype)
            return torch.nn.functional.linear(h, down, down_bias)

        inputs = draw(T, 33, inner, gated, True, dtype)
        torch.manual_seed(0)
        cotangent = torch.randn(inputs[0].shape).to(dtype)
        torch.manual_seed(3)
        ours = all_of(mlp.native_mlp, inputs, cotangent, "gelu", gated, p, keep)
        plain = all_of(reference, same_in(dtype, inputs), cotangent, "gelu", gated)
        exact_inputs = same_in(torch.float64, inputs)
        exact = all_of(reference, exact_inputs, cotangent.double(), "gelu", gated)
        assert_as_good_as(ours, plain, exact, factor=3)


@each_tier
@each_dtype
@each_form
def test_bits_do_not_depend_on_threads_or_on_who_needs_a_gradient(tier, dtype, gated):
    inputs = draw(97, 65, 67, gated, True, dtype)
    cotangent = torch.randn(97, 65).to(dtype)
    results = []
    for threads in (1, 2):
        with on(tier, threads):
            torch.manual_seed(1)
            results.append(all_of(mlp.native_mlp, inputs, cotangent, "gelu", gated, 0.1))
    for name, first in results[0].items():
        assert_same_bits(results[1][name], first, name)
    with on(tier):
        for i in range(5):
            alone = [t.detach().requires_grad_(j == i) for j, t in enumerate(inputs)]
            torch.manual_seed(1)
            out = mlp.native_mlp(*alone, "gelu", gated, 0.1)
            (grad,) = torch.autograd.grad(out, alone[i], cotangent)
            assert_same_bits(grad, results[0][str(i)], str(i))


@each_form
def test_NaN_stays_in_its_row(gated):
    inputs = draw(20, 32, 48, gated)
    with on(BEST):
        clean = mlp.native_mlp(*inputs, "gelu", gated)
        inputs[0].data[7, 3] = float("nan")
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                ours = mlp.native_mlp(*inputs, "gelu", gated)
            assert ours[7].isnan().all()
            others = torch.arange(20) != 7
            assert not ours[others].isnan().any()
            assert torch.allclose(ours[others], clean[others], atol=1e-5)


def test_the_reference_here_is_the_plain_formula():
    assert mlp.wide is _numeric.wide
