"""Linear layers for inference in bf16 on a CPU through oneDNN: weights packed once, GELU and gate
in the epilogue.

`F.linear` re-orders its weight in every call. Packed weights and fused epilogues are what torch's
own compiler uses when it freezes a model; here they need no compiler.

A pack belongs to one state of one weight. It is made anew when the storage or the version counter
changes (`load_state_dict`, a move), after a step of an optimiser that has the weight, and when any
of 64 sampled numbers does: writing through `weight.data`, as weight averaging and adapter merging
often do, leaves the counter alone. (A write through `.data` to a few numbers only may go unseen;
write under `torch.no_grad()` instead.) After `weight.data = new` the old storage lives until the
next call.

2026-11-30, EPYC with AVX-512 bf16, 2 threads, GeGLU block 768-1152-768, packed and fused against
plain: 32 tokens 0.57 / 0.79 ms, 128 tokens 1.80 / 2.21 ms, 1024 tokens 13.1 / 15.4 ms.
"""

from math import gcd

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.weak import WeakIdKeyDictionary

from encoder_fast.kernels._steps import last_step

SAMPLES = 64
"""About how many numbers of a weight are compared before its pack is used (3 us)."""

EPILOGUES = {
    "gelu": ("gelu", "none"),
    "gelu_python": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "gelu_fast": ("gelu", "tanh"),
    "relu": ("relu", ""),
}
"""Config name -> oneDNN's post-op and its algorithm."""


def _supported() -> bool:
    """Does this torch have the ops, and this CPU bf16 arithmetic?"""
    namespace = torch.ops.mkldnn
    names = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
    return (
        torch.backends.mkldnn.is_available()
        and all(hasattr(namespace, name) for name in names)
        and namespace._is_mkldnn_bf16_supported()
    )


SUPPORTED = _supported()


def _stride(count: int, width: int) -> int:
    """Distance between samples, without a factor in common with `width`: they fall in all
    columns.
    """
    step = max(1, count // SAMPLES) | 1
    while gcd(step, width) > 1:
        step += 2
    return step


class _Packed:
    """The packs of one weight, cut into parts along axis 0, and the state that they were made
    from.
    """

    def __init__(self, weight: Tensor, parts: int):
        flat = weight.detach().view(-1)
        # A view: while it lives, nobody else's weight can come to lie at the same address.
        self.sample = flat[:: _stride(flat.shape[0], weight.shape[-1])]
        self.values, self.parts = self.sample.clone(), parts
        self.version = weight._version, last_step(weight)
        pack = torch.ops.mkldnn._reorder_linear_weight
        self.tensors = tuple(pack(part.detach().contiguous()) for part in weight.chunk(parts))

    def fits(self, weight: Tensor, parts: int) -> bool:
        return (
            self.parts == parts
            and self.version == (weight._version, last_step(weight))
            and self.sample.data_ptr() == weight.data_ptr()
            and torch.equal(self.sample, self.values)
        )


_PACKED: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""weight -> `_Packed`. Weak: a pack lives as long as its weight."""


def usable(x_TW: Tensor, weights: tuple[Tensor, ...], biases: tuple[Tensor | None, ...]) -> bool:
    """Can this call take the packed path? Pure inference in bf16 on a CPU (no gradient in either
    mode), tokens present, plain contiguous parameters that count versions.
    """
    if not SUPPORTED or torch.compiler.is_compiling() or not torch.backends.mkldnn.enabled:
        return False
    if x_TW.dtype != torch.bfloat16 or x_TW.device.type != "cpu" or x_TW.shape[0] == 0:
        return False
    parameters = (*weights, *(bias for bias in biases if bias is not None))
    if not all(_plain(parameter) for parameter in parameters):
        return False
    if getattr(forward_ad, "_current_level", -1) >= 0:
        return False
    return not (torch.is_grad_enabled() and any(t.requires_grad for t in (x_TW, *parameters)))


def _plain(parameter: Tensor) -> bool:
    # Subclasses (quantised, distributed) have layouts of their own.
    return (
        type(parameter) in (Tensor, torch.nn.Parameter)
        and parameter.dtype == torch.bfloat16
        and parameter.device.type == "cpu"
        and parameter.is_contiguous()
        and parameter.numel() > 0
        and not parameter.is_inference()
    )


def packs(weight: Tensor, parts: int) -> tuple[Tensor, ...]:
    """The packed form of `weight`, cut into `parts` along axis 0."""
    found = _PACKED.get(weight)
    if found is None or not found.fits(weight, parts):
        found = _PACKED[weight] = _Packed(weight, parts)
    return found.tensors


def linear(x_TW: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear` with a packed weight: `(T, W)` x `(O, W)` -> `(T, O)`, all bf16."""
    (pack,) = packs(weight, 1)
    return torch.ops.mkldnn._linear_pointwise(x_TW, pack, bias, "none", [], "")


def activated(x_TW: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """`act(F.linear(x, weight, bias))`, `(T, W)` x `(F, W)` -> `(T, F)`: the activation, a key of
    `EPILOGUES`, in the matmul's epilogue.
    """
    (pack,) = packs(weight, 1)
    post_op, algorithm = EPILOGUES[activation]
    return torch.ops.mkldnn._linear_pointwise(x_TW, pack, bias, post_op, [], algorithm)


def gated(x_TW: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """`act(a) * g` for the halves of `F.linear(x, weight, bias)`, `(T, W)` x `(2F, W)` -> `(T, F)`:
    both in matmul epilogues.
    """
    pack_a, pack_g = packs(weight, 2)
    bias_a, bias_g = (None, None) if bias is None else bias.chunk(2)
    post_op, algorithm = EPILOGUES[activation]
    a_TF = torch.ops.mkldnn._linear_pointwise(x_TW, pack_a, bias_a, post_op, [], algorithm)
    return torch.ops.mkldnn._linear_pointwise.binary(x_TW, a_TF, pack_g, bias_g, "mul")
