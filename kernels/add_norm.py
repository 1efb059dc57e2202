"""add_norm: residual add, then LayerNorm.

    s = x + residual,   y = (s - mean(s)) / sqrt(var(s) + eps) * weight + bias        (Ba et al.
    2016, arXiv 1607.06450)

Post-norm layers use `y` as the next residual; pre-norm layers carry `s` and feed `y` to the next
block. Mean and variance are fp32 and two-pass (or Welford): the one-pass form E[s^2] - E[s]^2 gives
0.125 for a row whose variance is 3.9e-7.
Memory bound: reads two rows and writes two per token.
"""

import torch
from torch import Tensor

from encoder_fast.kernels import _native_linear, _native_rows, _triton
from encoder_fast.kernels._cost import Cost
from encoder_fast.kernels._numeric import fast_layer_norm, layer_norm, wide
from encoder_fast.kernels.dispatch import Implementation


def reference(
    x_TW: Tensor, residual_TW: Tensor | None, weight_W: Tensor, bias_W: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Specification.

    Args:
        x_TW, residual_TW: `(T, W)` of one dtype; residual None means zero.
        weight_W, bias_W: `(W,)`; bias may be None.

    Returns:
        `(y, s)`: normalised and plain sum, both `(T, W)` in the dtype of `x_TW`.
    """
    s_TW = wide(x_TW) if residual_TW is None else wide(x_TW) + wide(residual_TW)
    y_TW = layer_norm(s_TW, weight_W, bias_W, eps)
    return y_TW.to(x_TW.dtype), s_TW.to(x_TW.dtype)


def torch_add_norm(
    x_TW: Tensor, residual_TW: Tensor | None, weight_W: Tensor, bias_W: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """As `reference`; the sum is rounded to the dtype of `x_TW` before it is normalised, except in
    fp16, where it may exceed the largest number (the second result is then infinite, the first is
    not).
    """
    if residual_TW is not None and x_TW.dtype == residual_TW.dtype == torch.float16:
        s_TW = x_TW.float() + residual_TW.float()
        return fast_layer_norm(s_TW, wide(weight_W), wide(bias_W), eps).half(), s_TW.half()
    s_TW = x_TW if residual_TW is None else x_TW + residual_TW
    return fast_layer_norm(s_TW, weight_W, bias_W, eps), s_TW


def native_add_norm(
    x_TW: Tensor, residual_TW: Tensor | None, weight_W: Tensor, bias_W: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """As `reference`; the sum is rounded to the dtype of `x_TW` before it is normalised."""
    native = _native_rows.can_add_norm(x_TW, residual_TW, weight_W, bias_W)
    run = _native_rows.add_norm if native else torch_add_norm
    return run(x_TW, residual_TW, weight_W, bias_W, eps)


def cost(T: int, W: int, itemsize: int) -> Cost:
    """Reads two rows and writes two per token."""
    return Cost(9 * T * W, 4 * T * W * itemsize)


IMPLEMENTATIONS = {
    "reference": Implementation(reference),
    "torch": Implementation(torch_add_norm),
    "native": Implementation(native_add_norm, _native_linear.why_not),
    "triton": Implementation(_triton.Lazy("_triton_add_norm", "add_norm"), _triton.why_not),
}
