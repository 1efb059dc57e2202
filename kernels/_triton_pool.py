"""pool on the triton backend: each token read once, however long its sequence."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from encoder_fast.kernels import _triton
from encoder_fast.kernels._triton_segments import reduced, spread
from encoder_fast.kernels.pool import _finish, check_pooling

POOL = _triton.Operator(
    "triton_pool(Tensor x, Tensor cu, str mode) -> Tensor",
    lambda x, cu, mode: reduced(x, cu, mode, torch.float32),
    lambda x, cu, mode: x.new_empty((cu.shape[0] - 1, x.shape[1]), dtype=torch.float32),
)
POOL_BACKWARD = _triton.Operator(
    "triton_pool_backward(Tensor dy, Tensor cu, str mode, SymInt tokens, ScalarType dtype,"
    " Tensor? x, Tensor? y) -> Tensor",
    lambda dy, cu, mode, tokens, dtype, x, y: spread(dy, cu, mode, tokens, dtype, x, y),
    lambda dy, cu, mode, tokens, dtype, x, y: dy.new_empty((tokens, dy.shape[1]), dtype=dtype),
)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TW, cu_B1, mode):
        y_BW = POOL(x_TW, cu_B1, mode)
        ctx.save_for_backward(cu_B1, *((x_TW, y_BW) if mode == "max" else ()))
        ctx.mode, ctx.tokens, ctx.dtype = mode, x_TW.shape[0], x_TW.dtype
        return y_BW

    @staticmethod
    @once_differentiable
    def backward(ctx, dy_BW):
        cu_B1, *of_max = ctx.saved_tensors
        rest = of_max or (None, None)
        dx_TW = POOL_BACKWARD(dy_BW, cu_B1, ctx.mode, ctx.tokens, ctx.dtype, *rest)
        return dx_TW, None, None


def pool(
    x_TW: Tensor,
    cu_seqlens_B1: Tensor,
    mode: str = "mean",
    normalize: bool = False,
    truncate_dim: int | None = None,
) -> Tensor:
    """As `kernels.pool.reference`; no offset is read on the host."""
    check_pooling(mode, x_TW.shape[-1], truncate_dim)
    y_BW = _Pool.apply(x_TW, cu_seqlens_B1.to(torch.int32), mode)
    return _finish(y_BW, normalize, truncate_dim)
