"""Small numeric helpers that the references share."""

import torch
from torch import Tensor


def wide(x: Tensor | None) -> Tensor | None:
    """`x` in the dtype that references compute in: fp64 stays fp64, everything else becomes
    fp32.
    """
    if x is None or x.dtype == torch.float64:
        return x
    return x.float()


def dropout_seed(dropout_p: float) -> Tensor:
    """Of one call's dropout, int64 `()` on the CPU, from torch's generator; 0 without dropout."""
    options = {"dtype": torch.int64, "device": "cpu"}
    return torch.randint(2**62, (), **options) if dropout_p else torch.zeros((), **options)


def fast_layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """`F.layer_norm` in the dtype of `x`.

    On a CPU torch keeps 1 / std for the backward in the dtype of the parameters, and that of a
    constant row (1e6 at eps 1e-12) is infinite in fp16: hand it fp32 parameters.
    """
    if x.dtype == torch.float16 and x.device.type == "cpu":
        weight, bias = wide(weight), wide(bias)
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm over the last axis, computed and returned in the wide dtype."""
    return torch.nn.functional.layer_norm(wide(x), x.shape[-1:], wide(weight), wide(bias), eps)
