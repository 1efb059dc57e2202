"""add_norm, rope, embed and pool of the native engine: every tier, random shapes, same bits.

What all backends promise is in `test_ops.py` and the files of the ops; this adds what is special
to the engine: its tiers, its threads, the edges of its vectors and what it must leave to torch.
"""

import pytest
import torch
from closeness import assert_as_good_as, assert_same_bits
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from native_harness import TIERS, each_dtype, each_tier, needs_engine
from op_harness import offsets
from torch import Tensor

from encoder_fast.kernels import _native, _native_rows, dispatch
from encoder_fast.kernels.pool import MODES
from encoder_fast.kernels.rope import rope_tables

pytestmark = needs_engine

OPS = ("add_norm", "rope", "embed", "pool")
TABLES = dispatch.op_tables()
each_op = pytest.mark.parametrize("op", OPS)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def arguments_of(op: str, T: int, W: int, how: int) -> dict:
    """Random fp64 arguments; the bits of `how` choose among optional ones."""
    t = torch.arange(T)
    if op == "add_norm":
        residual = normal(T, W) if how & 1 else None
        bias = normal(W) if how & 2 else None
        names = ("x_TW", "residual_TW", "weight_W", "bias_W", "eps")
        values = normal(T, W), residual, 1 + normal(W) / 4, bias, 1e-5
        return dict(zip(names, values, strict=True))
    if op == "rope":
        tables = rope_tables(t * 37 % 8192, 1e4, 2 * W)
        names = "qkv_T3HD", "cos_TK", "sin_TK"
        return dict(zip(names, (normal(T, 3, 1 + how, 2 * W), *tables), strict=True))
    if op == "pool":
        cut = T * (how % 3) // 2
        mode = {"mode": MODES[how % len(MODES)]}
        return {"x_TW": normal(T, W), "cu_seqlens_B1": offsets((cut, 0, T - cut)), **mode}
    return {
        "ids_T": None if how & 4 else t * t % 13,
        "embeds_TE": normal(T, W) if how & 4 else None,
        "token_VE": normal(13, W),
        "position_PE": normal(9, W) if how & 1 else None,
        "positions_T": t % 9,
        "type_YE": normal(2, W) if how & 2 else None,
        "types_T": t % 2,
        "norm_weight_E": 1 + normal(W) / 4,
        "norm_bias_E": normal(W) if how & 1 else None,
        "eps": 1e-12,
        "padding_idx": 1 if how & 2 else None,
        "position_padding_idx": -1 if how & 1 else None,
    }


def leaves_of(arguments: dict, dtype: torch.dtype, base: dict | None = None) -> dict:
    """Arguments in a dtype, as leaves; the tables of rope stay as they are."""
    leaves = {}
    for name, x in arguments.items():
        if isinstance(x, Tensor) and x.dtype == torch.float64:
            x = x.to(torch.bfloat16 if base else dtype).to(dtype).requires_grad_()
        leaves[name] = x
    return leaves


def call(op: str, backend: str, leaves: dict, cotangents: list[Tensor] | None = None) -> dict:
    """Results, and the gradient of every leaf for random cotangents."""
    results = TABLES[op][backend].run(**leaves)
    results = list(results if isinstance(results, tuple) else (results,))
    generator = torch.Generator().manual_seed(3)
    cotangents = [torch.randn(y.shape, generator=generator).to(y.dtype) for y in results]
    wanted = {n: x for n, x in leaves.items() if isinstance(x, Tensor) and x.requires_grad}
    grads = torch.autograd.grad(results, list(wanted.values()), cotangents, materialize_grads=True)
    return {"results": results, **dict(zip(wanted, grads, strict=True))}


def check_law(op: str, arguments: dict, dtype: torch.dtype) -> None:
    """`native` is as good as `torch` in the same dtype, against the specification in fp64."""
    exact = {
        n: x.to(dtype).double() if isinstance(x, Tensor) and x.dtype == torch.float64 else x
        for n, x in arguments.items()
    }
    ours, plain = (call(op, b, leaves_of(exact, dtype)) for b in ("native", "torch"))
    oracle = call(op, "reference", leaves_of(exact, torch.float64))
    assert_as_good_as(ours.pop("results"), plain.pop("results"), oracle.pop("results"))
    assert_as_good_as(ours, plain, oracle, factor=3)


@each_tier
@each_op
@each_dtype
@pytest.mark.parametrize("T, W", [(70, 96), (3, 1), (0, 7), (1, 67), (65, 131)])
def test_each_tier_is_as_good_as_torch(tier, op, dtype, T, W):
    torch.manual_seed(T + W)
    with _native.use_tier(tier):
        for how in range(8):
            check_law(op, arguments_of(op, T, W, how), dtype)


@each_op
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_shapes(op, data):
    T, W = data.draw(st.integers(0, 90)), data.draw(st.integers(1, 140))
    # The norm of two numbers is +-1 whatever they are: its gradient is the rounding of nothing.
    assume(W != 2 or op not in ("embed", "add_norm"))
    tier, dtype = data.draw(st.sampled_from(TIERS)), data.draw(st.sampled_from((0, 1)))
    torch.manual_seed(T * W)
    with _native.use_tier(tier):
        arguments = arguments_of(op, T, W, data.draw(st.integers(0, 7)))
        check_law(op, arguments, (torch.float32, torch.bfloat16)[dtype])


@each_op
@each_dtype
def test_same_bits_for_any_number_of_threads(op, dtype):
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            results.append(call(op, "native", leaves_of(arguments_of(op, 700, 96, 3), dtype)))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for name, x in results[0].items():
            pairs = zip(x, other[name], strict=True) if name == "results" else [(x, other[name])]
            for a, b in pairs:
                assert_same_bits(b, a, name)


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
def test_bf16_rows_with_an_fp32_norm(residual):
    arguments = arguments_of("add_norm", 70, 96, 3 if residual else 2)
    kept = {n: arguments.pop(n).float() for n in ("weight_W", "bias_W")}

    def of(dtype: torch.dtype, backend: str) -> dict:
        leaves = leaves_of(arguments, dtype, base=arguments)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        leaves |= {n: x.to(wide).requires_grad_() for n, x in kept.items()}
        return call("add_norm", backend, leaves)

    bf16 = torch.bfloat16
    ours, plain = of(bf16, "native"), of(bf16, "torch")
    assert_as_good_as(ours, plain, of(torch.float64, "reference"), factor=3)


@each_op
def test_strided_inputs_and_expanded_cotangents(op):
    for how in (0, 3, 7):
        leaves = leaves_of(arguments_of(op, 34, 40, how), torch.float32)
        strided = {
            n: x.detach().mT.contiguous().mT.requires_grad_()
            if isinstance(x, Tensor) and x.requires_grad and x.ndim > 1
            else x
            for n, x in leaves.items()
        }
        for one in (leaves, strided):
            y = TABLES[op]["native"].run(**one)
            y = y[0] if isinstance(y, tuple) else y
            x = next(x for x in one.values() if isinstance(x, Tensor) and x.requires_grad)
            one["grad"] = torch.autograd.grad(y, x, torch.ones(()).expand_as(y))[0]
        assert_same_bits(strided["grad"], leaves["grad"])


def test_only_one_of_two_results_is_used():
    leaves = leaves_of(arguments_of("add_norm", 5, 12, 3), torch.float32)
    wanted = [x for x in leaves.values() if isinstance(x, Tensor)]
    for which in (0, 1):
        grads = [
            torch.autograd.grad(
                TABLES["add_norm"][b].run(**leaves)[which].square().sum(), wanted, allow_unused=True
            )
            for b in ("native", "torch")
        ]
        for ours, plain in zip(*grads, strict=True):
            assert (ours is None) == (plain is None)
            assert ours is None or torch.allclose(ours, plain, atol=1e-5)


def test_frozen_parameters_get_no_gradient():
    leaves = leaves_of(arguments_of("embed", 5, 12, 3), torch.float32)
    leaves["token_VE"].requires_grad_(False)
    leaves["norm_bias_E"].requires_grad_(False)
    TABLES["embed"]["native"].run(**leaves).square().sum().backward()
    assert leaves["token_VE"].grad is None and leaves["norm_bias_E"].grad is None
    assert leaves["position_PE"].grad is not None and leaves["norm_weight_E"].grad is not None


@pytest.mark.parametrize("bad", [-1, 13])
def test_an_index_outside_of_its_table_is_an_error(bad):
    leaves = leaves_of(arguments_of("embed", 5, 12, 3), torch.float32)
    leaves["ids_T"][3] = bad
    with pytest.raises(IndexError, match=f"got {bad} for token 3, allowed are 0 to 12"):
        TABLES["embed"]["native"].run(**leaves)


@pytest.mark.parametrize("cu", [(0, 3, 2), (-1, 5), (0, 6)], ids=str)
def test_offsets_outside_of_the_batch_are_an_error(cu):
    with pytest.raises(ValueError, match="cu_seqlens_B1: got"):
        TABLES["pool"]["native"].run(torch.randn(5, 4), torch.tensor(cu, dtype=torch.int32))


@pytest.mark.parametrize("mode", MODES)
def test_tokens_of_no_sequence_get_no_gradient(mode):
    x_TW = torch.randn(7, 4).requires_grad_()
    cu = torch.tensor((2, 4, 6), dtype=torch.int32)
    TABLES["pool"]["native"].run(x_TW, cu, mode).sum().backward()
    assert x_TW.grad[[0, 1, 6]].count_nonzero() == 0
    assert x_TW.grad.count_nonzero() > 0


class Subclass(torch.Tensor):
    pass


@each_op
def test_what_the_engine_does_not_see_goes_to_torch(op, monkeypatch):
    """Autocast to fp16, function transforms, forward-mode gradients, subclasses, other dtypes."""

    def refused(*_):
        raise AssertionError("the engine was called")

    for name in ("add_norm", "rope", "embed", "pool"):
        monkeypatch.setattr(_native_rows, name, refused)
    # Of pool's torch forms, that of cls has forward-mode gradients.
    native, arguments = TABLES[op]["native"].run, arguments_of(op, 6, 8, 6 if op == "pool" else 3)
    first = next(n for n, x in arguments.items() if isinstance(x, Tensor) and x.is_floating_point())
    leaves = leaves_of(arguments, torch.float32)

    def of(x: Tensor):
        y = native(**{**leaves, first: x})
        return y[0] if isinstance(y, tuple) else y

    plain = leaves[first].detach()
    with torch.no_grad():
        expected = TABLES[op]["torch"].run(**leaves)
    expected = expected[0] if isinstance(expected, tuple) else expected
    assert torch.equal(of(plain.as_subclass(Subclass)), expected)
    with torch.autocast("cpu", torch.float16):
        assert of(plain).isfinite().all()
    if op != "rope":  # its torch form has a backward of its own, without function transforms
        assert torch.func.grad(lambda x: of(x).sum())(plain).isfinite().all()
        assert torch.func.jvp(of, (plain,), (plain,))[1].isfinite().all()
    half = leaves_of(arguments, torch.float16)
    y = native(**half)
    assert (y[0] if isinstance(y, tuple) else y).isfinite().all()


@each_op
def test_a_second_derivative_is_refused(op):
    leaves = leaves_of(arguments_of(op, 6, 8, 3), torch.float32)
    first = next(x for x in leaves.values() if isinstance(x, Tensor) and x.requires_grad)
    y = TABLES[op]["native"].run(**leaves)
    y = y[0] if isinstance(y, tuple) else y
    (grad,) = torch.autograd.grad(y.square().sum(), first, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@each_op
def test_reasons_to_refuse(op):
    def why(device: str, dtype: torch.dtype) -> str | None:
        return dispatch.why_not(
            op, "native", dispatch.Request(torch.device(device), dtype, 64, 768)
        )

    assert why("cpu", torch.float32) is why("cpu", torch.bfloat16) is None
    assert "float16" in why("cpu", torch.float16)
    assert "cuda" in why("cuda", torch.float32)
