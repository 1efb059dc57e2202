"""Launches of the kernels that reduce segments of rows: for pool, and for gradients of tables."""

import torch
import triton
from torch import Tensor

from encoder_fast.kernels._triton_add_norm import in_rows
from encoder_fast.kernels._triton_segments_kernels import (
    chunks_kernel,
    segments_kernel,
    spread_kernel,
)

CHUNK = 64
"""Rows: a program adds at most 126 of them and one number for each further 64. Not measured: no GPU
was at hand."""
NUMBERS = 2048
"""Of a tile: 16 for each of 128 threads. Not measured."""
WIDEST = 256
"""Columns of a tile: 16-byte loads of bf16 by a warp; leaves three programs for a row of 768."""
PICKS = ("cls", "last")


def tile_of(width: int) -> dict:
    block = min(triton.next_power_of_2(width), WIDEST)
    return {"ROWS": min(CHUNK, NUMBERS // block), "BLOCK": block}


def reduced(
    x_TW: Tensor,
    cu_S1: Tensor,
    mode: str,
    dtype: torch.dtype,
    order_T: Tensor | None = None,
    y_SW: Tensor | None = None,
    skip: int = -1,
) -> Tensor:
    """Each segment of rows as one row: `(S, W)` in `dtype`.

    Args:
        cu_S1: int32; segment s is rows `cu[s]` to `cu[s+1]`, of `order_T` if that is given.
        mode: of `kernels.pool.MODES`, or `sum`, or `ties` (how many numbers equal `y_SW`).
        skip: a segment that gives zeros.
    """
    x_TW = in_rows(x_TW)
    W, segments = x_TW.shape[1], len(cu_S1) - 1
    out_SW = x_TW.new_empty((segments, W), dtype=dtype)
    if not out_SW.numel():
        return out_SW
    T = len(x_TW if order_T is None else order_T)
    tile, gather = tile_of(W), order_T is not None
    blocks = triton.cdiv(W, tile["BLOCK"])
    count = 0 if mode in PICKS else T // CHUNK
    chunks = x_TW.new_empty((count, W), dtype=torch.float32)
    if count:
        chunks_kernel[(count * blocks,)](
            x_TW, order_T, cu_S1, y_SW, chunks, segments, segments.bit_length(), W,
            x_TW.stride(0), MODE=mode, GATHER=gather, CHUNK=CHUNK, **tile,
        )  # fmt: skip
    segments_kernel[(segments * blocks,)](
        x_TW, order_T, cu_S1, y_SW, chunks, out_SW, W, x_TW.stride(0), skip,
        MODE=mode, GATHER=gather, CHUNK=CHUNK, **tile,
    )  # fmt: skip
    return out_SW


def spread(
    dy_SW: Tensor,
    cu_S1: Tensor,
    mode: str,
    T: int,
    dtype: torch.dtype,
    x_TW: Tensor | None = None,
    y_SW: Tensor | None = None,
) -> Tensor:
    """The gradient `(T, W)` in `dtype` of what `reduced` was given; a maximum needs what was given
    and its result.
    """
    dy_SW = dy_SW.contiguous()
    segments, W = dy_SW.shape
    dx_TW = dy_SW.new_empty((T, W), dtype=dtype)
    if not segments:
        return dx_TW.zero_()
    if not dx_TW.numel():
        return dx_TW
    ties_SW = None
    if mode == "max":
        x_TW = in_rows(x_TW)
        ties_SW = reduced(x_TW, cu_S1, "ties", torch.float32, y_SW=y_SW)
    tile = tile_of(W)
    programs = triton.cdiv(T, tile["ROWS"]) * triton.cdiv(W, tile["BLOCK"])
    spread_kernel[(programs,)](
        dy_SW, x_TW, y_SW, ties_SW, cu_S1, dx_TW, T, segments, segments.bit_length(), W,
        0 if x_TW is None else x_TW.stride(0), MODE=mode, **tile,
    )  # fmt: skip
    return dx_TW
