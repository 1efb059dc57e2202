"""Rows of up to three tables, added and normalised in registers."""

import triton
import triton.language as tl

from encoder_fast.kernels._triton_add_norm_kernels import normal_of


@triton.jit
def row_of(TABLE, INDEX, row, T, column, width, length, table_row, HAS_INDEX: tl.constexpr):
    """fp32 rows `(ROWS, BLOCK)` of a table; NaN where an index lies outside of it, so that no other
    memory is read. Without indices row t is token t's.
    """
    inside = (row[:, None] < T) & (column[None, :] < width)
    if HAS_INDEX:
        index = tl.load(INDEX + row, mask=row < T, other=0).to(tl.int64)
        legal = (index >= 0) & (index < length)
        at = TABLE + index[:, None] * table_row + column[None, :]
        x = tl.load(at, mask=inside & legal[:, None], other=0.0).to(tl.float32)
        return tl.where(legal[:, None], x, float("nan"))
    else:
        at = TABLE + row.to(tl.int64)[:, None] * table_row + column[None, :]
        return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def embed_kernel(
    FIRST, IDS, TYPE, TYPES, POSITION, POSITIONS, WEIGHT, BIAS, Y, S, MEAN, RSTD,
    T, width, vocabulary, kinds, places, first_row, type_row, position_row, eps,
    HAS_IDS: tl.constexpr, HAS_TYPES: tl.constexpr, HAS_POSITIONS: tl.constexpr,
    HAS_BIAS: tl.constexpr, KEEPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = LN(s), s = token + type + position; s and the statistics are written for a backward."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row[:, None] < T) & (column[None, :] < width)
    s = row_of(FIRST, IDS, row, T, column, width, vocabulary, first_row, HAS_IDS)
    if HAS_TYPES:
        s += row_of(TYPE, TYPES, row, T, column, width, kinds, type_row, True)
    if HAS_POSITIONS:
        s += row_of(POSITION, POSITIONS, row, T, column, width, places, position_row, True)
    rounded = s.to(S.dtype.element_ty)
    to = row.to(tl.int64)[:, None] * width + column[None, :]
    if KEEPS:
        tl.store(S + to, rounded, mask=inside)
    # A sum beyond the largest fp16 number has a norm all the same.
    if S.dtype.element_ty != tl.float16:
        s = rounded.to(tl.float32)
    weight = tl.load(WEIGHT + column, mask=column < width, other=0.0).to(tl.float32)
    y, mean, rstd = normal_of(s, weight, BIAS, column, width, eps, HAS_BIAS)
    tl.store(Y + to, y.to(Y.dtype.element_ty), mask=inside)
    if KEEPS:
        tl.store(MEAN + row, mean, mask=row < T)
        tl.store(RSTD + row, rstd, mask=row < T)
