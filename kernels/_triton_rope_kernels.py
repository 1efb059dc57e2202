"""Rotation of heads, one pass over packed queries, keys and values."""

import triton
import triton.language as tl


@triton.jit
def rope_kernel(
    QKV, COS, SIN, OUT, T, token_stride, third_stride, head_stride, table_row, sign,
    H: tl.constexpr, HEADS: tl.constexpr, K: tl.constexpr,
    TOKENS: tl.constexpr, HEAD_BLOCK: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Heads [0, 2H) are rotated by `sign` times the angle, those from 2H on are copied. Each is K
    pairs wide; out is `(T, HEADS, 2K)`.
    """
    blocks: tl.constexpr = (HEADS + HEAD_BLOCK - 1) // HEAD_BLOCK
    token = (tl.program_id(0) // blocks) * TOKENS + tl.arange(0, TOKENS)
    head = (tl.program_id(0) % blocks) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)
    pair = tl.arange(0, HALF)
    in_table = (token[:, None] < T) & (pair[None, :] < K)
    # Loaded once for all heads of a tile, and spread over them in registers.
    table = token.to(tl.int64)[:, None] * table_row + pair[None, :]
    cos = tl.load(COS + table, mask=in_table, other=0.0)[:, None, :]
    sin = tl.load(SIN + table, mask=in_table, other=0.0)[:, None, :] * sign
    wide_token = token.to(tl.int64)[:, None, None]
    head = head[None, :, None]
    inside = (token[:, None, None] < T) & (head < HEADS) & (pair[None, None, :] < K)
    place = (head // H) * third_stride + (head % H) * head_stride + pair[None, None, :]
    at = QKV + wide_token * token_stride + place
    x = tl.load(at, mask=inside, other=0.0)
    y = tl.load(at + K, mask=inside, other=0.0)
    wide_x, wide_y = x.to(tl.float32), y.to(tl.float32)
    turned_x = (wide_x * cos - wide_y * sin).to(x.dtype)
    turned_y = (wide_y * cos + wide_x * sin).to(x.dtype)
    to = OUT + wide_token * (HEADS * 2 * K) + head * (2 * K) + pair[None, None, :]
    tl.store(to, tl.where(head < 2 * H, turned_x, x), mask=inside)
    tl.store(to + K, tl.where(head < 2 * H, turned_y, y), mask=inside)
