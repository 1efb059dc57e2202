"""The native kernels of attention on each tier: numbers, bits and poison.

What all backends promise is in test_attention*.py; here is what depends on blocks of 64 queries,
blocks of keys, tiers and threads.
"""

import itertools
import math

import pytest
import torch
from closeness import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from native_attention import assert_accurate, draw, run
from native_harness import each_dtype, each_tier, needs_engine
from op_cases import reversed_axes, wider_rows
from op_harness import layout, layout_of, one_thread  # noqa: F401

from encoder_fast.kernels import _native

pytestmark = needs_engine
each_window = pytest.mark.parametrize("half", [None, 0, 1, 63, 64, 65, 1000])

EDGES = (0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 66, 127, 128, 129, 131, 255, 257)
SHORT = (0, 1, 17, 66, 131)
"""For the tier that emulates its instructions."""


@each_tier
@each_dtype
@each_window
def test_lengths_around_every_block_edge(tier, dtype, half):
    lengths = SHORT if tier == "amx_emulated" else EDGES
    with _native.use_tier(tier):
        assert_accurate(draw(sum(lengths), dtype=dtype), layout(*lengths), half)


@each_tier
@each_dtype
@pytest.mark.parametrize("half", [None, 20], ids=["global", "half20"])
@pytest.mark.parametrize("D", [1, 3, 32, 40, 64, 128, 256])
def test_head_widths(tier, dtype, half, D):
    with _native.use_tier(tier):
        assert_accurate(draw(sum(SHORT), D=D, dtype=dtype), layout(*SHORT), half)


@each_tier
@each_dtype
@pytest.mark.parametrize("half", [None, 0, 7, 64], ids=lambda h: f"half{h}")
def test_holes_in_the_columns(tier, dtype, half):
    far = [0, 1, 2, 1 << 33, (1 << 33) + 5, 1 << 40]
    where = layout_of([[3], list(range(0, 300, 2)), [], far, [*range(70), *range(130, 250)]])
    with _native.use_tier(tier):
        assert_accurate(draw(sum(where.lengths), dtype=dtype), where, half)


@each_dtype
@pytest.mark.parametrize("memory", [wider_rows, reversed_axes], ids=lambda f: f.__name__)
def test_any_strides_give_the_same_bits(dtype, memory):
    where, qkv, c = layout(70, 3, 130), draw(203, dtype=dtype), torch.randn(203, 2, 8).to(dtype)
    for half in (None, 4):
        expected = run(qkv, where, half, c)
        for ours, plain_order in zip(
            run(memory(qkv), where, half, memory(c)), expected, strict=True
        ):
            assert_same_bits(ours, plain_order)
        ones = torch.ones(()).to(dtype).expand(203, 2, 8)
        assert_same_bits(run(qkv, where, half, ones)[2], run(qkv, where, half, ones.clone())[2])


@each_tier
@settings(max_examples=12)
@given(data=st.data())
def test_random_batches(tier, data):
    lengths = tuple(data.draw(st.lists(st.integers(0, 90), min_size=1, max_size=4)))
    D = data.draw(st.integers(1, 20))
    half = data.draw(st.sampled_from([None, 0, 1, 5, 30, 64]))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    with _native.use_tier(tier):
        assert_accurate(draw(sum(lengths), 1, D, dtype), layout(*lengths), half)


@each_tier
@each_dtype
@pytest.mark.parametrize("half", [None, 0, 64], ids=["global", "half0", "half64"])
def test_one_sequence_has_the_bits_it_has_in_a_batch(tier, dtype, half):
    lengths = SHORT if tier == "amx_emulated" else (5, 600, 64, 1030, 17)
    with _native.use_tier(tier):
        qkv, c = draw(sum(lengths), dtype=dtype), torch.randn(sum(lengths), 2, 8).to(dtype)
        batch = run(qkv, layout(*lengths), half, c)
        for first, last in itertools.pairwise(itertools.accumulate(lengths, initial=0)):
            rows = slice(first, last)
            alone = run(qkv[rows], layout(last - first), half, c[rows])
            for ours, in_batch in zip(alone, batch, strict=True):
                assert_same_bits(ours, in_batch[rows])


@each_dtype
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("half", [None, 64], ids=["global", "half64"])
def test_the_same_bits_again_and_with_any_number_of_threads(dtype, p, half):
    where, T = layout(700, 3, 1100, 90), 1893
    qkv, c, results = draw(T, dtype=dtype), torch.randn(T, 2, 8).to(dtype), []
    for threads in (1, 2, 2, 5):
        torch.set_num_threads(threads)
        torch.manual_seed(3)
        results.append(run(qkv, where, half, c, p))
    for result in results[1:]:
        for ours, first in zip(result, results[0], strict=True):
            assert_same_bits(ours, first)


@each_tier
@each_dtype
@pytest.mark.parametrize("half", [None, 0, 20], ids=["global", "half0", "half20"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_poison_stays_in_its_sequence_and_head(tier, dtype, half, value):
    # Scratch is used again and again on one thread: it holds the poison when the others are run.
    where, D = layout(66, 7, 70), 5
    qkv, c = draw(143, D=D, dtype=dtype), torch.randn(143, 2, D).to(dtype)
    poisoned, poisoned_c = qkv.clone(), c.clone()
    poisoned[66:73] = value
    poisoned[:66, :, 0] = value
    poisoned_c[66:73] = value
    with _native.use_tier(tier):
        clean, ours = run(qkv, where, half, c), run(poisoned, where, half, poisoned_c)
    for a, b in zip(ours, clean, strict=True):
        heads = 2 if a.ndim == 4 else 1
        assert_same_bits(a[73:], b[73:])
        assert_same_bits(a[:66].select(heads, 1), b[:66].select(heads, 1))
        assert a[66:73].isnan().any() or half == 0


@each_tier
@each_dtype
def test_nan_in_one_query_reaches_its_output_only(tier, dtype):
    qkv = draw(200, dtype=dtype)
    qkv[130, 0] = math.nan
    with _native.use_tier(tier):
        o, lse = run(qkv, layout(200), None)
    for x in (o.flatten(1), lse):
        assert x.isnan().any(1).nonzero()[:, 0].tolist() == [130]
        assert x[130].isnan().all()


@each_tier
@each_dtype
def test_keys_outside_the_window_get_exactly_no_gradient(tier, dtype):
    # exp of a masked score must be 0, not merely small, however it is approximated.
    qkv, c = draw(300, dtype=dtype), torch.zeros(300, 2, 8, dtype=dtype)
    c[150] = 1
    with _native.use_tier(tier):
        d = run(qkv, layout(300), 10, c)[2]
    assert d[:, 1:].flatten(1).any(1).nonzero()[:, 0].tolist() == list(range(140, 161))
    assert d[:, 0].flatten(1).any(1).nonzero()[:, 0].tolist() == [150]


@each_tier
@each_dtype
def test_large_scores_are_finite(tier, dtype):
    qkv = draw(200, dtype=dtype)
    qkv[:, :2] *= 12
    with _native.use_tier(tier):
        assert_accurate(qkv, layout(200), None)
