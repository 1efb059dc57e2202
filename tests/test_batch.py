"""The door: every input form becomes the same packed batch, and nothing wrong gets through."""

import math

import numpy as np
import pytest
import torch
from closeness import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st

from encoder_fast import Batch

masks = st.integers(0, 5).flatmap(
    lambda S: st.lists(st.lists(st.booleans(), min_size=S, max_size=S), max_size=5).map(
        lambda rows: torch.tensor(rows, dtype=torch.int64).reshape(len(rows), S)
    )
)
"""Masks with holes, left padding, empty rows, B = 0 and S = 0."""


def padded_ids(mask_BS):
    B, S = mask_BS.shape
    b, t = torch.arange(B)[:, None], torch.arange(S)[None, :]
    return 3 + (7 * b + 5 * t * t + 11 * t) % 90


def rows_of(ids_BS, mask_BS) -> list[list[int]]:
    return [row[keep].tolist() for row, keep in zip(ids_BS, mask_BS.bool(), strict=True)]


def assert_same_batch(a: Batch, b: Batch) -> None:
    assert (a.lengths, a.spans, a.B, a.T, a.max_length) == (
        b.lengths,
        b.spans,
        b.B,
        b.T,
        b.max_length,
    )
    for name in ("ids_T", "columns_T", "cu_seqlens", "types_T", "explicit_positions_T"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), name
        assert x is None or (x.dtype == y.dtype and x.tolist() == y.tolist()), name
    assert a.ranges == b.ranges


@given(mask_BS=masks)
def test_C10_padded_batch_holds_the_real_tokens_and_their_columns(mask_BS):
    ids_BS = padded_ids(mask_BS)
    batch = Batch.from_padded(ids_BS, mask_BS, token_type_ids=mask_BS * 0 + 1, position_ids=ids_BS)
    rows = rows_of(ids_BS, mask_BS)
    columns = [keep.nonzero()[:, 0].tolist() for keep in mask_BS]
    flat = [i for row in rows for i in row]
    assert batch.ids_T.tolist() == batch.explicit_positions_T.tolist() == flat
    assert batch.columns_T.tolist() == [c for row in columns for c in row]
    assert batch.types_T.tolist() == [1] * len(flat)
    assert batch.lengths == tuple(map(len, rows))
    assert batch.spans == tuple(row[-1] - row[0] + 1 if row else 0 for row in columns)
    assert batch.cu_seqlens.dtype == torch.int32
    assert batch.cu_seqlens.tolist() == [sum(batch.lengths[:b]) for b in range(batch.B + 1)]
    assert batch.max_length == max(batch.lengths, default=0)


@given(mask_BS=masks)
def test_to_padded_and_pack_are_inverse(mask_BS):
    ids_BS = padded_ids(mask_BS)
    batch = Batch.from_padded(ids_BS, mask_BS)
    there = batch.to_padded(batch.ids_T, fill=-1)
    assert torch.equal(there, torch.where(mask_BS.bool(), ids_BS, -1))
    assert torch.equal(batch.pack(there), batch.ids_T)
    x_TW = torch.randn(batch.T, 3)
    padded = batch.to_padded(x_TW)
    assert padded.shape == (*mask_BS.shape, 3)
    assert torch.count_nonzero(padded[~mask_BS.bool()]) == 0
    assert_same_bits(batch.pack(padded), x_TW)


@given(rows=st.lists(st.lists(st.integers(0, 96), max_size=6), max_size=6))
def test_lists_packed_and_right_padded_are_the_same_batch(rows):
    lengths = [len(row) for row in rows]
    S = max(lengths, default=0)
    flat = [i for row in rows for i in row]
    ids_T = torch.tensor(flat, dtype=torch.int64)
    lists = Batch.from_lists(rows, token_type_ids=rows, position_ids=rows)
    packed = Batch.from_packed(ids_T, torch.tensor([0, *lengths]).cumsum(0), ids_T, ids_T)
    wide = [row + [0] * (S - len(row)) for row in rows]
    ids_BS = torch.tensor(wide, dtype=torch.int64).reshape(len(rows), S)
    mask_BS = torch.arange(S) < torch.tensor(lengths, dtype=torch.int64)[:, None]
    padded = Batch.from_padded(ids_BS, mask_BS, ids_BS, ids_BS)
    assert_same_batch(lists, packed)
    assert_same_batch(lists, padded)
    assert lists.padded_length == packed.padded_length == padded.padded_length == S


@given(mask_BS=masks, data=st.data())
def test_split_and_concat_are_inverse(mask_BS, data):
    batch = Batch.from_padded(padded_ids(mask_BS), mask_BS, position_ids=padded_ids(mask_BS))
    cuts = sorted(data.draw(st.lists(st.integers(0, batch.B), max_size=3)))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, batch.B], strict=True)]
    parts = batch.split(sizes)
    assert [part.B for part in parts] == sizes
    assert_same_batch(Batch.concat(parts), batch)
    values = torch.arange(batch.T)
    whole = torch.cat(
        [p.to_padded(x) for p, x in zip(parts, values.split([p.T for p in parts]), strict=True)]
    )
    assert torch.equal(whole, batch.to_padded(values))


@given(first=masks, second=masks)
def test_concat_holds_the_sequences_of_both(first, second):
    both = [Batch.from_padded(padded_ids(mask), mask) for mask in (first, second)]
    joined = Batch.concat(both)
    assert joined.lengths == both[0].lengths + both[1].lengths
    assert joined.ids_T.tolist() == both[0].ids_T.tolist() + both[1].ids_T.tolist()
    assert joined.columns_T.tolist() == both[0].columns_T.tolist() + both[1].columns_T.tolist()
    padded = joined.to_padded(joined.ids_T)
    assert padded.shape == (joined.B, max(first.shape[1], second.shape[1]))
    for b, batch in ((0, both[0]), (both[0].B, both[1])):
        own = batch.to_padded(batch.ids_T)
        assert torch.equal(padded[b : b + batch.B, : own.shape[1]], own)


MASK = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
MASK_DTYPES = (torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
MASK_DTYPES += (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", MASK_DTYPES, ids=str)
def test_C11_mask_of_every_dtype_means_the_same(dtype):
    ids_BS = padded_ids(MASK)
    assert_same_batch(Batch.from_padded(ids_BS, MASK.to(dtype)), Batch.from_padded(ids_BS, MASK))


def test_C45_no_mask_means_all_ones():
    ids_BS = padded_ids(MASK)
    assert_same_batch(Batch.from_padded(ids_BS), Batch.from_padded(ids_BS, torch.ones_like(ids_BS)))


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
def test_C08_masked_slots_are_never_read(value):
    embeds = torch.randn(3, 5, 4).requires_grad_()
    poisoned = torch.where(MASK.bool()[..., None], embeds.detach(), value).requires_grad_()
    results = []
    for x in (embeds, poisoned):
        batch = Batch.from_padded(None, MASK, inputs_embeds=x)
        batch.to_padded(batch.embeds_TE).square().sum().backward()
        results.append((batch.embeds_TE, x.grad))
    assert_same_bits(results[0][0], results[1][0])
    assert_same_bits(results[0][1], results[1][1])
    assert torch.count_nonzero(poisoned.grad[~MASK.bool()]) == 0


def test_C08_ids_in_masked_slots_may_be_anything():
    ids_BS = padded_ids(MASK)
    wild = torch.where(MASK.bool(), ids_BS, 2**40)
    assert_same_batch(Batch.from_padded(wild, MASK), Batch.from_padded(ids_BS, MASK))


def test_C48_to_padded_carries_the_gradient():
    batch = Batch.from_padded(padded_ids(MASK), MASK)
    x_TW = torch.randn(batch.T, 2).requires_grad_()
    cotangent = torch.randn(3, 5, 2)
    batch.to_padded(x_TW).backward(cotangent)
    assert_same_bits(x_TW.grad, cotangent[MASK.bool()])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_C18_offsets_of_any_integer_dtype_become_int32(dtype):
    batch = Batch.from_packed(torch.arange(8), torch.tensor([0, 3, 8], dtype=dtype), max_seqlen=9)
    assert batch.cu_seqlens.dtype == torch.int32
    assert batch.lengths == (3, 5)


@pytest.mark.parametrize(
    "offsets, lengths", [([0, 0, 3, 3, 8, 8], (0, 3, 0, 5, 0)), ([0, 0, 0], (0, 0))]
)
def test_C16_zero_length_segments_are_legal(offsets, lengths):
    T = offsets[-1]
    batch = Batch.from_packed(torch.arange(T), torch.tensor(offsets))
    assert batch.lengths == batch.spans == lengths
    assert batch.columns_T.tolist() == [c for n in lengths for c in range(n)]
    assert batch.to_padded(batch.ids_T).shape == (len(lengths), max(lengths))


@pytest.mark.parametrize("make", [
    lambda: Batch.from_lists([]),
    lambda: Batch.from_packed(torch.zeros(0, dtype=torch.int64), torch.tensor([0])),
    lambda: Batch.from_padded(torch.zeros(0, 7, dtype=torch.int64)),
    lambda: Batch.from_padded(torch.zeros(4, 0, dtype=torch.int64)),
], ids=["lists", "packed", "B0", "S0"])  # fmt: skip
def test_C16_empty_batches_are_legal(make):
    batch = make()
    assert (batch.T, batch.max_length, batch.ranges) == (0, 0, {})
    assert batch.to_padded(torch.randn(0, 3)).shape == (batch.B, batch.padded_length, 3)


POSITIONS = {"from-5": range(5, 13), "equal": [3] * 8, "falling": range(8, 0, -1)}


@pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)
def test_C14_positions_never_move_a_boundary(positions):
    positions_T, ids_T = torch.tensor(list(positions)), torch.arange(8)
    one = Batch.from_padded(ids_T[None], position_ids=positions_T[None])
    assert one.lengths == (8,)
    assert one.explicit_positions_T.tolist() == list(positions)
    two = Batch.from_packed(ids_T, torch.tensor([0, 3, 8]), position_ids=positions_T)
    assert two.lengths == (3, 5)
    assert two.columns_T.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]


def test_one_row_of_positions_serves_every_sequence():
    positions = torch.tensor([[9, 8, 7, 6, 5]])
    batch = Batch.from_padded(padded_ids(MASK), MASK, position_ids=positions)
    assert batch.explicit_positions_T.tolist() == [8, 7, 5, 9, 8]


def test_lists_take_arrays_and_tensors():
    rows = [np.array([4, 5]), torch.tensor([6]), [np.int32(7)], ()]
    assert_same_batch(Batch.from_lists(rows), Batch.from_lists([[4, 5], [6], [7], []]))
