"""Dropout in attention (C56): what is dropped, by which chance, and that the backward knows it.

With zero queries every visible key has probability 1 / n, and with one-hot values the output *is*
the probability matrix, so each dropped entry can be seen.
"""

import math

import pytest
import torch
from closeness import assert_same_bits
from op_harness import attend, backends_of, fast_backends_of, layout, one_thread  # noqa: F401
from torch import Tensor

from encoder_fast.kernels import _grouped

each_backend = pytest.mark.parametrize("backend", backends_of("attention"))
each_half = pytest.mark.parametrize("half", [None, 4, 64], ids=["global", "half4", "half64"])


def probabilities(
    backend: str, L: int, H: int, half: int | None, p: float
) -> tuple[Tensor, Tensor]:
    """Dropped probabilities `(L, H, L)` and the number of keys `(L,)` each query sees."""
    qkv = torch.zeros(L, 3, H, L)
    qkv[:, 2] = torch.eye(L)[:, None]
    i = torch.arange(L)
    near = (i[:, None] - i).abs() <= (L if half is None else half)
    return attend(backend, qkv, layout(L), half, p), near.sum(1)


@each_backend
@each_half
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_C56_kept_fraction_and_mean(backend, half, p):
    L, H = 200, 16
    dropped, seen_L = probabilities(backend, L, H, half, p)
    scaled = dropped * seen_L[:, None, None] * (1 - p)
    kept = scaled > 0.5
    assert (scaled[kept] - 1).abs().max() < 1e-5
    assert scaled[~kept].abs().max() == 0
    entries = H * seen_L.sum().item()
    deviations = (kept.sum().item() / entries - (1 - p)) / math.sqrt(p * (1 - p) / entries)
    assert abs(deviations) < 4.5
    # Each head and each query draws its own: with one mask for all, these would not differ.
    assert len({tuple(kept[100, h].nonzero()[:, 0].tolist()) for h in range(H)}) > 1
    assert len({tuple((kept[q, 0, q - 4 : q + 5]).tolist()) for q in range(10, 190)}) > 1


@each_backend
@each_half
def test_C56_seed_reproduces_and_another_draw_differs(backend, half):
    qkv, where = torch.randn(90, 3, 2, 8), layout(80, 10)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(attend(backend, qkv, where, half, 0.3))
        if seed == 2:
            draws.append(attend(backend, qkv, where, half, 0.3))
    assert_same_bits(draws[0], draws[1])
    assert not torch.equal(draws[1], draws[2])
    assert not torch.equal(draws[2], draws[3])


@each_backend
@each_half
def test_C56_without_dropout_no_random_number_is_drawn(backend, half):
    state = torch.get_rng_state()
    attend(backend, torch.randn(20, 3, 2, 8, generator=torch.Generator()), layout(20), half)
    assert torch.equal(torch.get_rng_state(), state)


def assert_gradient_of_the_same_draw(backend: str, lengths: tuple[int, ...], half, H: int, D: int):
    """Directional derivative of backward against central differences with one seed, in fp64."""
    generator = torch.Generator().manual_seed(3)
    shape = (sum(lengths), 3, H, D)
    qkv = torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
    direction = torch.randn(shape, dtype=torch.float64, generator=generator)
    cotangent = torch.randn(shape[0], H, D, dtype=torch.float64, generator=generator)

    def loss(x: Tensor) -> Tensor:
        torch.manual_seed(7)
        return (attend(backend, x, layout(*lengths), half, 0.3) * cotangent).sum()

    value = loss(qkv)
    # A recomputing backward that does not restore the generator would draw other numbers now.
    torch.manual_seed(99)
    value.backward()
    analytic = (qkv.grad * direction).sum().item()
    step = 1e-6
    with torch.no_grad():
        numeric = (loss(qkv + step * direction) - loss(qkv - step * direction)).item() / (2 * step)
    assert analytic == pytest.approx(numeric, rel=1e-6)


@each_backend
@each_half
def test_C56_gradient_belongs_to_the_draw_of_the_forward(backend, half):
    assert_gradient_of_the_same_draw(backend, (12, 0, 85, 12), half, H=2, D=5)


@pytest.mark.parametrize("backend", fast_backends_of("attention"))
@pytest.mark.parametrize("lengths", [(1100,), (40, 1030, 1030)], ids=str)
def test_C56_gradient_beyond_1024_tokens(backend, lengths):
    assert_gradient_of_the_same_draw(backend, lengths, None, H=1, D=3)


@each_half
def test_C56_chunks_of_queries_cover_each_query_once(half, monkeypatch):
    monkeypatch.setattr(_grouped, "QUERIES_PER_CHUNK", 7)
    assert_gradient_of_the_same_draw("torch", (15, 29, 7, 29), half, H=2, D=5)
    L, H, p = 60, 16, 0.25
    dropped, seen_L = probabilities("torch", L, H, half, p)
    scaled = dropped * seen_L[:, None, None] * (1 - p)
    kept = scaled > 0.5
    assert (scaled[kept] - 1).abs().max() < 1e-5
    entries = H * seen_L.sum().item()
    deviations = (kept.sum().item() / entries - (1 - p)) / math.sqrt(p * (1 - p) / entries)
    assert abs(deviations) < 4.5


@each_half
def test_chunks_of_queries_change_no_number(half, monkeypatch):
    """The chunk path with a dropout too rare to happen equals the plain path."""
    never = 1e-12
    qkv, where = torch.randn(80, 3, 2, 8), layout(29, 15, 7, 29)
    plain = attend("torch", qkv, where, half)
    monkeypatch.setattr(_grouped, "QUERIES_PER_CHUNK", 7)
    assert (attend("torch", qkv, where, half, never) - plain).abs().max() < 2e-6
