"""What attention promises beyond numbers: who sees whom, to the row and to the bit, both ways.

The oracle is `dense`, a masked softmax over padded columns that shares no line with the op.
"""

from itertools import pairwise

import pytest
import torch
from closeness import assert_as_good_as, assert_same_bits, rows_that_differ
from hypothesis import given, settings
from hypothesis import strategies as st
from op_harness import attend, backends_of, layout, layout_of, one_thread  # noqa: F401
from torch import Tensor

from encoder_fast.kernels import attention
from encoder_fast.kernels.dispatch import op_tables

pytestmark = pytest.mark.on_device

BACKENDS = backends_of("attention")
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_half = pytest.mark.parametrize("half", [None, 4], ids=["global", "half4"])


def draw(T: int, H: int = 2, D: int = 8, dtype=torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(T, 3, H, D, generator=generator, device="cpu")
    return drawn.to(torch.get_default_device(), dtype)


def grad_of(o_THD: Tensor, qkv: Tensor, cotangent: Tensor) -> Tensor:
    return torch.autograd.grad(o_THD, qkv, cotangent)[0]


def dense(qkv_T3HD: Tensor, columns: list[list[int]], half: int | None) -> Tensor:
    """Masked softmax over all columns of a padded batch; result at the real tokens, `(T, H, D)`."""
    B, S = len(columns), 1 + max((c for row in columns for c in row), default=0)
    real_BS = torch.zeros(B, S, dtype=torch.bool)
    for b, row in enumerate(columns):
        real_BS[b, row] = True
    padded = qkv_T3HD.new_zeros(B, S, *qkv_T3HD.shape[1:])
    padded[real_BS] = qkv_T3HD
    q, k, v = padded.unbind(2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    i, j = torch.arange(S)[:, None], torch.arange(S)[None, :]
    near = (i >= 0) & (j >= 0) if half is None else (i - j).abs() <= half
    seen = (near & real_BS[:, None, :])[:, None]
    weights = torch.where(seen, (scores - scores.amax(-1, keepdim=True)).exp(), 0.0)
    total = weights.sum(-1, keepdim=True)
    p = weights / torch.where(total > 0, total, 1.0)
    return torch.einsum("bhij,bjhd->bihd", p, v)[real_BS]


def assert_like_dense(backend: str, columns: list[list[int]], half: int | None, D: int = 8):
    """Forward and backward of a backend in fp32 against `dense` in fp64."""
    T = sum(map(len, columns))
    ours = draw(T, D=D).requires_grad_()
    plain, exact = (ours.detach().to(t).requires_grad_() for t in (torch.float32, torch.float64))
    results = (
        attend(backend, ours, layout_of(columns), half),
        dense(plain, columns, half),
        dense(exact, columns, half),
    )
    assert_as_good_as(*results, name="o")
    c = torch.randn(T, 2, D)
    grads = (
        grad_of(y, x, c.to(y.dtype)) for y, x in zip(results, (ours, plain, exact), strict=True)
    )
    assert_as_good_as(*grads, factor=3, name="d qkv")


def test_C01_visible_counts_both_ends():
    columns = torch.tensor([0, 1, 5, 6])
    seen = attention.visible(columns, columns, 5)
    assert seen.int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]]
    assert attention.visible(columns, columns, None).all()


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("half", [1, 4, 64])
@pytest.mark.parametrize("L", [1, 64, 65, 66, 129, 130, 193, 300])
def test_C01_change_of_one_token_reaches_exactly_its_window(backend, dtype, half, L):
    before, after = 3, 5
    where, qkv = layout(before, L, after), draw(before + L + after, dtype=dtype)
    old = attend(backend, qkv, where, half)
    for token in sorted({0, L // 2, max(0, L - half - 1), L - 1}):
        changed = qkv.clone()
        changed[before + token] += 1
        new = attend(backend, changed, where, half)
        first, last = max(0, token - half), min(L - 1, token + half)
        expected = list(range(before + first, before + last + 1))
        assert rows_that_differ(new, old) == expected, f"token {token}"


@each_backend
@pytest.mark.parametrize("half", [1, 4, 64])
@pytest.mark.parametrize("L", [1, 64, 65, 66, 129, 130, 193, 300])
def test_C01_gradient_of_one_row_reaches_exactly_its_window(backend, half, L):
    before, after = 3, 5
    where, qkv = layout(before, L, after), draw(before + L + after).requires_grad_()
    o_THD = attend(backend, qkv, where, half)
    for row in sorted({0, L // 2, L - 1}):
        cotangent = torch.zeros_like(o_THD)
        cotangent[before + row] = 1 + torch.arange(8.0)
        grad = torch.autograd.grad(o_THD, qkv, cotangent, retain_graph=True)[0]
        first, last = before + max(0, row - half), before + min(L - 1, row + half)
        keys = (grad[:, 1:] != 0).flatten(1).any(1).nonzero()[:, 0].tolist()
        queries = (grad[:, 0] != 0).flatten(1).any(1).nonzero()[:, 0].tolist()
        assert keys == list(range(first, last + 1))
        # A single visible key has probability 1 whatever the query.
        assert queries == ([before + row] if last > first else [])


@each_backend
def test_C10_window_is_counted_in_columns_not_in_rows(backend):
    where = layout_of([[0, 1, 2, 3, 8, 9, 10, 11]])
    qkv = draw(8)
    old = attend(backend, qkv, where, 4)
    reached = {}
    for row in range(8):
        changed = qkv.clone()
        changed[row] += 1
        reached[row] = rows_that_differ(attend(backend, changed, where, 4), old)
    left, right = [0, 1, 2, 3], [4, 5, 6, 7]
    assert reached == {row: left if row < 4 else right for row in range(8)}


@each_backend
@pytest.mark.parametrize("half", [None, 0, 1, 4, 64], ids=lambda h: f"half{h}")
def test_C10_holes_equal_a_dense_masked_softmax(backend, half):
    every_other = list(range(1, 400, 2))
    gap = [*range(90), *range(150, 260)]
    assert_like_dense(backend, [[0, 1, 2, 3, 8, 9, 10, 11], [5], [], every_other, gap], half)


@each_backend
@pytest.mark.parametrize("half", [None, 4, 64], ids=lambda h: f"half{h}")
@pytest.mark.parametrize("D", [5, 24, 64, 80])
def test_C23_head_widths_equal_a_dense_masked_softmax(backend, half, D):
    assert_like_dense(backend, [list(range(n)) for n in (7, 1, 200, 7)], half, D)


@each_backend
@each_half
def test_equal_lengths_need_not_be_side_by_side(backend, half):
    lengths = (3, 90, 3, 2, 90, 3, 1)
    assert_like_dense(backend, [list(range(n)) for n in lengths], half)


@each_backend
@settings(max_examples=60)
@given(data=st.data())
def test_random_layouts_equal_a_dense_masked_softmax(backend, data):
    row = st.sets(st.integers(0, 30), max_size=12).map(sorted)
    full = st.integers(0, 20).map(lambda n: list(range(n)))
    columns = data.draw(st.lists(row | full, min_size=1, max_size=6))
    half = data.draw(st.sampled_from([None, 0, 1, 2, 5, 17]))
    assert_like_dense(backend, columns, half)


def documents(*lengths: int):
    """Layout and the rows of each document."""
    ends = torch.tensor((0, *lengths)).cumsum(0).tolist()
    return layout(*lengths), [slice(a, b) for a, b in pairwise(ends)]


@each_backend
@each_half
@pytest.mark.parametrize("value", [3.0, float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("lengths", [(4, 1, 6, 17), (5, 5, 5, 5), (90, 80, 90, 80)], ids=str)
def test_C08_C13_another_document_changes_no_bit(backend, half, value, lengths):
    where, rows = documents(*lengths)
    qkv = draw(sum(lengths))
    old = attend(backend, qkv, where, half)
    for changed_document in (0, 2):
        changed = qkv.clone()
        changed[rows[changed_document]] = value
        changed.requires_grad_()
        new = attend(backend, changed, where, half)
        others = [rows[d] for d in range(4) if d != changed_document]
        for other in others:
            assert_same_bits(new[other], old[other])
        clean = qkv.clone().requires_grad_()
        cotangent = torch.randn_like(old)
        cotangent[rows[changed_document]] = 0
        grad = grad_of(new, changed, cotangent)
        expected = grad_of(attend(backend, clean, where, half), clean, cotangent)
        for other in others:
            assert_same_bits(grad[other], expected[other], "gradient")


@each_backend
@each_half
def test_C13_each_document_equals_its_alone_run(backend, half):
    where, rows = documents(4, 1, 6, 17, 130, 6)
    qkv = draw(164).requires_grad_()
    o_THD = attend(backend, qkv, where, half)
    cotangent = torch.randn_like(o_THD)
    grad = grad_of(o_THD, qkv, cotangent)
    for document in rows:
        L = document.stop - document.start
        plain, exact = (
            qkv[document].detach().to(t).requires_grad_() for t in (torch.float32, torch.float64)
        )
        alone = [dense(x, [list(range(L))], half) for x in (plain, exact)]
        assert_as_good_as(o_THD[document], *alone, name="o")
        grads = [
            grad_of(y, x, cotangent[document].to(x.dtype))
            for y, x in zip(alone, (plain, exact), strict=True)
        ]
        assert_as_good_as(grad[document], *grads, factor=3, name="d qkv")


@each_backend
@each_half
def test_C13_loss_on_one_document_gives_others_zero_gradient(backend, half):
    where, rows = documents(4, 1, 6, 90, 6)
    qkv = draw(107).requires_grad_()
    attend(backend, qkv, where, half)[rows[3]].square().sum().backward()
    touched = (qkv.grad != 0).flatten(1).any(1).nonzero()[:, 0].tolist()
    assert touched == list(range(rows[3].start, rows[3].stop))


@each_backend
def test_C20_thousands_of_short_documents(backend):
    lengths = [1 + b % 3 for b in range(3000)]
    assert_like_dense(backend, [list(range(n)) for n in lengths], None)


@each_backend
@each_half
def test_C16_empty_sequences_change_nothing(backend, half):
    results = []
    for lengths in ((3, 90, 5), (0, 3, 0, 0, 90, 0, 5, 0)):
        qkv = draw(98).requires_grad_()
        o_THD = attend(backend, qkv, layout(*lengths), half)
        results.append((o_THD, grad_of(o_THD, qkv, torch.ones_like(o_THD))))
    for with_empty, without in zip(*reversed(results), strict=True):
        assert_same_bits(with_empty, without)


@each_backend
@each_half
@pytest.mark.parametrize("lengths", [(), (0,), (0, 0)], ids=str)
def test_C16_no_token_at_all(backend, half, lengths):
    qkv = draw(0).requires_grad_()
    o_THD = attend(backend, qkv, layout(*lengths), half)
    assert o_THD.shape == (0, 2, 8)
    o_THD.sum().backward()
    assert qkv.grad.shape == (0, 3, 2, 8)


@each_backend
@each_half
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_C15_large_scores_in_half_precision(backend, half, dtype):
    columns = [[0, 1, 2], [4], [], list(range(100))]
    qkv = draw(104, dtype=dtype)
    qkv[:, :2] *= 8
    ours = attend(backend, qkv, layout_of(columns), half)
    assert ours.isfinite().all()
    plain = dense(qkv, columns, half)
    assert_as_good_as(ours, plain, dense(qkv.double(), columns, half))


@each_backend
@each_half
def test_C39_same_call_same_bits(backend, half):
    where, results = layout(90, 3, 90, 40), []
    for _ in range(3):
        qkv = draw(223).requires_grad_()
        o_THD = attend(backend, qkv, where, half)
        results.append((o_THD, grad_of(o_THD, qkv, o_THD.detach())))
    for o_THD, grad in results[1:]:
        assert_same_bits(o_THD, results[0][0])
        assert_same_bits(grad, results[0][1])


@each_backend
@each_half
@pytest.mark.parametrize("D", [8, 64])
def test_log_sum_exp_is_that_of_the_visible_scores(backend, half, D):
    columns = [[0, 2, 9], [1], list(range(80))]
    qkv = draw(84, D=D)
    attend(backend, qkv, layout_of(columns), half)  # skips where the backend refuses
    implementation = op_tables()["attention"][backend]
    plan = implementation.prepare(layout_of(columns), (half,), qkv.dtype)
    assert implementation.run(qkv, plan, half)[1] is None
    lse_TH = implementation.run(qkv, plan, half, with_lse=True)[1]
    assert lse_TH.dtype == torch.float32
    start, q, k = 0, *qkv.double().unbind(1)[:2]
    for row in columns:
        for i, column in enumerate(row):
            near = [j for j, c in enumerate(row) if half is None or abs(c - column) <= half]
            keys = k[start : start + len(row)][near]
            scores = torch.einsum("hd,jhd->hj", q[start + i], keys) / D**0.5
            assert (lse_TH[start + i] - scores.logsumexp(-1)).abs().max() < 1e-5
        start += len(row)
