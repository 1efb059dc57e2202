"""The activation functions that configs name. `gelu` is the exact erf form, as in every checkpoint
of these families.

The two GELU forms differ by up to 4.7e-4 (at |x| = 2.70), so a wrong choice is a small error in
every layer and is never reported by anything but a comparison.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_python": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": F.tanh,
}


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """The function called `name` in a config.

    Raises:
        ValueError: the name is not one of `ACTIVATIONS`.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation: got {name!r}, allowed are {sorted(ACTIVATIONS)}")
    return ACTIVATIONS[name]
