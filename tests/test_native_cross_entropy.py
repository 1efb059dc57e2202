"""The native vocabulary loss on every tier, beside what test_linear_cross_entropy asks of all."""

import math

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_as_good_as, assert_same_bits, ulps
from native_harness import each_dtype, each_tier, leaves, on, same_in

from encoder_fast.kernels import _native, linear_cross_entropy

RUN = linear_cross_entropy.native_linear_cross_entropy
BEST = next(iter(_native.tiers()), None)


def draw(N, V, W, dtype=torch.float32):
    inputs = leaves(dtype, torch.randn(N, W), torch.randn(V, W) / W**0.5, torch.randn(V))
    return inputs, torch.randint(V, (N,))


def all_of(run, inputs, labels, **how) -> dict:
    given = [t for t in inputs if t is not None]
    loss = run(*inputs, labels, **how)
    return {"loss": loss, **dict(enumerate(torch.autograd.grad(loss, given)))}


def formula(x, weight, bias, labels, label_smoothing=0.0, z_loss=0.0):
    z = F.linear(x, weight, bias)
    loss = F.cross_entropy(z, labels, label_smoothing=label_smoothing)
    return loss + z_loss * z.logsumexp(1).square().mean() if z_loss else loss


def assert_good(inputs, labels, **how) -> None:
    dtype = inputs[0].dtype
    ours = all_of(RUN, inputs, labels, **how)
    plain = all_of(formula, same_in(dtype, inputs), labels, **how)
    exact = all_of(formula, same_in(torch.float64, inputs), labels, **how)
    three = ours.pop("loss"), plain.pop("loss").float(), exact.pop("loss")
    assert_as_good_as(*three, floor=ulps(dtype, three[2]), name="loss")
    assert_as_good_as(ours, plain, exact, factor=3)


@each_tier
@each_dtype
@pytest.mark.parametrize("kept", [0, 2**23], ids=["recomputed", "kept"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 97, 33), (64, 96, 32), (130, 197, 65)], ids=str)
def test_result_and_gradients(tier, dtype, kept, shape, monkeypatch):
    monkeypatch.setattr(linear_cross_entropy, "LOGITS_PER_CHUNK", kept)
    with on(tier):
        inputs, labels = draw(*shape, dtype)
        for how in ({}, {"label_smoothing": 0.1}, {"z_loss": 0.05}):
            assert_good(inputs, labels, **how)
        assert_good((*inputs[:2], None), labels)


@each_dtype
@pytest.mark.parametrize("kept", [0, 2**23], ids=["recomputed", "kept"])
@pytest.mark.parametrize("shape", [(40, 9300, 33), (4200, 300, 17)], ids=str)
def test_several_groups_of_words_and_of_tokens(dtype, kept, shape, monkeypatch):
    monkeypatch.setattr(linear_cross_entropy, "LOGITS_PER_CHUNK", kept)
    with on(BEST, threads=2):
        assert_good(*draw(*shape, dtype))


@each_tier
@each_dtype
@pytest.mark.parametrize("kept", [0, 2**23], ids=["recomputed", "kept"])
def test_bits_do_not_depend_on_threads(tier, dtype, kept, monkeypatch):
    monkeypatch.setattr(linear_cross_entropy, "LOGITS_PER_CHUNK", kept)
    inputs, labels = draw(97, 500, 65, dtype)
    results = []
    for threads in (1, 2, 2):
        with on(tier, threads):
            results.append(all_of(RUN, inputs, labels))
    for other in results[1:]:
        for name, first in results[0].items():
            assert_same_bits(other[name], first, str(name))


@each_tier
def test_what_is_not_finite_is_seen(tier):
    (x, weight, bias), labels = draw(9, 200, 32)
    with on(tier):
        with torch.no_grad():
            bias[:150] = -math.inf
        exact = F.cross_entropy(F.linear(x, weight, bias), labels % 50 + 150)
        assert RUN(x, weight, bias, labels % 50 + 150).item() == pytest.approx(
            exact.item(), rel=1e-5
        )
        with torch.no_grad():
            bias[7] = math.nan
        assert math.isnan(RUN(x, weight, bias, labels).item())
