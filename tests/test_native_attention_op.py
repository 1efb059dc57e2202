"""Native attention as an op: dropout, traced graphs, and what it leaves to the torch backend."""

import pytest
import torch
from closeness import assert_same_bits
from native_attention import assert_accurate, draw, run
from native_harness import each_dtype, each_tier, needs_engine
from op_harness import layout, layout_of, one_thread  # noqa: F401
from torch import Tensor

from encoder_fast.kernels import _native, _native_attention, _traced, dispatch

pytestmark = needs_engine


def hashed(seed: int, key: Tensor, query: Tensor) -> Tensor:
    """`hash` of csrc/cpu/vec.h, in 64-bit integers."""
    low = (1 << 32) - 1
    x = (query * 0x9E3779B9 + (seed & low)) & low
    x = x ^ ((key + (seed >> 32)) & low) * 0x85EBCA6B & low
    for _ in range(2):
        x = (x ^ x >> 16) * 0x85EBCA6B & low
        x = (x ^ x >> 13) * 0xC2B2AE35 & low
        x = ((x ^ x >> 16) + key) & low
    return x


def kept(seed: int, b: int, H: int, L: int, p: float) -> Tensor:
    """Which elements of sequence `b` the kernels keep, `(H, L, L)`."""
    masks, low = [], (1 << 64) - 1
    query, key = torch.arange(L)[:, None], torch.arange(L)[None]
    for h in range(H):
        x = (seed + (b * H + h + 1) * 0x9E3779B97F4A7C15) & low
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & low
        x = (x ^ x >> 27) * 0x94D049BB133111EB & low
        masks.append(hashed(x ^ x >> 31, key, query) >= int(p * 2**32))
    return torch.stack(masks)


@each_tier
@each_dtype
@pytest.mark.parametrize("half", [None, 20], ids=["global", "half20"])
def test_dropout_keeps_what_the_hash_says(tier, dtype, half):
    lengths, p = (5, 131, 0, 66), 0.25
    torch.manual_seed(0)
    seed = int(torch.randint(2**62, ()))
    keep = [kept(seed, b, 2, n, p) for b, n in enumerate(lengths)]
    with _native.use_tier(tier):
        assert_accurate(draw(sum(lengths), dtype=dtype), layout(*lengths), half, p, keep)


@pytest.mark.parametrize("p", [1e-12, 1.0])
def test_dropout_of_nothing_and_of_everything(p):
    qkv, where, c = draw(90), layout(90), torch.randn(90, 2, 8)
    o, _, d = run(qkv, where, None, c, p)
    if p == 1.0:
        assert not o.any() and not d.any()
    else:
        assert_same_bits(o, run(qkv, where, None)[0])


def test_medium_precision_multiplies_in_bf16():
    qkv, where, c = draw(200), layout(200), torch.randn(200, 2, 8)
    exact = run(qkv, where, None, c)
    torch.set_float32_matmul_precision("medium")
    try:
        ours = run(qkv, where, None, c)
    finally:
        torch.set_float32_matmul_precision("highest")
    for a, b in zip(ours, exact, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).abs().max() < 0.03 * b.abs().max()


def op_arguments(dtype, half, p):
    where = layout(5, 0, 200, 5)
    lengths, spans = torch.tensor(where.lengths), torch.tensor(where.spans)
    return lengths, spans, where.columns_T, half, p, torch.tensor(7)


@each_dtype
@pytest.mark.parametrize("half, p", [(-1, 0.0), (4, 0.3)])
def test_opcheck(dtype, half, p):
    qkv, tail = draw(210, dtype=dtype).requires_grad_(), op_arguments(dtype, half, p)
    ops = torch.ops.encoder_fast
    torch.library.opcheck(ops.native_attention.default, (qkv, *tail))
    detached = qkv.detach()
    o, lse = ops.native_attention(detached, *tail)
    torch.library.opcheck(
        ops.native_attention_backward.default, (torch.randn_like(o), detached, o, lse, *tail)
    )


def test_a_compiled_graph_has_the_eager_bits_for_every_batch():
    def step(qkv, lengths, spans, columns):
        plan = _traced.TracedPlan(lengths, spans, columns)
        return _native_attention.native_attention(qkv, plan, 4)[0].square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=True)
    holes = layout_of([list(range(0, 180, 2)), [1, 2]])
    for where in (layout(90, 3, 70), layout(4, 200), holes):
        qkv = draw(sum(where.lengths)).requires_grad_()
        tail = torch.tensor(where.lengths), torch.tensor(where.spans), where.columns_T
        compiled(qkv, *tail).backward()
        o = run(qkv, where, 4)[0]
        assert_same_bits(qkv.grad, run(qkv, where, 4, 2 * o)[2])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes_are_left_to_torch(dtype):
    where = layout(9, 80)
    qkv = draw(89).to(dtype)
    plan = _native_attention.prepare(where, (4,), torch.float32)
    o, lse = _native_attention.native_attention(qkv, plan, 4, with_lse=True)
    assert o.dtype == dtype
    expected = run(draw(89), where, 4)
    assert (o - expected[0]).abs().max() < 5e-3
    assert (lse - expected[1]).abs().max() < 5e-3


def test_function_transforms_are_left_to_torch():
    where, qkv = layout(9, 80), draw(89)
    plan = _native_attention.prepare(where, (4,), torch.float32)

    def loss(x):
        return _native_attention.native_attention(x, plan, 4)[0].square().sum()

    o = run(qkv, where, 4)[0]
    expected = run(qkv, where, 4, 2 * o)[2]
    assert (torch.func.grad(loss)(qkv) - expected).abs().max() < 1e-4
    both = torch.vmap(lambda x: _native_attention.native_attention(x, plan, 4)[0])(qkv[None])[0]
    assert (both - o).abs().max() < 1e-5


def test_autocast_casts_as_torch_does():
    qkv, where = draw(89), layout(9, 80)
    with torch.autocast("cpu", torch.bfloat16):
        ours = run(qkv, where, 4)[0]
    assert_same_bits(ours, run(qkv.bfloat16(), where, 4)[0])


@pytest.mark.parametrize(
    "device, dtype, D, reason",
    [
        ("cuda", torch.float32, 64, "device: got cuda"),
        ("cpu", torch.float16, 64, "dtype: got torch.float16"),
        ("cpu", torch.float32, 257, "head width: got 257"),
    ],
)
def test_reasons_to_refuse(device, dtype, D, reason):
    request = dispatch.Request(torch.device(device), dtype, D, 768)
    assert dispatch.why_not("attention", "native", request).startswith(reason)
