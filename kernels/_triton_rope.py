"""rope on the triton backend, where attention does not rotate by itself."""

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from encoder_fast.kernels import _triton
from encoder_fast.kernels._triton_rope_kernels import rope_kernel

NUMBERS = 4096
"""Pairs of a tile at most: 32 for each of 128 threads. Not measured: no GPU was at hand."""
HEAD_BLOCK = 8


def rotated(qkv: Tensor, cos: Tensor, sin: Tensor, sign: float, thirds: int) -> Tensor:
    """Queries and keys (`thirds` 2), and the values as they are (`thirds` 3): `(T, thirds, H, D)`,
    contiguous.
    """
    qkv = qkv if qkv.stride(-1) == 1 else qkv.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    T, _, H, D = qkv.shape
    out = qkv.new_empty(T, thirds, H, D)
    if not out.numel():
        return out
    half = triton.next_power_of_2(D // 2)
    tokens = max(1, min(32, NUMBERS // (HEAD_BLOCK * half)))
    programs = triton.cdiv(T, tokens) * triton.cdiv(thirds * H, HEAD_BLOCK)
    rope_kernel[(programs,)](
        qkv, cos, sin, out, T, *qkv.stride()[:3], D // 2, sign,
        H=H, HEADS=thirds * H, K=D // 2, TOKENS=tokens, HEAD_BLOCK=HEAD_BLOCK, HALF=half,
    )  # fmt: skip
    return out


ROTATE = _triton.Operator(
    "triton_rotate(Tensor qkv, Tensor cos, Tensor sin, float sign, int thirds) -> Tensor",
    rotated,
    lambda qkv, cos, sin, sign, thirds: qkv.new_empty(
        qkv.shape[0], thirds, qkv.shape[2], qkv.shape[3]
    ),
)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv_T3HD, cos_TK, sin_TK):
        ctx.save_for_backward(cos_TK, sin_TK)
        return ROTATE(qkv_T3HD, cos_TK, sin_TK, 1.0, 3)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_T3HD):
        return ROTATE(grad_T3HD, *ctx.saved_tensors, -1.0, 3), None, None


def rope(qkv_T3HD: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    """As `kernels.rope.reference`; the result is contiguous."""
    return _Rope.apply(qkv_T3HD, cos_TK, sin_TK)
