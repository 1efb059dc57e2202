"""The activation of a feed-forward block, both directions: everything between its two products."""

import triton
import triton.language as tl

from encoder_fast.kernels._triton_jit import activated, slope_of, uniform


@triton.jit
def _block(part, blocks, T, F, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows and columns of a tile, and which of them exist."""
    row = (part // blocks) * ROWS + tl.arange(0, ROWS)
    column = (part % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    return row, column, (row[:, None] < T) & (column[None, :] < F)


@triton.jit
def _load(X, at, column, inside, BIAS, bias_at, columns, HAS_BIAS: tl.constexpr):
    """A tile in fp32, with its bias."""
    x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        bias = tl.load(BIAS + bias_at + column, mask=column < columns, other=0.0)
        x += bias.to(tl.float32)[None, :]
    return x


@triton.jit
def activate_kernel(
    H, BIAS, SEED, OUT, T, F, h_stride, out_stride, p, scale,
    KIND: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr, DROPS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """inner = drop(act(h + bias) [* gate]); h `(T, F or 2F)`, out `(T, F)`."""
    row, column, inside = _block(tl.program_id(0), tl.cdiv(F, COLUMNS), T, F, ROWS, COLUMNS)
    wide_row = row.to(tl.int64)
    at = wide_row[:, None] * h_stride + column[None, :]
    y = activated(_load(H, at, column, inside, BIAS, 0, F, HAS_BIAS), KIND)
    if GATED:
        y *= _load(H, at + F, column, inside, BIAS, F, F, HAS_BIAS)
    if DROPS:
        kept = uniform(tl.load(SEED), column[None, :], row[:, None], 0) >= p
        y = tl.where(kept, y * scale, 0.0)
    to = wide_row[:, None] * out_stride + column[None, :]
    tl.store(OUT + to, y.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def activate_backward_kernel(
    H, BIAS, SEED, D_INNER, D_H, INNER, SUMS, T, F, h_stride, grad_stride, steps, p, scale,
    KIND: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr, DROPS: tl.constexpr,
    WANTS_INNER: tl.constexpr, WANTS_SUMS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """From h and the gradient of inner `(T, F)`: d_h, inner once more, and of this program's
    `steps * ROWS` rows the sums of d_h by column, `(chunks, F or 2F)` fp32.
    """
    blocks = tl.cdiv(F, COLUMNS)
    chunk = tl.program_id(0) // blocks
    column = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    sum_a = tl.zeros([COLUMNS], tl.float32)
    sum_g = tl.zeros([COLUMNS], tl.float32)
    for step in range(steps):
        row = (chunk * steps + step) * ROWS + tl.arange(0, ROWS)
        inside = (row[:, None] < T) & (column[None, :] < F)
        wide_row = row.to(tl.int64)
        at = wide_row[:, None] * h_stride + column[None, :]
        x = _load(H, at, column, inside, BIAS, 0, F, HAS_BIAS)
        grad_at = wide_row[:, None] * grad_stride + column[None, :]
        dy = tl.load(D_INNER + grad_at, mask=inside, other=0.0).to(tl.float32)
        y = activated(x, KIND)
        slope = slope_of(x, KIND)
        keep = tl.full([ROWS, COLUMNS], 1.0, tl.float32)
        if DROPS:
            kept = uniform(tl.load(SEED), column[None, :], row[:, None], 0) >= p
            keep = tl.where(kept, scale, 0.0)
            dy *= keep
        width = F
        d_gate = dy * y
        if GATED:
            gate = _load(H, at + F, column, inside, BIAS, F, F, HAS_BIAS)
            width = 2 * F
            gate_to = wide_row[:, None] * width + F + column[None, :]
            tl.store(D_H + gate_to, d_gate.to(D_H.dtype.element_ty), mask=inside)
            y *= gate
            dy *= gate
        dx = dy * slope
        tl.store(
            D_H + wide_row[:, None] * width + column[None, :],
            dx.to(D_H.dtype.element_ty),
            mask=inside,
        )
        if WANTS_INNER:
            to = wide_row[:, None] * F + column[None, :]
            tl.store(INNER + to, (y * keep).to(INNER.dtype.element_ty), mask=inside)
        if WANTS_SUMS:
            sum_a += tl.sum(tl.where(inside, dx, 0.0), 0)
            sum_g += tl.sum(tl.where(inside, d_gate, 0.0), 0)
    if WANTS_SUMS:
        to = chunk.to(tl.int64) * (2 * F if GATED else F) + column
        tl.store(SUMS + to, sum_a, mask=column < F)
        if GATED:
            tl.store(SUMS + to + F, sum_g, mask=column < F)
