"""Rotary positions: identity at zero, only distances matter, exact angles, a backward turn."""

import pytest
import torch
from closeness import assert_same_bits
from op_harness import backends_of, one_thread, skip_if_refused  # noqa: F401
from torch import Tensor

from encoder_fast.kernels import dispatch
from encoder_fast.kernels.rope import rope_tables

each_backend = pytest.mark.parametrize("backend", backends_of("rope"))
each_width = pytest.mark.parametrize("D", [2, 6, 8, 40, 64, 72, 96, 128])


def rotate(backend: str, qkv_T3HD: Tensor, positions: list[int], theta: float = 10000.0) -> Tensor:
    skip_if_refused("rope", backend, qkv_T3HD.dtype, qkv_T3HD.shape[-1])
    tables = rope_tables(torch.tensor(positions), theta, qkv_T3HD.shape[-1])
    return dispatch.op_tables()["rope"][backend].run(qkv_T3HD, *tables)


@each_backend
@each_width
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_position_zero_is_identity(backend, D, dtype):
    qkv = torch.randn(3, 3, 2, D).to(dtype)
    assert torch.equal(rotate(backend, qkv, [0, 0, 0]), qkv)


@each_backend
@each_width
def test_values_pass_and_lengths_stay(backend, D):
    qkv = torch.randn(4, 3, 2, D)
    turned = rotate(backend, qkv, [1, 7, 300, 8191])
    assert_same_bits(turned[:, 2], qkv[:, 2])
    assert (turned.norm(dim=-1) / qkv.norm(dim=-1) - 1).abs().max() < 1e-6
    assert (turned[:, :2] - qkv[:, :2]).abs().amax(dim=(1, 2, 3)).min() > 1e-2


@each_backend
@each_width
@pytest.mark.parametrize("theta", [10000.0, 160000.0])
def test_scores_depend_on_distance_only(backend, D, theta):
    """The same tokens 100 positions further give the same scores; one position nearer do not."""
    qkv = torch.randn(6, 3, 2, D)

    def scores(positions: list[int]) -> Tensor:
        q, k, _ = rotate(backend, qkv, positions, theta).unbind(1)
        return torch.einsum("ihd,jhd->hij", q.double(), k.double())

    here, there = scores([0, 1, 2, 5, 9, 40]), scores([100, 101, 102, 105, 109, 140])
    assert (here - there).abs().max() < 1e-4 * max(1.0, here.abs().max().item())
    assert (here - scores([0, 1, 2, 5, 9, 39])).abs().max() > 1e-2


@each_backend
def test_worked_quarter_turn_of_the_half_form(backend):
    """A first pair of angle 1 and a second of angle 1/100: (x1, x2) are elements 0, 2 and 1, 3."""
    qkv = torch.tensor([1.0, 2.0, 3.0, 4.0]).repeat(1, 3, 1, 1)
    turned = rotate(backend, qkv, [1])[0, 0, 0].double()
    a, b = torch.polar(torch.ones(2).double(), torch.tensor([1.0, 0.01]).double()) * torch.tensor(
        [1 + 3j, 2 + 4j], dtype=torch.complex128
    )
    expected = torch.stack((a.real, b.real, a.imag, b.imag))
    assert (turned - expected).abs().max() < 1e-6


@each_backend
@each_width
def test_backward_turns_back(backend, D):
    """Rotation is orthogonal: the gradient of a cotangent, rotated again, is the cotangent."""
    positions = [3, 0, 511, 8191]
    qkv, cotangent = torch.randn(4, 3, 2, D).requires_grad_(), torch.randn(4, 3, 2, D)
    rotate(backend, qkv, positions).backward(cotangent)
    assert (rotate(backend, qkv.grad, positions) - cotangent).abs().max() < 2e-6


@each_backend
def test_tokens_beyond_one_block_get_their_own_angles(backend):
    qkv, positions = torch.randn(1, 3, 2, 8), [t * 7 % 1030 for t in range(1030)]
    turned = rotate(backend, qkv.expand(1030, 3, 2, 8), positions)
    for t in (0, 511, 512, 1023, 1024, 1029):
        assert (turned[t] - rotate(backend, qkv, [positions[t]])[0]).abs().max() < 1e-6


@pytest.mark.parametrize("theta", [10000.0, 160000.0])
@pytest.mark.parametrize("D", [8, 64, 128])
@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16], ids=str)
def test_C31_tables_are_within_a_thousandth_of_a_radian_at_8191(theta, D, default):
    """bf16 frequencies would be 3.6 rad off here; the default dtype must not matter."""
    positions = torch.tensor([0, 1, 511, 8191])
    torch.set_default_dtype(default)
    try:
        cos, sin = rope_tables(positions, theta, D)
    finally:
        torch.set_default_dtype(torch.float32)
    assert cos.dtype == sin.dtype == torch.float32
    k = torch.arange(D // 2, dtype=torch.float64)
    exact = positions[:, None].double() * torch.pow(torch.tensor(theta).double(), -2 * k / D)
    off = torch.atan2(sin.double(), cos.double()) - exact
    off = torch.remainder(off + torch.pi, 2 * torch.pi) - torch.pi
    assert off.abs().max() <= 1e-3
