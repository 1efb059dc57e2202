"""linear on the native engine: packed weights, and gradients with fp32 sums in a fixed order.

Under autocast the tokens are cast, and the parameters stay as they are: their packs are made from
them in the dtype of the tokens, once for each state of a weight.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from encoder_fast.kernels import _native
from encoder_fast.kernels._native_weights import DTYPES, address, compute_dtype, packed


def why_not(request) -> str | None:
    """Why the engine cannot serve a `dispatch.Request`; None if it can."""
    if request.device.type != "cpu":
        return f"device: got {request.device}, allowed is cpu"
    if request.dtype not in DTYPES:
        return f"dtype: got {request.dtype}, allowed are {tuple(DTYPES)}"
    return _native.missing


def usable(x: Tensor, *parameters: Tensor | None) -> bool:
    """Can this call run natively? Plain CPU tensors of one dtype, under autocast parameters of one
    dtype; the torch form serves others.
    """
    if not _native.serves() or x.ndim != 2 or x.dtype not in DTYPES or x.device.type != "cpu":
        return False
    given = [p for p in parameters if p is not None]
    dtype = x.dtype if _native.autocast_dtype() is None else given[0].dtype
    if dtype not in DTYPES or type(x) not in (Tensor, torch.nn.Parameter):
        return False
    return all(p.dtype == dtype and _plain(p) for p in given)


def autocast(x: Tensor) -> Tensor:
    """`x` in the dtype that autocast multiplies in, if it is on."""
    dtype = _native.autocast_dtype()
    return x if dtype is None else x.to(dtype)


def _plain(parameter: Tensor) -> bool:
    # Subclasses (quantised, distributed) have layouts of their own; inference tensors do not count
    # their versions.
    return (
        type(parameter) in (Tensor, torch.nn.Parameter)
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
    """What the engine knows of a matrix from `in_rows`: address, shape, distance of rows."""
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
    grad_TO: Tensor, x_TW: Tensor, weight: bool, bias: bool, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the weight `(O, W)` and the bias `(O,)` of a product, those that are wanted, in
    the dtype of the parameters.
    """
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
    return tuple(None if d is None else d.to(dtype) for d in (d_weight, d_bias))


def _infer(x_TW: Tensor, weight_OW: Tensor, bias_O: Tensor | None) -> Tensor:
    return product(x_TW, packed(weight_OW, bias_O, dtype=x_TW.dtype), weight_OW.shape[0])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TW, weight_OW, bias_O):
        ctx.save_for_backward(x_TW, weight_OW)
        # Packs belong to this object: a recomputing backward is given another one.
        ctx.weight = weight_OW
        return _infer(x_TW, weight_OW, bias_O)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_TO):
        x_TW, _ = ctx.saved_tensors
        weight_OW, (needs_x, *needs) = ctx.weight, ctx.needs_input_grad
        pack = packed(weight_OW, None, turned=True, dtype=x_TW.dtype) if needs_x else None
        dx = product(grad_TO, pack, weight_OW.shape[1]) if needs_x else None
        return dx, *gradient_of_parameters(grad_TO, x_TW, *needs, weight_OW.dtype)


def linear(x_TW: Tensor, weight_OW: Tensor, bias_O: Tensor | None) -> Tensor:
    """As `kernels.linear.reference`, where `usable` says so."""
    x_TW, bias_O = autocast(x_TW), None if bias_O is None else bias_O.contiguous()
    run = _Linear.apply if needs_gradient(x_TW, weight_OW, bias_O) else _infer
    return run(x_TW, weight_OW, bias_O)
