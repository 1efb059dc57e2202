"""Small numeric helpers that the references share."""

import torch
from torch import Tensor


def wide(x: Tensor | None) -> Tensor | None:
    """`x` in the dtype that references compute in: fp64 stays fp64, everything else becomes fp32."""
    if x is None or x.dtype == torch.float64:
        return x
    return x.float()


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm over the last axis, computed and returned in the wide dtype."""
    return torch.nn.functional.layer_norm(
        wide(x), x.shape[-1:], wide(weight), wide(bias), eps
    )
