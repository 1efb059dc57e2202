"""Attention's forward on packed sequences, and what its backward shares with it.

A program owns one tile of queries of one head. The map of tiles holds, for each, the sequence's
first row in the batch, its length, and the tile's first row in the sequence. Pointers to a tile are
64-bit, offsets inside it are 32-bit.

A head lies in a tile as two halves, each padded to a power of two, so that rotation can take them
apart. Scores are kept in units of log2: exp2 is one instruction, and the scale is folded into its
argument.
"""

import triton
import triton.language as tl

from encoder_fast.kernels._triton_jit import uniform


@triton.jit
def tile_of(TILES, H: tl.constexpr, ROWS: tl.constexpr, MAP_ROWS: tl.constexpr):
    """head, the sequence's first row (int64), its length, and the tile's first row in it."""
    part = tl.program_id(0) // H
    place = TILES + (part // (MAP_ROWS // ROWS)) * 3
    first = tl.load(place + 2) + (part % (MAP_ROWS // ROWS)) * ROWS
    head = (tl.program_id(0) % H).to(tl.int64)
    return head, tl.load(place).to(tl.int64), tl.load(place + 1), first


@triton.jit
def places(stride, N: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr):
    """Offsets of a tile's numbers from its first, and which columns hold one."""
    column = tl.arange(0, WIDTH)
    if D == WIDTH:
        real = column >= 0
        from_row = column
    else:
        K: tl.constexpr = (D + 1) // 2
        HALF: tl.constexpr = WIDTH // 2
        second = column >= HALF
        from_row = tl.where(second, column - HALF + K, column)
        real = tl.where(second, column < D - K + HALF, column < K)
    return tl.arange(0, N)[:, None] * stride + from_row[None, :], real[None, :]


@triton.jit
def load_tile(
    P, left, stride, N: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr
):
    """`(N, WIDTH)`: rows from `P` on, 0 from row `left` on (where MASKED) and in padding."""
    at, real = places(stride, N, D, WIDTH)
    if MASKED:
        mask = (tl.arange(0, N) < left)[:, None]
        if D != WIDTH:
            mask &= real
        return tl.load(P + at, mask=mask, other=0.0)
    elif D != WIDTH:
        return tl.load(P + at, mask=real & (at == at), other=0.0)
    else:
        return tl.load(P + at)


@triton.jit
def store_tile(P, x, left, stride, N: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr):
    at, real = places(stride, N, D, WIDTH)
    mask = (tl.arange(0, N) < left)[:, None]
    if D != WIDTH:
        mask &= real
    tl.store(P + at, x.to(P.dtype.element_ty), mask=mask)


@triton.jit
def angles(COS, SIN, token, left, N: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr):
    """cos and sin of a tile's rows, `(N, WIDTH / 2)`; its first is `token` of the batch."""
    row, pair = tl.arange(0, N)[:, None], tl.arange(0, WIDTH // 2)[None, :]
    at, mask = token * (D // 2) + row * (D // 2) + pair, (row < left) & (pair < D // 2)
    return tl.load(COS + at, mask=mask, other=0.0), tl.load(SIN + at, mask=mask, other=0.0)


@triton.jit
def load_halves(
    P, COS, SIN, token, left, stride,
    N: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROTATES: tl.constexpr,
):  # fmt: skip
    """As a masked `load_tile`, the two halves apart, each `(N, WIDTH / 2)`, and rotated."""
    K: tl.constexpr = (D + 1) // 2
    row, pair = tl.arange(0, N)[:, None], tl.arange(0, WIDTH // 2)[None, :]
    at, inside = P + row * stride + pair, row < left
    x = tl.load(at, mask=inside & (pair < K), other=0.0)
    y = tl.load(at + K, mask=inside & (pair < D - K), other=0.0)
    if ROTATES:
        cos, sin = angles(COS, SIN, token, left, N, D, WIDTH)
        wide_x, wide_y = x.to(tl.float32), y.to(tl.float32)
        x = (wide_x * cos - wide_y * sin).to(x.dtype)
        y = (wide_y * cos + wide_x * sin).to(y.dtype)
    return x, y


@triton.jit
def score(a, b, c, d, PRECISION: tl.constexpr):
    """Products of the rows of `(a, b)` with those of `(c, d)`."""
    return tl.dot(b, tl.trans(d), tl.dot(a, tl.trans(c), input_precision=PRECISION),
                  input_precision=PRECISION)  # fmt: skip


@triton.jit
def columns_of(COLUMNS, begin, first, left, N: tl.constexpr, HOLES: tl.constexpr):
    """Columns of a tile's rows."""
    row = tl.arange(0, N)
    if HOLES:
        return tl.load(COLUMNS + (begin + first) + row, mask=row < left, other=0)
    else:
        return first + row


@triton.jit
def near(x, y, half):
    """Which of two rows of columns are in each other's window, `(rows of x, rows of y)`."""
    distance = x[:, None] - y[None, :]
    return (distance <= half) & (distance >= -half)


@triton.jit
def side_seen(left, SIDE: tl.constexpr, HALF: tl.constexpr, N: tl.constexpr):
    """Which rows of the tile on `SIDE` (-1: before, 0: itself, 1: after) a tile's rows see. `left`
    rows of that tile exist.
    """
    row, column = tl.arange(0, N), tl.arange(0, N)[None, :]
    high = tl.minimum(row + HALF - SIDE * N, left - 1)
    seen = column <= high[:, None]
    # The tile itself and the next one begin at their first row or later by construction.
    if SIDE < 0 or (SIDE == 0 and HALF < N - 1):
        seen &= column >= (row - HALF - SIDE * N)[:, None]
    return seen


@triton.jit
def inner_blocks(lo, hi, first, length, half, ROWS: tl.constexpr, BLOCK: tl.constexpr,
                 WINDOW: tl.constexpr, HOLES: tl.constexpr):  # fmt: skip
    """Of the blocks from row lo to hi, the range that every row of the tile sees whole."""
    if HOLES:
        return hi, hi
    elif WINDOW:
        # The window of the tile's last row begins, and that of its first row ends.
        start = tl.maximum(first + ROWS - 1 - half - lo, 0)
        end = tl.minimum(first + half + 1, length) - lo
        start = lo + tl.cdiv(start, BLOCK) * BLOCK
        end = lo + tl.maximum(end, 0) // BLOCK * BLOCK
        start = tl.minimum(start, hi)
        return start, tl.maximum(start, end)
    else:
        return lo, length // BLOCK * BLOCK


@triton.jit
def window_of(first, length, half, ROWS: tl.constexpr, WINDOW: tl.constexpr):
    """Rows that some row of the tile sees. Columns of a sequence grow at least as fast as rows."""
    if WINDOW:
        return tl.maximum(first - half, 0), tl.minimum(first + ROWS + half, length)
    else:
        return first * 0, length


@triton.jit
def forward_blocks(
    acc, m, total, q, q_column, K, V, COLUMNS, seed, head, begin, first, length, start, end,
    k_stride, v_stride, scale, half, p_drop,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    WINDOW: tl.constexpr, HOLES: tl.constexpr, DROPS: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax over blocks of keys; K and V point to the sequence's first row."""
    K += start.to(tl.int64) * k_stride
    V += start.to(tl.int64) * v_stride
    for n in tl.range(start, end, BLOCK):
        left = length - n
        k = load_tile(K, left, k_stride, BLOCK, D, WIDTH, MASKED)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        key = n + tl.arange(0, BLOCK)
        if MASKED:
            seen = (key < length)[None, :]
            if WINDOW:
                k_column = columns_of(COLUMNS, begin, n, left, BLOCK, HOLES)
                seen &= near(q_column, k_column, half)
            s = tl.where(seen, s, float("-inf"))
        top = tl.maximum(m, tl.max(s, 1) * scale)
        # A row may see nothing of this block.
        base = tl.where(top == float("-inf"), 0.0, top) if MASKED and WINDOW else top
        e = tl.math.exp2(s * scale - base[:, None])
        shrunk = tl.math.exp2(m - base)
        total = total * shrunk + tl.sum(e, 1)
        if DROPS:
            row = (begin + first).to(tl.int32) + tl.arange(0, ROWS)
            drawn = uniform(seed, key[None, :], row[:, None], head.to(tl.int32))
            e = tl.where(drawn >= p_drop, e, 0.0)
        v = load_tile(V, left, v_stride, BLOCK, D, WIDTH, MASKED)
        acc = tl.dot(e.to(v.dtype), v, acc * shrunk[:, None], input_precision=PRECISION)
        m = top
        K += BLOCK * k_stride
        V += BLOCK * v_stride
    return acc, m, total


@triton.jit
def finish(acc, m, total, OUT, STATS, head, begin, first, left, T, scale_kept,
           H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
           KEEPS: tl.constexpr):  # fmt: skip
    """Writes a tile of the output and, for the backward, each row's largest score and 1 / sum."""
    row = tl.arange(0, ROWS)
    # Rows beyond the sequence may have seen nothing.
    inverse = 1.0 / tl.where(row < left, total, 1.0)
    o = acc * (scale_kept * inverse)[:, None]
    store_tile(OUT + (begin + first) * (H * D) + head * D, o, left, H * D, ROWS, D, WIDTH)
    if KEEPS:
        at = STATS + head * T + (begin + first) + row
        tl.store(at, m, mask=row < left)
        tl.store(at + tl.cast(H * T, tl.int64), inverse, mask=row < left)


@triton.jit
def forward_kernel(
    Q, K, V, OUT, STATS, TILES, COLUMNS, SEED, T, q_stride, q_head, v_stride, v_head, scale, half,
    p_drop, scale_kept,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    MAP_ROWS: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr, HOLES: tl.constexpr,
    DROPS: tl.constexpr, KEEPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Any window, or none (WINDOW false)."""
    head, begin, length, first = tile_of(TILES, H, ROWS, MAP_ROWS)
    if first >= length:
        return
    Q += (begin + first) * q_stride + head * q_head
    K += begin * q_stride + head * q_head
    V += begin * v_stride + head * v_head
    seed = tl.load(SEED) if DROPS else 0
    q = load_tile(Q, length - first, q_stride, ROWS, D, WIDTH, True)
    q_column = columns_of(COLUMNS, begin, first, length - first, ROWS, HOLES)
    lo, hi = window_of(first, length, half, ROWS, WINDOW)
    a, b = inner_blocks(lo, hi, first, length, half, ROWS, BLOCK, WINDOW, HOLES)
    m = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    if WINDOW:
        acc, m, total = forward_blocks(
            acc, m, total, q, q_column, K, V, COLUMNS, seed, head, begin, first, length, lo, a,
            q_stride, v_stride, scale, half, p_drop,
            D, WIDTH, ROWS, BLOCK, WINDOW, HOLES, DROPS, True, PRECISION)  # fmt: skip
    acc, m, total = forward_blocks(
        acc, m, total, q, q_column, K, V, COLUMNS, seed, head, begin, first, length, a, b,
        q_stride, v_stride, scale, half, p_drop,
        D, WIDTH, ROWS, BLOCK, WINDOW, HOLES, DROPS, False, PRECISION)  # fmt: skip
    acc, m, total = forward_blocks(
        acc, m, total, q, q_column, K, V, COLUMNS, seed, head, begin, first, length, b, hi,
        q_stride, v_stride, scale, half, p_drop,
        D, WIDTH, ROWS, BLOCK, WINDOW, HOLES, DROPS, True, PRECISION)  # fmt: skip
    finish(acc, m, total, OUT, STATS, head, begin, first, length - first, T, scale_kept,
           H, D, WIDTH, ROWS, KEEPS)  # fmt: skip


@triton.jit
def local_scores(qa, qb, K, COS, SIN, begin, n, left, stride, SIDE: tl.constexpr,
                 D: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr, HALF: tl.constexpr,
                 ROTATES: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Scores of a tile of queries with the keys on `SIDE`, which begin at row n of the sequence."""
    a, b = load_halves(K + n.to(tl.int64) * stride, COS, SIN, begin + n, left, stride,
                       N, D, WIDTH, ROTATES)  # fmt: skip
    s = score(qa, qb, a, b, PRECISION)
    return tl.where(side_seen(left, SIDE, HALF, N), s, float("-inf"))


@triton.jit
def local_forward_kernel(
    Q, K, V, OUT, STATS, TILES, COS, SIN, T, q_stride, q_head, v_stride, v_head, scale,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr, HALF: tl.constexpr,
    ROTATES: tl.constexpr, KEEPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A window of at most N columns to each side, whole: no running maximum, no loop."""
    head, begin, length, first = tile_of(TILES, H, N, N)
    if first >= length:
        return
    before, after = first - N, first + N
    left, here = tl.where(first > 0, N, 0), length - first
    Q += (begin + first) * q_stride + head * q_head
    K += begin * q_stride + head * q_head
    V += begin * v_stride + head * v_head
    qa, qb = load_halves(Q, COS, SIN, begin + first, here, q_stride, N, D, WIDTH, ROTATES)
    s = local_scores(qa, qb, K, COS, SIN, begin, before, left, q_stride, -1,
                     D, WIDTH, N, HALF, ROTATES, PRECISION)  # fmt: skip
    t = local_scores(qa, qb, K, COS, SIN, begin, first, here, q_stride, 0,
                     D, WIDTH, N, HALF, ROTATES, PRECISION)  # fmt: skip
    u = local_scores(qa, qb, K, COS, SIN, begin, after, here - N, q_stride, 1,
                     D, WIDTH, N, HALF, ROTATES, PRECISION)  # fmt: skip
    v = load_tile(V + before.to(tl.int64) * v_stride, left, v_stride, N, D, WIDTH, True)
    w = load_tile(V + first.to(tl.int64) * v_stride, here, v_stride, N, D, WIDTH, True)
    x = load_tile(V + after.to(tl.int64) * v_stride, here - N, v_stride, N, D, WIDTH, True)
    m = tl.maximum(tl.maximum(tl.max(s, 1), tl.max(t, 1)), tl.max(u, 1)) * scale
    # Rows beyond the sequence may see nothing.
    m = tl.where(tl.arange(0, N) < here, m, 0.0)
    s = tl.math.exp2(s * scale - m[:, None])
    t = tl.math.exp2(t * scale - m[:, None])
    u = tl.math.exp2(u * scale - m[:, None])
    total = tl.sum(s, 1) + tl.sum(t, 1) + tl.sum(u, 1)
    acc = tl.dot(s.to(v.dtype), v, input_precision=PRECISION)
    acc = tl.dot(t.to(v.dtype), w, acc, input_precision=PRECISION)
    acc = tl.dot(u.to(v.dtype), x, acc, input_precision=PRECISION)
    finish(acc, m, total, OUT, STATS, head, begin, first, here, T, 1.0,
           H, D, WIDTH, N, KEEPS)  # fmt: skip
