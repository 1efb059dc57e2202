"""Sums, maxima and picked rows of the segments of a row axis, and their gradients.

A segment is a sequence that is pooled, or all tokens that read one row of an embedding table. Rows
are taken in chunks of fixed size: the chunks that lie in one segment are reduced first, each by its
own program, then each segment from these and from its rows outside them. So a segment of any length
costs a program little, no length is read on the host, and the order of every sum is fixed.
"""

import triton
import triton.language as tl


@triton.jit
def owner_of(row, CU, segments, steps):
    """The segment that holds a row, by binary search: the last s with CU[s] <= row. Empty ones
    begin where the next one begins, and are passed over. `steps` is the bit length of `segments`.
    """
    low = row * 0
    high = low + (segments - 1)
    for _ in range(steps):
        middle = (low + high + 1) // 2
        reached = tl.load(CU + middle) <= row
        low = tl.where(reached, middle, low)
        high = tl.where(reached, high, middle - 1)
    return low


@triton.jit
def taken(
    total, X, ORDER, Y, segment, begin, end, start, column, width, x_row,
    MODE: tl.constexpr, GATHER: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """`total` `(ROWS, BLOCK)` with rows `begin` to `end` of X, or of `ORDER` of X, taken in; they
    are of `segment`, which begins at row `start`.
    """
    inside_column = (column < width)[None, :]
    for base in range(begin, end, ROWS):
        row = base + tl.arange(0, ROWS)
        inside = (row < end)[:, None] & inside_column
        if GATHER:
            from_row = tl.load(ORDER + row, mask=row < end, other=0).to(tl.int64)
        else:
            from_row = row.to(tl.int64)
        outside: tl.constexpr = float("-inf") if MODE == "max" else 0.0
        at = X + from_row[:, None] * x_row + column[None, :]
        x = tl.load(at, mask=inside, other=outside).to(tl.float32)
        if MODE == "max":
            total = tl.maximum(total, x, propagate_nan=tl.PropagateNan.ALL)
        elif MODE == "ties":
            of_segment = Y + segment.to(tl.int64) * width + column
            y = tl.load(of_segment, mask=column < width, other=0.0)
            total += ((x == y[None, :]) & inside).to(tl.float32)
        elif MODE == "weighted":
            total += x * (row - start + 1).to(tl.float32)[:, None]
        else:
            total += x
    return total


@triton.jit
def nothing(MODE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """What `taken` begins with."""
    return tl.full([ROWS, BLOCK], float("-inf") if MODE == "max" else 0.0, tl.float32)


@triton.jit
def together(total, MODE: tl.constexpr):
    """`(ROWS, BLOCK)` -> `(BLOCK,)`."""
    if MODE == "max":
        # The hardware's maximum passes over NaN.
        lost = tl.max((total != total).to(tl.int32), 0) > 0
        return tl.where(lost, float("nan"), tl.max(total, 0))
    else:
        return tl.sum(total, 0)


@triton.jit
def divisor_of(length, MODE: tl.constexpr):
    """fp32: what the sum over a sequence of this length is divided by; 1 for an empty one."""
    count = tl.maximum(length, 1).to(tl.float32)
    if MODE == "mean":
        return count
    elif MODE == "mean_sqrt_len":
        return tl.sqrt_rn(count)
    elif MODE == "weighted":
        return count * (count + 1.0) * 0.5
    else:
        return count * 0.0 + 1.0


@triton.jit
def chunks_kernel(
    X, ORDER, CU, Y, CHUNKS, segments, steps, width, x_row,
    MODE: tl.constexpr, GATHER: tl.constexpr,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """fp32 `(chunks, width)`: each chunk that lies in one segment, reduced."""
    blocks = tl.cdiv(width, BLOCK)
    chunk = tl.program_id(0) // blocks
    column = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    first = chunk * CHUNK
    owner = owner_of(first, CU, segments, steps)
    start = tl.load(CU + owner)
    if tl.load(CU + owner + 1) >= first + CHUNK:
        total = taken(
            nothing(MODE, ROWS, BLOCK), X, ORDER, Y, owner, first, first + CHUNK,
            start, column, width, x_row, MODE, GATHER, ROWS,
        )  # fmt: skip
        to = CHUNKS + chunk.to(tl.int64) * width + column
        tl.store(to, together(total, MODE), mask=column < width)


@triton.jit
def segments_kernel(
    X, ORDER, CU, Y, CHUNKS, OUT, width, x_row, skip,
    MODE: tl.constexpr, GATHER: tl.constexpr,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`(segments, width)`: each segment reduced; zeros for an empty one and for number `skip`."""
    blocks = tl.cdiv(width, BLOCK)
    segment = tl.program_id(0) // blocks
    column = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    start = tl.load(CU + segment)
    end = tl.load(CU + segment + 1)
    length = end - start
    total = nothing(MODE, ROWS, BLOCK)
    if MODE == "cls" or MODE == "last":
        begin = start if MODE == "cls" else tl.maximum(end - 1, start)
        total = taken(
            total, X, ORDER, Y, segment, begin, tl.minimum(begin + 1, end), start,
            column, width, x_row, MODE, GATHER, ROWS,
        )  # fmt: skip
    else:
        first_chunk = tl.cdiv(start, CHUNK)
        last_chunk = end // CHUNK
        whole = first_chunk < last_chunk
        # Chunks are numbers already weighted or compared: only a maximum is taken otherwise than +.
        CHUNK_MODE: tl.constexpr = "max" if MODE == "max" else "sum"
        total = taken(
            total, X, ORDER, Y, segment, start, tl.where(whole, first_chunk * CHUNK, end),
            start, column, width, x_row, MODE, GATHER, ROWS,
        )  # fmt: skip
        total = taken(
            total, CHUNKS, ORDER, Y, segment, first_chunk, last_chunk, start,
            column, width, width, CHUNK_MODE, False, ROWS,
        )  # fmt: skip
        total = taken(
            total, X, ORDER, Y, segment, tl.where(whole, last_chunk * CHUNK, end), end,
            start, column, width, x_row, MODE, GATHER, ROWS,
        )  # fmt: skip
    y = together(total, MODE) / divisor_of(length, MODE)
    y = tl.where((length > 0) & (segment != skip), y, 0.0)
    to = OUT + segment.to(tl.int64) * width + column
    tl.store(to, y.to(OUT.dtype.element_ty), mask=column < width)


@triton.jit
def spread_kernel(
    DY, X, Y, TIES, CU, DX, T, segments, steps, width, x_row,
    MODE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dX `(T, width)`: what each row counted for in its segment, times dY; zeros beyond the last
    segment. A maximum's gradient is shared by the rows that reach it.
    """
    blocks = tl.cdiv(width, BLOCK)
    row = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    owner = owner_of(row, CU, segments, steps)
    start = tl.load(CU + owner)
    end = tl.load(CU + owner + 1)
    inside = (row < T)[:, None] & (column < width)[None, :]
    used = (row < end)[:, None] & inside
    of_owner = owner.to(tl.int64)[:, None] * width + column[None, :]
    dy = tl.load(DY + of_owner, mask=used, other=0.0).to(tl.float32)
    if MODE == "max":
        at = X + row.to(tl.int64)[:, None] * x_row + column[None, :]
        x = tl.load(at, mask=used, other=0.0).to(tl.float32)
        largest = x == tl.load(Y + of_owner, mask=used, other=0.0)
        dx = tl.where(largest, dy / tl.load(TIES + of_owner, mask=used, other=1.0), 0.0)
    elif MODE == "cls":
        dx = tl.where((row == start)[:, None], dy, 0.0)
    elif MODE == "last":
        dx = tl.where((row == end - 1)[:, None], dy, 0.0)
    elif MODE == "weighted":
        rank = (row - start + 1).to(tl.float32)
        dx = dy * (rank / divisor_of(end - start, MODE))[:, None]
    else:
        dx = dy / divisor_of(end - start, MODE)[:, None]
    to = DX + row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(to, dx.to(DX.dtype.element_ty), mask=inside)
