"""The activations that configs name (C36), alone and inside the feed-forward block."""

import math

import pytest
import torch
from op_harness import backends_of, one_thread, skip_if_refused  # noqa: F401

from encoder_fast.kernels import dispatch
from encoder_fast.kernels.activations import ACTIVATIONS, activation_function

each_backend = pytest.mark.parametrize("backend", backends_of("mlp"))
POINTS = (-2.7, -1.0, 0.0, 0.5, 2.7)


def gelu_erf(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: float) -> float:
    return x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


FORMULAS = {
    "gelu": gelu_erf,
    "gelu_python": gelu_erf,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "relu": lambda x: max(x, 0.0),
    "silu": silu,
    "swish": silu,
    "tanh": math.tanh,
}


def test_every_activation_has_a_formula():
    assert ACTIVATIONS.keys() == FORMULAS.keys()


def test_C36_the_two_gelus_can_be_told_apart():
    assert abs(gelu_erf(2.7) - gelu_tanh(2.7)) == pytest.approx(4.73e-4, rel=1e-2)


def mlp(backend, x_TW, up, up_bias, down, down_bias, activation, gated):
    skip_if_refused("mlp", backend, x_TW.dtype)
    run = dispatch.op_tables()["mlp"][backend].run
    return run(x_TW, up, up_bias, down, down_bias, activation, gated)


@pytest.mark.parametrize("name", FORMULAS)
def test_C36_activation_is_the_named_function(name):
    got = activation_function(name)(torch.tensor(POINTS))
    assert got.tolist() == pytest.approx([FORMULAS[name](x) for x in POINTS], abs=1e-6)


@each_backend
@pytest.mark.parametrize("name", FORMULAS)
def test_C36_block_applies_the_named_function(backend, name):
    one = torch.ones(1, 1)
    y = mlp(backend, torch.tensor(POINTS)[:, None], one, None, one, None, name, False)[:, 0]
    assert y.tolist() == pytest.approx([FORMULAS[name](x) for x in POINTS], abs=1e-6)


@each_backend
def test_C36_gate_is_the_second_half_of_the_rows(backend):
    """Of up rows (1, 10) the first is activated; down weight 2 and biases 0.5, -3 and 0.25."""
    up, up_bias = torch.tensor([[1.0], [10.0]]), torch.tensor([0.5, -3.0])
    down, down_bias = torch.tensor([[2.0]]), torch.tensor([0.25])
    x_TW = torch.tensor(POINTS)[:, None]
    y = mlp(backend, x_TW, up, up_bias, down, down_bias, "gelu", True)[:, 0]
    expected = [2 * gelu_erf(x + 0.5) * (10 * x - 3) + 0.25 for x in POINTS]
    assert y.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)


@each_backend
def test_C36_unknown_activation_is_named(backend):
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match=r"activation: got 'gelo', allowed are .*'gelu'"):
        mlp(backend, one, one, None, one, None, "gelo", False)


@each_backend
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_C56_dropout_keeps_the_mean_and_the_seed_reproduces(backend, gated):
    """With identity weights the output is the dropped activation itself."""
    skip_if_refused("mlp", backend, torch.float32)
    F, T, p = 64, 2000, 0.25
    up = torch.eye(F).repeat(2 if gated else 1, 1)
    run = dispatch.op_tables()["mlp"][backend].run
    x_TW = torch.full((T, F), 2.0)
    kept_value = (4.0 if gated else 2.0) / (1 - p)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(run(x_TW, up, None, torch.eye(F), None, "relu", gated, p))
    kept = draws[0] != 0
    assert (draws[0][kept] - kept_value).abs().max() < 1e-5
    deviations = (kept.double().mean().item() - (1 - p)) / math.sqrt(p * (1 - p) / (T * F))
    assert abs(deviations) < 4.5
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
