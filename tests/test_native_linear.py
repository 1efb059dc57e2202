"""The native linear layer on every tier: numbers, gradients, packs that are never stale, bits."""

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_as_good_as, assert_same_bits
from native_harness import each_dtype, each_tier, leaves, on, same_in, with_gradients

from encoder_fast.kernels import linear

RUN = linear.native_linear
SHAPES = (
    (0, 7, 5),
    (1, 1, 1),
    (1, 33, 130),
    (5, 65, 17),
    (17, 96, 64),
    (97, 130, 67),
    (130, 31, 97),
)


def draw(T, K, N, bias=True, dtype=torch.float32):
    draws = torch.randn(T, K), torch.randn(N, K) / K**0.5, torch.randn(N) if bias else None
    return leaves(dtype, *draws)


def all_of(run, inputs, cotangent) -> dict:
    return with_gradients(run(*inputs), cotangent, inputs)


def assert_good(inputs) -> None:
    x, weight, _ = inputs
    cotangent = torch.randn(x.shape[0], weight.shape[0]).to(x.dtype)
    ours = all_of(RUN, inputs, cotangent)
    plain = all_of(F.linear, same_in(x.dtype, inputs), cotangent)
    exact = all_of(F.linear, same_in(torch.float64, inputs), cotangent.double())
    assert_as_good_as(ours, plain, exact, factor=3)
    assert_as_good_as(ours["result"], plain["result"], exact["result"])


@each_tier
@each_dtype
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_result_and_gradients(tier, dtype, bias, shape):
    with on(tier):
        assert_good(draw(*shape, bias, dtype))


@each_dtype
def test_many_tokens_are_summed_in_parts(dtype):
    with on(_best(), threads=2):
        assert_good(draw(4500, 70, 130, True, dtype))


def _best():
    from encoder_fast.kernels import _native

    return next(iter(_native.tiers()), None)


@each_tier
@each_dtype
def test_strided_operands(tier, dtype):
    x, weight, bias = draw(9, 40, 24, True, dtype)
    memories = (
        (x.detach().t().contiguous().t(), weight.detach().t().contiguous().t(), bias.detach()),
        (torch.cat([x, x], 1).detach()[:, :40], weight.detach().repeat(2, 1)[::2], bias.detach()),
        (x.detach()[:1].expand(9, 40), weight.detach(), bias.detach()[:1].expand(24)),
    )
    with on(tier):
        for memory in memories:
            assert_good([t.requires_grad_() for t in memory])


@each_tier
@each_dtype
def test_bits_do_not_depend_on_threads_or_on_who_needs_a_gradient(tier, dtype):
    inputs = draw(97, 130, 67, True, dtype)
    cotangent = torch.randn(97, 67).to(dtype)
    results = []
    for threads in (1, 2, 2):
        with on(tier, threads):
            results.append(all_of(RUN, inputs, cotangent))
    for other in results[1:]:
        for name, first in results[0].items():
            assert_same_bits(other[name], first, name)
    with on(tier):
        for i in range(3):
            alone = [t.detach().requires_grad_(j == i) for j, t in enumerate(inputs)]
            (grad,) = torch.autograd.grad(RUN(*alone), alone[i], cotangent)
            assert_same_bits(grad, results[0][str(i)], str(i))


def _step(weight):
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=1.0).step()


CHANGES = {
    "optimiser": _step,
    "load": lambda w: torch.nn.ParameterDict({"w": w}).load_state_dict({"w": torch.randn_like(w)}),
    "data mul_": lambda w: w.data.mul_(3),
    "data swap": lambda w: setattr(w, "data", torch.randn_like(w)),
    "no_grad add_": lambda w: w.add_(1),
}


@each_dtype
@pytest.mark.parametrize("how", CHANGES)
def test_a_changed_weight_is_packed_anew_for_both_directions(dtype, how):
    x, weight, bias = draw(5, 48, 32, True, dtype)
    weight = torch.nn.Parameter(weight.detach())
    with on(_best()):
        assert_good((x, weight, bias))
        with torch.no_grad():
            CHANGES[how](weight)
        assert_good((x, weight, bias))


def test_medium_precision_multiplies_in_bf16_where_the_tier_can():
    inputs = draw(17, 96, 64)
    exact = F.linear(*same_in(torch.float64, inputs))
    with on(_best()):
        torch.set_float32_matmul_precision("medium")
        try:
            ours = RUN(*inputs)
        finally:
            torch.set_float32_matmul_precision("highest")
        error = (ours - exact).abs().max() / exact.abs().max()
        assert error < 2**-7
        assert_good(inputs)


def test_a_second_derivative_is_refused():
    x, weight, bias = draw(3, 8, 4)
    with on(_best()):
        (grad,) = torch.autograd.grad(RUN(x, weight, bias).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            grad.sum().backward()


def test_what_the_engine_cannot_read_takes_the_torch_form():
    x, weight, bias = draw(5, 8, 4)
    with on(_best()):
        _, tangent = torch.func.jvp(lambda x: RUN(x, weight, bias), (x,), (torch.ones(5, 8),))
        assert torch.allclose(tangent, weight.sum(1).expand(5, 4), atol=1e-5)
        per_row = torch.func.vmap(lambda row: RUN(row[None], weight, bias)[0])(x)
        assert torch.allclose(per_row, F.linear(x, weight, bias), atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            assert RUN(x, weight, bias).dtype == torch.bfloat16
        with torch.inference_mode():
            fresh = weight * 1
            assert torch.equal(RUN(x, fresh, None), F.linear(x, fresh))
