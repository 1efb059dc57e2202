"""mlp on the triton backend: the matmul library's products, and one kernel for all between them."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from encoder_fast.kernels import _triton
from encoder_fast.kernels._triton_mlp_kernels import activate_backward_kernel, activate_kernel
from encoder_fast.kernels.activations import activation_function

KINDS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""Config name -> what `_triton_jit.activated` knows."""


class Launch(NamedTuple):
    """Tiles of the activation kernels."""

    rows: int
    columns: int
    warps: int


LAUNCH = Launch(16, 128, 4)
"""16 numbers a thread: two 16-byte loads of each input at bf16, enough in flight to fill the memory
system at 8 blocks an SM. Not measured: no GPU was at hand."""
MOST_CHUNKS = 256
"""Partial column sums that the backward leaves, each of one row of `(F or 2F)` numbers."""


def chunk_of(T: int) -> int:
    """Tiles of rows that one program of the backward walks over: a function of the shape alone, so
    that sums have one order on every GPU.
    """
    tiles = triton.cdiv(T, LAUNCH.rows)
    return triton.next_power_of_2(max(4, triton.cdiv(tiles, MOST_CHUNKS)))


def _options(activation: str, gated: bool, bias: Tensor | None, p: float) -> dict:
    return {
        "KIND": KINDS[activation],
        "GATED": gated,
        "HAS_BIAS": bias is not None,
        "DROPS": p > 0,
        "ROWS": LAUNCH.rows,
        "COLUMNS": LAUNCH.columns,
        "num_warps": LAUNCH.warps,
    }


def _in_rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


def _activate(
    h: Tensor, bias: Tensor | None, seed: Tensor | None, activation: str, gated: bool, p: float
) -> Tensor:
    h, (T, width) = _in_rows(h), h.shape
    F_ = width // 2 if gated else width
    out = h.new_empty(T, F_)
    if out.numel():
        grid = (triton.cdiv(T, LAUNCH.rows) * triton.cdiv(F_, LAUNCH.columns),)
        activate_kernel[grid](
            h, bias, seed, out, T, F_, h.stride(0), F_, p, _scale(p),
            **_options(activation, gated, bias, p),
        )  # fmt: skip
    return out


def _scale(p: float) -> float:
    return 1.0 / (1.0 - p) if p < 1 else 0.0


def _activate_backward(
    h: Tensor,
    bias: Tensor | None,
    d_inner: Tensor,
    seed: Tensor | None,
    activation: str,
    gated: bool,
    p: float,
    wants_inner: bool,
    wants_sums: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    h, d_inner = _in_rows(h), _in_rows(d_inner)
    T, F_ = d_inner.shape
    d_h, inner, bias_sums = _backward_results(h, d_inner, wants_inner, wants_sums)
    if not d_inner.numel():
        return d_h, inner, bias_sums.zero_()
    steps = chunk_of(T)
    chunks = triton.cdiv(T, steps * LAUNCH.rows)
    sums = h.new_empty((chunks if wants_sums else 0, h.shape[1]), dtype=torch.float32)
    activate_backward_kernel[(chunks * triton.cdiv(F_, LAUNCH.columns),)](
        h, bias, seed, d_inner, d_h, inner, sums, T, F_, h.stride(0), d_inner.stride(0), steps,
        p, _scale(p), WANTS_INNER=wants_inner, WANTS_SUMS=wants_sums,
        **_options(activation, gated, bias, p),
    )  # fmt: skip
    return d_h, inner, sums.sum(0) if wants_sums else bias_sums


def _backward_results(
    h: Tensor, d_inner: Tensor, wants_inner: bool, wants_sums: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """d_h, inner and the bias gradient in fp32, not yet filled; empty where they are not wanted."""
    T, F_ = d_inner.shape
    inner = h.new_empty((T, F_) if wants_inner else (0, F_))
    bias_sums = h.new_empty(h.shape[1] if wants_sums else 0, dtype=torch.float32)
    return h.new_empty(h.shape), inner, bias_sums


ACTIVATE = _triton.Operator(
    "triton_activate(Tensor h, Tensor? bias, Tensor? seed, str activation, bool gated, float p)"
    " -> Tensor",
    _activate,
    lambda h, bias, seed, activation, gated, p: h.new_empty(
        h.shape[0], h.shape[1] // 2 if gated else h.shape[1]
    ),
)
ACTIVATE_BACKWARD = _triton.Operator(
    "triton_activate_backward(Tensor h, Tensor? bias, Tensor d_inner, Tensor? seed, str activation,"
    " bool gated, float p, bool wants_inner, bool wants_sums) -> (Tensor, Tensor, Tensor)",
    _activate_backward,
    lambda h, bias, d_inner, seed, activation, gated, p, *wants: _backward_results(
        h, d_inner, *wants
    ),
)


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TW, up_weight, up_bias, down_weight, down_bias, activation, gated, p, keep):
        # On the device and not read here: a recorded CUDA graph draws anew in each replay.
        seed = torch.randint(2**62, (1,), device=x_TW.device) if p else None
        h = F.linear(x_TW, up_weight)
        inner_TF = ACTIVATE(h, up_bias, seed, activation, gated, p)
        ctx.save_for_backward(x_TW, up_weight, up_bias, down_weight, h if keep else None, seed)
        ctx.how = activation, gated, p
        return F.linear(inner_TF, down_weight, down_bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_TW):
        x_TW, up_weight, up_bias, down_weight, h, seed = ctx.saved_tensors
        needs_x, needs_up, needs_up_bias, needs_down, needs_down_bias, *_ = ctx.needs_input_grad
        h = F.linear(x_TW, up_weight) if h is None else h
        d_h, inner_TF, d_up_bias = ACTIVATE_BACKWARD(
            h, up_bias, grad_TW @ down_weight, seed, *ctx.how, needs_down, needs_up_bias
        )
        return (
            d_h @ up_weight if needs_x else None,
            d_h.t() @ x_TW if needs_up else None,
            d_up_bias.to(up_bias.dtype) if needs_up_bias else None,
            grad_TW.t() @ inner_TF if needs_down else None,
            grad_TW.sum(0) if needs_down_bias else None,
            *(None,) * 4,
        )


def mlp(
    x_TW: Tensor,
    up_weight: Tensor,
    up_bias: Tensor | None,
    down_weight_WF: Tensor,
    down_bias_W: Tensor | None,
    activation: str,
    gated: bool,
    dropout_p: float = 0.0,
    keep: bool = True,
) -> Tensor:
    """As `kernels.mlp.reference`, with products in the dtype of `x_TW`.

    Args:
        keep: training keeps the result of the up-projection, `(T, F)` or `(T, 2F)`; False: the
            backward computes it again.
    """
    activation_function(activation)
    given = _triton.autocast(x_TW, up_weight, up_bias, down_weight_WF, down_bias_W)
    with torch.autocast(x_TW.device.type, enabled=False):
        return _Mlp.apply(*given, activation, gated, dropout_p, keep)
