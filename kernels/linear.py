"""linear: y = x W^T + b, the projections around attention.

2 T W O flops for `(T, W)` x `(O, W)`. A matmul library does it in every backend; it is an op
because a backend may keep the weight in a layout of its own.
"""

import torch.nn.functional as F
from torch import Tensor

from encoder_fast.kernels import _native_linear, _onednn, _triton
from encoder_fast.kernels._cost import Cost
from encoder_fast.kernels._numeric import wide
from encoder_fast.kernels.dispatch import Implementation


def reference(x_TW: Tensor, weight_OW: Tensor, bias_O: Tensor | None) -> Tensor:
    """Specification: `(T, W)` x `(O, W)` -> `(T, O)` in the dtype of `x_TW`; bias may be None."""
    return F.linear(wide(x_TW), wide(weight_OW), wide(bias_O)).to(x_TW.dtype)


def torch_linear(x_TW: Tensor, weight_OW: Tensor, bias_O: Tensor | None) -> Tensor:
    """As `reference`, in the dtype of `x_TW`."""
    if _onednn.usable(x_TW, (weight_OW,), (bias_O,)):
        return _onednn.linear(x_TW, weight_OW, bias_O)
    return F.linear(x_TW, weight_OW, bias_O)


def native_linear(x_TW: Tensor, weight_OW: Tensor, bias_O: Tensor | None) -> Tensor:
    """As `reference`, with fp32 sums, on the native CPU engine."""
    given = weight_OW, bias_O
    if _native_linear.usable(x_TW, *given) and _native_linear.fits(x_TW.shape[1], *given):
        return _native_linear.linear(x_TW, weight_OW, bias_O)
    return torch_linear(x_TW, weight_OW, bias_O)


def cost(T: int, W: int, rows: int, itemsize: int) -> Cost:
    """`(T, W)` x `(rows, W)`; the weight is read once."""
    return Cost(2 * T * W * rows, (T * W + rows * W + T * rows) * itemsize)


IMPLEMENTATIONS = {
    "reference": Implementation(reference),
    "torch": Implementation(torch_linear),
    "native": Implementation(native_linear, _native_linear.why_not),
    "triton": Implementation(torch_linear, _triton.why_not),
}
