"""Attention's backward on packed sequences: dQ by tiles of queries, dK and dV by tiles of keys.

    P = exp2(S - max) / sum,  dP = Z (dO V'),  dS = P (dP - delta),  dQ = dS K,  dK = dS' Q,
    dV = (Z P)' dO,           delta = rowsum(dO O),  Z = dropout's 0 or 1 / (1 - p)

The forward's row maxima and 1 / sums are used as they are: a log-sum-exp would lose digits of large
scores. Each number has one writer and one order of sums.
"""

import triton
import triton.language as tl

from encoder_fast.kernels._triton_attention_kernels import (
    angles,
    columns_of,
    inner_blocks,
    load_halves,
    load_tile,
    near,
    score,
    side_seen,
    store_tile,
    tile_of,
    window_of,
)
from encoder_fast.kernels._triton_jit import uniform


@triton.jit
def store_halves(
    P, x, y, COS, SIN, token, left, stride,
    N: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROTATES: tl.constexpr,
):  # fmt: skip
    """Two halves of a tile `(N, WIDTH / 2)`, turned back where the forward turned them."""
    K: tl.constexpr = (D + 1) // 2
    if ROTATES:
        cos, sin = angles(COS, SIN, token, left, N, D, WIDTH)
        x, y = x * cos + y * sin, y * cos - x * sin
    row, pair = tl.arange(0, N)[:, None], tl.arange(0, WIDTH // 2)[None, :]
    at, inside = P + row * stride + pair, row < left
    tl.store(at, x.to(P.dtype.element_ty), mask=inside & (pair < K))
    tl.store(at + K, y.to(P.dtype.element_ty), mask=inside & (pair < D - K))


@triton.jit
def store_gradient(
    P, x, COS, SIN, token, left, stride,
    N: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROTATES: tl.constexpr,
):  # fmt: skip
    if ROTATES:
        halves = tl.permute(tl.reshape(x, (N, 2, WIDTH // 2)), (0, 2, 1))
        a, b = tl.split(halves)
        store_halves(P, a, b, COS, SIN, token, left, stride, N, D, WIDTH, True)
    else:
        store_tile(P, x, left, stride, N, D, WIDTH)


@triton.jit
def load_row(P, left, N: tl.constexpr, MASKED: tl.constexpr):
    """Numbers of N rows, 0 from row `left` on."""
    row = tl.arange(0, N)
    if MASKED:
        return tl.load(P + row, mask=row < left, other=0.0)
    else:
        return tl.load(P + row)


@triton.jit
def sums_of(STATS, T, H: tl.constexpr):
    """Where the second half of `STATS` begins."""
    return STATS + tl.cast(T, tl.int64) * H


@triton.jit
def delta_of(OUT, DO, left, o_stride, do_stride, N: tl.constexpr, D: tl.constexpr,
             WIDTH: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """rowsum(dO O) by the very product that gives dP: where a query sees one key, O is that value
    and the difference of the two is 0.
    """
    do = load_tile(DO, left, do_stride, N, D, WIDTH, True)
    o = load_tile(OUT, left, o_stride, N, D, WIDTH, True)
    all_pairs = tl.dot(do, tl.trans(o), input_precision=PRECISION)
    row = tl.arange(0, N)
    return do, tl.sum(tl.where(row[:, None] == row[None, :], all_pairs, 0.0), 1)


@triton.jit
def kept(seed, query, key, head, p_drop, scale_kept):
    """Factors of dropout for whole-number coordinates that broadcast to a tile."""
    return tl.where(uniform(seed, key, query, head.to(tl.int32)) >= p_drop, scale_kept, 0.0)


@triton.jit
def dq_blocks(
    dq, q, do, m, inverse, delta, q_column, K, V, COLUMNS, seed, head, begin, first, length,
    start, end, k_stride, v_stride, scale, half, p_drop, scale_kept,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    WINDOW: tl.constexpr, HOLES: tl.constexpr, DROPS: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds to dQ / scale what blocks of keys give; K and V point to the sequence's first row."""
    K += start.to(tl.int64) * k_stride
    V += start.to(tl.int64) * v_stride
    for n in tl.range(start, end, BLOCK):
        left = length - n
        k = load_tile(K, left, k_stride, BLOCK, D, WIDTH, MASKED)
        v = load_tile(V, left, v_stride, BLOCK, D, WIDTH, MASKED)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        p = tl.math.exp2(s * scale - m[:, None]) * inverse[:, None]
        key = n + tl.arange(0, BLOCK)
        if MASKED:
            seen = (key < length)[None, :]
            if WINDOW:
                k_column = columns_of(COLUMNS, begin, n, left, BLOCK, HOLES)
                seen &= near(q_column, k_column, half)
            p = tl.where(seen, p, 0.0)
        if DROPS:
            row = (begin + first).to(tl.int32) + tl.arange(0, ROWS)
            dp *= kept(seed, row[:, None], key[None, :], head, p_drop, scale_kept)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
        K += BLOCK * k_stride
        V += BLOCK * v_stride
    return dq


@triton.jit
def dq_kernel(
    Q, K, V, OUT, DO, DQ, STATS, DELTA, TILES, COLUMNS, COS, SIN, SEED, T, q_stride, q_head,
    v_stride, v_head, do_stride, do_head, scale, d_scale, half, p_drop, scale_kept,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    MAP_ROWS: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr, HOLES: tl.constexpr,
    ROTATES: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dQ and delta of a tile of queries; any window."""
    head, begin, length, first = tile_of(TILES, H, ROWS, MAP_ROWS)
    if first >= length:
        return
    left, at = length - first, begin + first
    q = load_tile(Q + at * q_stride + head * q_head, left, q_stride, ROWS, D, WIDTH, True)
    do, delta = delta_of(
        OUT + at * (H * D) + head * D, DO + at * do_stride + head * do_head, left, H * D, do_stride,
        ROWS, D, WIDTH, PRECISION)  # fmt: skip
    row = tl.arange(0, ROWS)
    tl.store(DELTA + head * T + at + row, delta, mask=row < left)
    m = load_row(STATS + head * T + at, left, ROWS, True)
    inverse = load_row(sums_of(STATS, T, H) + head * T + at, left, ROWS, True)
    seed = tl.load(SEED) if DROPS else 0
    q_column = columns_of(COLUMNS, begin, first, left, ROWS, HOLES)
    K += begin * q_stride + head * q_head
    V += begin * v_stride + head * v_head
    lo, hi = window_of(first, length, half, ROWS, WINDOW)
    a, b = inner_blocks(lo, hi, first, length, half, ROWS, BLOCK, WINDOW, HOLES)
    dq = tl.zeros([ROWS, WIDTH], tl.float32)
    if WINDOW:
        dq = dq_blocks(
            dq, q, do, m, inverse, delta, q_column, K, V, COLUMNS, seed, head, begin, first, length,
            lo, a, q_stride, v_stride, scale, half, p_drop, scale_kept,
            D, WIDTH, ROWS, BLOCK, WINDOW, HOLES, DROPS, True, PRECISION)  # fmt: skip
    dq = dq_blocks(
        dq, q, do, m, inverse, delta, q_column, K, V, COLUMNS, seed, head, begin, first, length,
        a, b, q_stride, v_stride, scale, half, p_drop, scale_kept,
        D, WIDTH, ROWS, BLOCK, WINDOW, HOLES, DROPS, False, PRECISION)  # fmt: skip
    dq = dq_blocks(
        dq, q, do, m, inverse, delta, q_column, K, V, COLUMNS, seed, head, begin, first, length,
        b, hi, q_stride, v_stride, scale, half, p_drop, scale_kept,
        D, WIDTH, ROWS, BLOCK, WINDOW, HOLES, DROPS, True, PRECISION)  # fmt: skip
    store_gradient(DQ + at * (3 * H * D) + head * D, dq * d_scale, COS, SIN, at, left,
                   3 * H * D, ROWS, D, WIDTH, ROTATES)  # fmt: skip


@triton.jit
def dkv_blocks(
    dk, dv, k, v, k_column, Q, DO, STATS, DELTA, COLUMNS, seed, head, begin, first, length, T,
    start, end, q_stride, do_stride, scale, half, p_drop, scale_kept,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    WINDOW: tl.constexpr, HOLES: tl.constexpr, DROPS: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds what blocks of queries give to dK / scale and dV; Q and DO point to the sequence's first
    row. A query beyond the sequence has zeros for all it is multiplied with.
    """
    Q += start.to(tl.int64) * q_stride
    DO += start.to(tl.int64) * do_stride
    for n in tl.range(start, end, BLOCK):
        left, row = length - n, tl.arange(0, BLOCK)
        q = load_tile(Q, left, q_stride, BLOCK, D, WIDTH, MASKED)
        do = load_tile(DO, left, do_stride, BLOCK, D, WIDTH, MASKED)
        at = head * T + begin + n
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        p = tl.math.exp2(s * scale - load_row(STATS + at, left, BLOCK, MASKED)[None, :])
        p *= load_row(sums_of(STATS, T, H) + at, left, BLOCK, MASKED)[None, :]
        if MASKED and WINDOW:
            q_column = columns_of(COLUMNS, begin, n, left, BLOCK, HOLES)
            p = tl.where(near(k_column, q_column, half), p, 0.0)
        dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        used = p
        if DROPS:
            query, key = (begin + n).to(tl.int32) + row, first + tl.arange(0, ROWS)
            z = kept(seed, query[None, :], key[:, None], head, p_drop, scale_kept)
            used, dp = p * z, dp * z
        dv = tl.dot(used.to(do.dtype), do, dv, input_precision=PRECISION)
        ds = p * (dp - load_row(DELTA + at, left, BLOCK, MASKED)[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
        Q += BLOCK * q_stride
        DO += BLOCK * do_stride
    return dk, dv


@triton.jit
def dkv_kernel(
    Q, K, V, DO, DK, DV, STATS, DELTA, TILES, COLUMNS, COS, SIN, SEED, T, q_stride, q_head,
    v_stride, v_head, do_stride, do_head, scale, d_scale, half, p_drop, scale_kept,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    MAP_ROWS: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr, HOLES: tl.constexpr,
    ROTATES: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dK and dV of a tile of keys; any window."""
    head, begin, length, first = tile_of(TILES, H, ROWS, MAP_ROWS)
    if first >= length:
        return
    left, at = length - first, begin + first
    k = load_tile(K + at * q_stride + head * q_head, left, q_stride, ROWS, D, WIDTH, True)
    v = load_tile(V + at * v_stride + head * v_head, left, v_stride, ROWS, D, WIDTH, True)
    seed = tl.load(SEED) if DROPS else 0
    k_column = columns_of(COLUMNS, begin, first, left, ROWS, HOLES)
    Q += begin * q_stride + head * q_head
    DO += begin * do_stride + head * do_head
    lo, hi = window_of(first, length, half, ROWS, WINDOW)
    a, b = inner_blocks(lo, hi, first, length, half, ROWS, BLOCK, WINDOW, HOLES)
    dk = tl.zeros([ROWS, WIDTH], tl.float32)
    dv = tl.zeros([ROWS, WIDTH], tl.float32)
    if WINDOW:
        dk, dv = dkv_blocks(
            dk, dv, k, v, k_column, Q, DO, STATS, DELTA, COLUMNS, seed, head, begin, first, length,
            T, lo, a, q_stride, do_stride, scale, half, p_drop, scale_kept,
            H, D, WIDTH, ROWS, BLOCK, WINDOW, HOLES, DROPS, True, PRECISION)  # fmt: skip
    dk, dv = dkv_blocks(
        dk, dv, k, v, k_column, Q, DO, STATS, DELTA, COLUMNS, seed, head, begin, first, length,
        T, a, b, q_stride, do_stride, scale, half, p_drop, scale_kept,
        H, D, WIDTH, ROWS, BLOCK, WINDOW, HOLES, DROPS, False, PRECISION)  # fmt: skip
    dk, dv = dkv_blocks(
        dk, dv, k, v, k_column, Q, DO, STATS, DELTA, COLUMNS, seed, head, begin, first, length,
        T, b, hi, q_stride, do_stride, scale, half, p_drop, scale_kept,
        H, D, WIDTH, ROWS, BLOCK, WINDOW, HOLES, DROPS, True, PRECISION)  # fmt: skip
    place = at * (3 * H * D) + head * D
    store_gradient(DK + place, dk * d_scale, COS, SIN, at, left, 3 * H * D,
                   ROWS, D, WIDTH, ROTATES)  # fmt: skip
    store_tile(DV + place, dv, left, 3 * H * D, ROWS, D, WIDTH)


@triton.jit
def local_dq_side(
    dqa, dqb, qa, qb, do, m, inverse, delta, K, V, COS, SIN, head, begin, first, n, left,
    k_stride, v_stride, scale, SIDE: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr, HALF: tl.constexpr,
    ROTATES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds to dQ / scale what the keys on `SIDE` give, which begin at row n of the sequence."""
    ka, kb = load_halves(K + n.to(tl.int64) * k_stride, COS, SIN, begin + n, left, k_stride,
                         N, D, WIDTH, ROTATES)  # fmt: skip
    v = load_tile(V + n.to(tl.int64) * v_stride, left, v_stride, N, D, WIDTH, True)
    dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
    p = tl.math.exp2(score(qa, qb, ka, kb, PRECISION) * scale - m[:, None]) * inverse[:, None]
    p = tl.where(side_seen(left, SIDE, HALF, N), p, 0.0)
    ds = (p * (dp - delta[:, None])).to(ka.dtype)
    dqa = tl.dot(ds, ka, dqa, input_precision=PRECISION)
    return dqa, tl.dot(ds, kb, dqb, input_precision=PRECISION)


@triton.jit
def local_dq_kernel(
    Q, K, V, OUT, DO, DQ, STATS, DELTA, TILES, COS, SIN, T, q_stride, q_head, v_stride,
    v_head, do_stride, do_head, scale, d_scale,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr, HALF: tl.constexpr,
    ROTATES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As `dq_kernel`, for a window of at most N columns to each side."""
    head, begin, length, first = tile_of(TILES, H, N, N)
    if first >= length:
        return
    here, at, row = length - first, begin + first, tl.arange(0, N)
    qa, qb = load_halves(Q + at * q_stride + head * q_head, COS, SIN, at, here,
                         q_stride, N, D, WIDTH, ROTATES)  # fmt: skip
    do, delta = delta_of(
        OUT + at * (H * D) + head * D, DO + at * do_stride + head * do_head, here, H * D, do_stride,
        N, D, WIDTH, PRECISION)  # fmt: skip
    tl.store(DELTA + head * T + at + row, delta, mask=row < here)
    m = load_row(STATS + head * T + at, here, N, True)
    inverse = load_row(sums_of(STATS, T, H) + head * T + at, here, N, True)
    K += begin * q_stride + head * q_head
    V += begin * v_stride + head * v_head
    dqa = tl.zeros([N, WIDTH // 2], tl.float32)
    dqb = tl.zeros([N, WIDTH // 2], tl.float32)
    for side in tl.static_range(3):
        left = tl.where(first > 0, N, 0) if side == 0 else here - (side - 1) * N
        if left > 0:
            dqa, dqb = local_dq_side(
                dqa, dqb, qa, qb, do, m, inverse, delta, K, V, COS, SIN, head, begin, first,
                first + (side - 1) * N, left, q_stride, v_stride, scale,
                side - 1, D, WIDTH, N, HALF, ROTATES, PRECISION)  # fmt: skip
    store_halves(DQ + at * (3 * H * D) + head * D, dqa * d_scale, dqb * d_scale, COS, SIN,
                 at, here, 3 * H * D, N, D, WIDTH, ROTATES)  # fmt: skip


@triton.jit
def local_dkv_side(
    dka, dkb, dv, ka, kb, v, Q, DO, STATS, DELTA, COS, SIN, head, begin, first, n, left, T,
    q_stride, do_stride, scale, SIDE: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr, HALF: tl.constexpr,
    ROTATES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds what the queries on `SIDE` give, which begin at row n of the sequence."""
    at = head * T + begin + n
    qa, qb = load_halves(Q + n.to(tl.int64) * q_stride, COS, SIN, begin + n, left, q_stride,
                         N, D, WIDTH, ROTATES)  # fmt: skip
    do = load_tile(DO + n.to(tl.int64) * do_stride, left, do_stride, N, D, WIDTH, True)
    s = score(ka, kb, qa, qb, PRECISION)
    p = tl.math.exp2(s * scale - load_row(STATS + at, left, N, True)[None, :])
    p *= load_row(sums_of(STATS, T, H) + at, left, N, True)[None, :]
    p = tl.where(side_seen(left, SIDE, HALF, N), p, 0.0)
    dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
    dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)
    ds = (p * (dp - load_row(DELTA + at, left, N, True)[None, :])).to(qa.dtype)
    dka = tl.dot(ds, qa, dka, input_precision=PRECISION)
    return dka, tl.dot(ds, qb, dkb, input_precision=PRECISION), dv


@triton.jit
def local_dkv_kernel(
    Q, K, V, DO, DK, DV, STATS, DELTA, TILES, COS, SIN, T, q_stride, q_head, v_stride, v_head,
    do_stride, do_head, scale, d_scale,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr, HALF: tl.constexpr,
    ROTATES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As `dkv_kernel`, for a window of at most N columns to each side."""
    head, begin, length, first = tile_of(TILES, H, N, N)
    if first >= length:
        return
    here, at = length - first, begin + first
    place = at * (3 * H * D) + head * D
    ka, kb = load_halves(K + at * q_stride + head * q_head, COS, SIN, at, here,
                         q_stride, N, D, WIDTH, ROTATES)  # fmt: skip
    v = load_tile(V + at * v_stride + head * v_head, here, v_stride, N, D, WIDTH, True)
    Q += begin * q_stride + head * q_head
    DO += begin * do_stride + head * do_head
    dka = tl.zeros([N, WIDTH // 2], tl.float32)
    dkb = tl.zeros([N, WIDTH // 2], tl.float32)
    dv = tl.zeros([N, WIDTH], tl.float32)
    for side in tl.static_range(3):
        left = tl.where(first > 0, N, 0) if side == 0 else here - (side - 1) * N
        if left > 0:
            dka, dkb, dv = local_dkv_side(
                dka, dkb, dv, ka, kb, v, Q, DO, STATS, DELTA, COS, SIN, head, begin, first,
                first + (side - 1) * N, left, T, q_stride, do_stride, scale,
                side - 1, H, D, WIDTH, N, HALF, ROTATES, PRECISION)  # fmt: skip
    store_halves(DK + place, dka * d_scale, dkb * d_scale, COS, SIN, at, here,
                 3 * H * D, N, D, WIDTH, ROTATES)  # fmt: skip
    store_tile(DV + place, dv, here, 3 * H * D, N, D, WIDTH)
