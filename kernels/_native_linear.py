"""linear on the native engine: packed weights, and gradients with fp32 sums in a fixed order."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from encoder_fast.kernels import _native
from encoder_fast.kernels._native_weights import DTYPES, address, compute_dtype, packed


def why_not(request) -> str | None:
    """Why the engine cannot serve a `dispatch.Request`; None if it can."""
    if request.device.type != "cpu":
        return f"it runs on a CPU, not on {request.device.type}"
    if request.dtype not in DTYPES:
        return f"it computes in float32 and bfloat16, not in {request.dtype}"
    return _native.missing


def usable(x: Tensor, *parameters: Tensor | None) -> bool:
    """Can this call run natively? Plain CPU tensors of one dtype; the torch form serves others."""
    if not _native.serves() or x.ndim != 2 or x.dtype not in DTYPES or x.device.type != "cpu":
        return False
    given = [p for p in parameters if p is not None]
    return type(x) in (Tensor, torch.nn.Parameter) and all(_plain(p, x.dtype) for p in given)


def _plain(parameter: Tensor, dtype: torch.dtype) -> bool:
    # Subclasses (quantised, distributed) have layouts of their own; inference tensors do not count
    # their versions.
    return (
        type(parameter) in (Tensor, torch.nn.Parameter)
        and parameter.dtype == dtype
        and parameter.device.type == "cpu"
        and parameter.numel() > 0
        and not parameter.is_inference()
    )


def fits(width: int, weight: Tensor, bias: Tensor | None) -> bool:
    """Is there a product of rows of `width` with these? Where not, torch says what is wrong."""
    if weight.ndim != 2 or weight.shape[1] != width:
        return False
    return bias is None or bias.shape == weight.shape[:1]


def needs_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def in_rows(x: Tensor) -> Tensor:
    """`x` with the numbers of each row side by side."""
    return x if x.stride(1) == 1 else x.contiguous()


def rows(x: Tensor | None) -> tuple[int, int, int, int]:
    """What the engine knows of a matrix from `in_rows`."""
    return (0, 0, 0, 0) if x is None else (address(x), *x.shape, x.stride(0))


def product(x_TW: Tensor, pack, width: int) -> Tensor:
    """`(T, W)` x a pack -> `(T, width)`."""
    x_TW = in_rows(x_TW)
    out = x_TW.new_empty(x_TW.shape[0], width)
    _native.C.linear(
        pack, address(x_TW), x_TW.stride(0), address(out), width, DTYPES[x_TW.dtype],
        x_TW.shape[0], torch.get_num_threads(),
    )  # fmt: skip
    return out


def gradient_of_parameters(
    grad_TO: Tensor, x_TW: Tensor, weight: bool, bias: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the weight `(O, W)` and the bias `(O,)` of a product, those that are wanted."""
    if not (weight or bias):
        return None, None
    grad_TO, x_TW = in_rows(grad_TO), in_rows(x_TW)
    outputs, inputs = grad_TO.shape[1], x_TW.shape[1]
    d_weight = grad_TO.new_empty(outputs, inputs) if weight else None
    d_bias = grad_TO.new_zeros(outputs, dtype=torch.float32) if bias else None
    _native.C.gradient_of_weight(
        rows(grad_TO), rows(x_TW), DTYPES[x_TW.dtype], compute_dtype(x_TW.dtype),
        address(d_weight), address(d_bias), torch.get_num_threads(),
    )  # fmt: skip
    return d_weight, None if d_bias is None else d_bias.to(grad_TO.dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TW, weight_OW, bias_O):
        ctx.save_for_backward(x_TW, weight_OW)
        return product(x_TW, packed(weight_OW, bias_O), weight_OW.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_TO):
        x_TW, weight_OW = ctx.saved_tensors
        needs_x, *needs = ctx.needs_input_grad
        pack = packed(weight_OW, None, turned=True) if needs_x else None
        dx = product(grad_TO, pack, weight_OW.shape[1]) if needs_x else None
        return dx, *gradient_of_parameters(grad_TO, x_TW, *needs)


def linear(x_TW: Tensor, weight_OW: Tensor, bias_O: Tensor | None) -> Tensor:
    """As `kernels.linear.reference`, where `usable` says so."""
    bias_O = None if bias_O is None else bias_O.contiguous()
    if needs_gradient(x_TW, weight_OW, bias_O):
        return _Linear.apply(x_TW, weight_OW, bias_O)
    return product(x_TW, packed(weight_OW, bias_O), weight_OW.shape[0])
