"""Residual add and LayerNorm, rows in registers: forward, backward, the last sum of gradients."""

import triton
import triton.language as tl


@triton.jit
def normal_of(s, weight, BIAS, column, width, eps, HAS_BIAS: tl.constexpr):
    """LayerNorm of fp32 rows `(ROWS, BLOCK)`, 0 beyond `width`: y, mean, 1 / std. Two passes: the
    one-pass variance E[s^2] - E[s]^2 cancels.
    """
    inside = column < width
    mean = tl.sum(s, 1) / width
    centred = tl.where(inside[None, :], s - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, 1) / width
    rstd = 1.0 / tl.sqrt_rn(variance + eps)
    y = centred * rstd[:, None] * weight[None, :]
    if HAS_BIAS:
        y += tl.load(BIAS + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    return y, mean, rstd


@triton.jit
def add_norm_kernel(
    X, RESIDUAL, WEIGHT, BIAS, Y, S, MEAN, RSTD, T, width, x_row, residual_row, eps,
    HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = LN(x + residual), s = x + residual, and what the backward needs of each row."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row[:, None] < T) & (column[None, :] < width)
    wide_row = row.to(tl.int64)
    at = wide_row[:, None] * x_row + column[None, :]
    s = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    to = wide_row[:, None] * width + column[None, :]
    if HAS_RESIDUAL:
        at = wide_row[:, None] * residual_row + column[None, :]
        s += tl.load(RESIDUAL + at, mask=inside, other=0.0).to(tl.float32)
        rounded = s.to(S.dtype.element_ty)
        tl.store(S + to, rounded, mask=inside)
        # A sum beyond the largest fp16 number has a norm all the same.
        if S.dtype.element_ty != tl.float16:
            s = rounded.to(tl.float32)
    weight = tl.load(WEIGHT + column, mask=column < width, other=0.0).to(tl.float32)
    y, mean, rstd = normal_of(s, weight, BIAS, column, width, eps, HAS_BIAS)
    tl.store(Y + to, y.to(Y.dtype.element_ty), mask=inside)
    tl.store(MEAN + row, mean, mask=row < T)
    tl.store(RSTD + row, rstd, mask=row < T)


@triton.jit
def slope_of_normal(dy, s, mean, rstd, weight, column, width):
    """Gradient of the rows that were normalised, and of the normal rows before the weight."""
    normal = tl.where((column < width)[None, :], (s - mean[:, None]) * rstd[:, None], 0.0)
    d = dy * weight[None, :]
    along_ones = tl.sum(d, 1) / width
    along_normal = tl.sum(d * normal, 1) / width
    return (d - along_ones[:, None] - normal * along_normal[:, None]) * rstd[:, None], normal


@triton.jit
def add_norm_backward_kernel(
    DY, DS, S, MEAN, RSTD, WEIGHT, DX, D_WEIGHT, D_BIAS, T, width, dy_row, ds_row, s_row, tiles,
    HAS_DS: tl.constexpr, WANTS_WEIGHT: tl.constexpr, WANTS_BIAS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx of every `programs`-th tile of rows, and this program's share of the sums over rows."""
    column = tl.arange(0, BLOCK)
    weight = tl.load(WEIGHT + column, mask=column < width, other=0.0).to(tl.float32)
    d_weight = tl.zeros([ROWS, BLOCK], tl.float32)
    d_bias = tl.zeros([ROWS, BLOCK], tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile * ROWS + tl.arange(0, ROWS)
        inside = (row[:, None] < T) & (column[None, :] < width)
        wide_row = row.to(tl.int64)[:, None]
        s = tl.load(S + wide_row * s_row + column[None, :], mask=inside, other=0.0)
        dy = tl.load(DY + wide_row * dy_row + column[None, :], mask=inside, other=0.0)
        mean = tl.load(MEAN + row, mask=row < T, other=0.0)
        rstd = tl.load(RSTD + row, mask=row < T, other=0.0)
        dy = dy.to(tl.float32)
        dx, normal = slope_of_normal(dy, s.to(tl.float32), mean, rstd, weight, column, width)
        if HAS_DS:
            ds = tl.load(DS + wide_row * ds_row + column[None, :], mask=inside, other=0.0)
            dx += ds.to(tl.float32)
        tl.store(DX + wide_row * width + column[None, :], dx.to(DX.dtype.element_ty), mask=inside)
        if WANTS_WEIGHT:
            d_weight += dy * normal
        if WANTS_BIAS:
            d_bias += dy
    to = tl.program_id(0) * width + column
    if WANTS_WEIGHT:
        tl.store(D_WEIGHT + to, tl.sum(d_weight, 0), mask=column < width)
    if WANTS_BIAS:
        tl.store(D_BIAS + to, tl.sum(d_bias, 0), mask=column < width)


@triton.jit
def sum_rows_kernel(PARTS, OUT, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """out = the sum over rows of fp32 parts `(rows, width)`, always in the same order."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & (column[None, :] < width)
        total += tl.load(PARTS + row[:, None] * width + column[None, :], mask=inside, other=0.0)
    tl.store(OUT + column, tl.sum(total, 0).to(OUT.dtype.element_ty), mask=column < width)
