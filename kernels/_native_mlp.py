"""mlp on the native engine: rows go through both products while they lie in a core's cache."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from encoder_fast.kernels import _native, _native_linear
from encoder_fast.kernels._native_linear import (
    autocast,
    gradient_of_parameters,
    in_rows,
    needs_gradient,
    rows,
)
from encoder_fast.kernels._native_weights import (
    ACTIVATIONS,
    DTYPES,
    HALVES_OF_ALL,
    PLAIN,
    address,
    packed,
)
from encoder_fast.kernels._numeric import dropout_seed


def _infer(x_TW: Tensor, up: tuple, down: tuple, activation: str, gated: bool) -> Tensor:
    T, dtype = x_TW.shape[0], x_TW.dtype
    out_TW = x_TW.new_empty(T, down[0].shape[0])
    _native.C.mlp(
        packed(*up, HALVES_OF_ALL if gated else PLAIN, dtype=dtype), packed(*down, dtype=dtype),
        gated, ACTIVATIONS[activation], address(x_TW), x_TW.stride(0), address(out_TW),
        out_TW.shape[1], DTYPES[dtype], T, torch.get_num_threads(),
    )  # fmt: skip
    return out_TW


def _forward(
    x_TW: Tensor, up: tuple, down: tuple, activation: str, gated: bool, dropout: tuple, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """The result, and that of the up-projection if it is to be kept."""
    T, dtype = x_TW.shape[0], x_TW.dtype
    h = x_TW.new_empty(T, up[0].shape[0]) if keep else None
    out_TW = x_TW.new_empty(T, down[0].shape[0])
    _native.C.mlp_forward(
        packed(*up, dtype=dtype), packed(*down, dtype=dtype), gated, ACTIVATIONS[activation],
        rows(x_TW), rows(h), rows(out_TW), DTYPES[dtype], *dropout, torch.get_num_threads(),
    )  # fmt: skip
    return out_TW, h


def fits(
    x_TW: Tensor,
    up_weight: Tensor,
    up_bias: Tensor | None,
    down_weight: Tensor,
    down_bias: Tensor | None,
    gated: bool,
) -> bool:
    """Do the shapes make a feed-forward block? Where not, torch says what is wrong."""
    inner = down_weight.shape[-1]
    return (
        _native_linear.fits(x_TW.shape[1], up_weight, up_bias)
        and _native_linear.fits(inner, down_weight, down_bias)
        and up_weight.shape[0] == (2 if gated else 1) * inner
    )


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TW, up_weight, up_bias, down_weight, down_bias, activation, gated, p, keep):
        ctx.how = activation, gated, (p, int(dropout_seed(p)))
        parts = (up_weight, up_bias), (down_weight, down_bias)
        out_TW, h = _forward(x_TW, *parts, *ctx.how, keep)
        ctx.save_for_backward(x_TW, up_weight, up_bias, down_weight, h)
        # Packs belong to these objects: a recomputing backward is given others.
        ctx.weights = up_weight, up_bias, down_weight
        return out_TW

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_TW):
        x_TW, *_, h = ctx.saved_tensors
        up_weight, up_bias, down_weight = ctx.weights
        activation, gated, dropout = ctx.how
        needs_x, needs_up, needs_up_bias, needs_down, needs_down_bias, *_ = ctx.needs_input_grad
        grad_TW = in_rows(grad_TW)
        T, F, dtype = x_TW.shape[0], down_weight.shape[1], x_TW.dtype
        d_h = x_TW.new_empty(T, up_weight.shape[0]) if needs_up or needs_up_bias else None
        inner_TF = x_TW.new_empty(T, F) if needs_down else None
        dx = x_TW.new_empty(x_TW.shape) if needs_x else None
        _native.C.mlp_backward(
            packed(up_weight, up_bias, dtype=dtype),
            packed(up_weight, None, turned=True, dtype=dtype) if needs_x else None,
            packed(down_weight, None, turned=True, dtype=dtype), gated, ACTIVATIONS[activation],
            rows(x_TW), rows(h), rows(grad_TW), rows(d_h), rows(inner_TF), rows(dx), DTYPES[dtype],
            *dropout, torch.get_num_threads(),
        )  # fmt: skip
        seen = inner_TF if needs_down else grad_TW
        down = gradient_of_parameters(grad_TW, seen, needs_down, needs_down_bias, down_weight.dtype)
        up = None, None
        if d_h is not None:
            up = gradient_of_parameters(d_h, x_TW, needs_up, needs_up_bias, up_weight.dtype)
        return dx, *up, *down, None, None, None, None


def mlp(
    x_TW: Tensor,
    up_weight: Tensor,
    up_bias: Tensor | None,
    down_weight_WF: Tensor,
    down_bias_W: Tensor | None,
    activation: str,
    gated: bool,
    dropout_p: float,
    keep: bool,
) -> Tensor:
    """As `kernels.mlp.native_mlp`, where `_native_linear.usable` says so."""
    up_bias, down_bias_W = (None if b is None else b.contiguous() for b in (up_bias, down_bias_W))
    x_TW, up, down = in_rows(autocast(x_TW)), (up_weight, up_bias), (down_weight_WF, down_bias_W)
    if needs_gradient(x_TW, *up, *down):
        return _Mlp.apply(x_TW, *up, *down, activation, gated, dropout_p, keep)
    if dropout_p:
        dropout = dropout_p, int(dropout_seed(dropout_p))
        return _forward(x_TW, up, down, activation, gated, dropout, keep=False)[0]
    return _infer(x_TW, up, down, activation, gated)
