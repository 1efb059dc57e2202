"""add_norm on the triton backend: two rows read and two written per token, in one pass."""

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from encoder_fast.kernels import _triton
from encoder_fast.kernels._triton_add_norm_kernels import (
    add_norm_backward_kernel,
    add_norm_kernel,
    sum_rows_kernel,
)

NUMBERS = 2048
"""Of a tile: 16 for each of 128 threads. With 32 the compiler spills registers for sm_80 at fp32
(`make prove`). Not measured: no GPU was at hand."""
MOST_PROGRAMS = 512
"""Of the backward: each leaves one row of partial sums. About four for each multiprocessor of an
H200, but a number of its own, so that sums have one order on every GPU."""


def tile_of(width: int) -> dict:
    """Block sizes and warps for rows of `width`."""
    block = triton.next_power_of_2(width)
    rows = max(1, min(16, NUMBERS // block))
    return {"ROWS": rows, "BLOCK": block, "num_warps": 4 if block <= NUMBERS else 8}


def in_rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


def sum_rows(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """fp32 `(rows, width)` -> the sum `(width,)` in `dtype`."""
    rows, width = parts.shape
    out = parts.new_empty(width, dtype=dtype)
    sum_rows_kernel[(triton.cdiv(width, 32),)](parts, out, rows, width, ROWS=64, COLUMNS=32)
    return out


def _results(x: Tensor, residual: Tensor | None, wide: bool) -> tuple[Tensor, ...]:
    """y, s, mean and 1 / std, not yet filled; s is empty where it would be x."""
    T, W = x.shape
    dtype = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
    y = x.new_empty((T, W), dtype=torch.float32 if wide else dtype)
    s = x.new_empty((0 if residual is None else T, W), dtype=dtype)
    return y, s, *(x.new_empty(T, dtype=torch.float32) for _ in range(2))


def _add_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    wide: bool,
) -> tuple[Tensor, ...]:
    x, residual = in_rows(x), None if residual is None else in_rows(residual)
    y, s, mean, rstd = _results(x, residual, wide)
    T, W = x.shape
    if x.numel():
        tile = tile_of(W)
        add_norm_kernel[(triton.cdiv(T, tile["ROWS"]),)](
            x, residual, weight, bias, y, s, mean, rstd, T, W, x.stride(0),
            0 if residual is None else residual.stride(0), eps,
            HAS_RESIDUAL=residual is not None, HAS_BIAS=bias is not None, **tile,
        )  # fmt: skip
    return y, s, mean, rstd


def _gradients(s: Tensor, weight: Tensor, wants: tuple[bool, bool]) -> tuple[Tensor, ...]:
    sums = (weight.new_empty(weight.shape if wanted else 0) for wanted in wants)
    return s.new_empty(s.shape), *sums


def _add_norm_backward(
    dy: Tensor,
    ds: Tensor | None,
    s: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    wants_weight: bool,
    wants_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dy, s, ds = in_rows(dy), in_rows(s), None if ds is None else in_rows(ds)
    dx, *empty = _gradients(s, weight, (wants_weight, wants_bias))
    T, W = s.shape
    if not s.numel():
        return dx, *(x.zero_() for x in empty)
    tile = tile_of(W)
    tiles = triton.cdiv(T, tile["ROWS"])
    programs = min(tiles, MOST_PROGRAMS)
    parts = [
        s.new_empty((programs if wanted else 0, W), dtype=torch.float32)
        for wanted in (wants_weight, wants_bias)
    ]
    add_norm_backward_kernel[(programs,)](
        dy, ds, s, mean, rstd, weight, dx, *parts, T, W, dy.stride(0),
        0 if ds is None else ds.stride(0), s.stride(0), tiles,
        HAS_DS=ds is not None, WANTS_WEIGHT=wants_weight, WANTS_BIAS=wants_bias, **tile,
    )  # fmt: skip
    sums = zip(parts, empty, strict=True)
    return dx, *(sum_rows(p, weight.dtype) if p.numel() else nothing for p, nothing in sums)


ADD_NORM = _triton.Operator(
    "triton_add_norm(Tensor x, Tensor? residual, Tensor weight, Tensor? bias, float eps, bool wide)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _add_norm,
    lambda x, residual, weight, bias, eps, wide: _results(x, residual, wide),
)
ADD_NORM_BACKWARD = _triton.Operator(
    "triton_add_norm_backward(Tensor dy, Tensor? ds, Tensor s, Tensor mean, Tensor rstd,"
    " Tensor weight, bool wants_weight, bool wants_bias) -> (Tensor, Tensor, Tensor)",
    _add_norm_backward,
    lambda dy, ds, s, mean, rstd, weight, *wants: _gradients(s, weight, wants),
)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TW, residual_TW, weight_W, bias_W, eps, wide):
        y_TW, s_TW, *statistics = ADD_NORM(x_TW, residual_TW, weight_W, bias_W, eps, wide)
        saved_s_TW = x_TW if residual_TW is None else s_TW
        ctx.save_for_backward(saved_s_TW, *statistics, weight_W)
        ctx.dtypes = x_TW.dtype, None if residual_TW is None else residual_TW.dtype
        ctx.bias_dtype = None if bias_W is None else bias_W.dtype
        ctx.set_materialize_grads(False)
        if residual_TW is None:
            ctx.mark_non_differentiable(s_TW)
        return y_TW, s_TW

    @staticmethod
    @once_differentiable
    def backward(ctx, dy_TW, ds_TW):
        s_TW, mean_T, rstd_T, weight_W = ctx.saved_tensors
        x_dtype, residual_dtype = ctx.dtypes
        if dy_TW is None and ds_TW is None:
            return (None,) * 6
        wants = ctx.needs_input_grad[2:4]
        if residual_dtype is None:
            ds_TW = None
        if dy_TW is None:
            dx_TW, d_weight, d_bias = ds_TW, None, None
        else:
            dx_TW, d_weight, d_bias = ADD_NORM_BACKWARD(
                dy_TW, ds_TW, s_TW, mean_T, rstd_T, weight_W, *wants
            )
        return (
            dx_TW.to(x_dtype) if ctx.needs_input_grad[0] else None,
            dx_TW.to(residual_dtype) if ctx.needs_input_grad[1] else None,
            d_weight if wants[0] else None,
            d_bias.to(ctx.bias_dtype) if wants[1] and d_bias is not None else None,
            None,
            None,
        )


def add_norm(
    x_TW: Tensor, residual_TW: Tensor | None, weight_W: Tensor, bias_W: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """As `kernels.add_norm.reference`; the sum is rounded before it is normalised, except in fp16.
    Under autocast the norm is fp32, as torch's is.
    """
    wide = torch.is_autocast_enabled(x_TW.device.type)
    y_TW, s_TW = _AddNorm.apply(x_TW, residual_TW, weight_W, bias_W, eps, wide)
    return y_TW, x_TW if residual_TW is None else s_TW
