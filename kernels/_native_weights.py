"""Weights in the layout of the native engine's tier, packed once for each state of a weight.

A pack is made anew when the storage or the version counter of its weight or bias changes
(`load_state_dict`, a move), after a step of an optimiser that has one of them, and when any of
about 16 sampled numbers of either does: writing through `weight.data`, as weight averaging and
adapter merging often do, leaves the counter alone. (A write through `.data` to a few numbers only
may go unseen; write under `torch.no_grad()` instead.)

Training changes weights in every step, so a pack is filled anew in the memory that it has.
"""

import sys
import threading
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from encoder_fast.kernels import _native
from encoder_fast.kernels._steps import last_step

PLAIN, HALVES_OF_HEADS, HALVES_OF_ALL = range(3)
"""Order of packed columns, `ef::Order`: as they come; halves of each head side by side, for rope;
halves of the whole side by side, for a gate.
"""

DTYPES = {torch.float32: 0, torch.bfloat16: 1}
"""`ef::Dtype` of what tensors hold."""

INT8, BY_3 = 2, 3

ACTIVATIONS = {
    "gelu": 1,
    "gelu_python": 1,
    "gelu_new": 2,
    "gelu_pytorch_tanh": 2,
    "gelu_fast": 2,
    "relu": 3,
    "silu": 4,
    "swish": 4,
    "tanh": 5,
}
"""Config name -> `ef::Activation`."""


def address(x: Tensor | None) -> int:
    """Where the numbers of `x` begin; 0 for None."""
    return 0 if x is None else x.data_ptr()


def matmul_precision() -> str:
    """torch's for fp32: "highest", "high" or "medium"; also where it was set for one library, when
    torch's own getter raises.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "medium" if torch.backends.mkldnn.matmul.fp32_precision == "bf16" else "highest"


def compute_dtype(dtype: torch.dtype) -> int:
    """`ef::Dtype` of products. For fp32 numbers torch's matmul precision says it: "medium" is bf16,
    "high" is three bf16 products for each, about 16 bits, where there is a matrix unit (elsewhere
    fp32 is as fast), "highest" is fp32.
    """
    precision = matmul_precision() if dtype == torch.float32 else None
    if precision == "high" and _native.has_by_3():
        return BY_3
    return DTYPES[torch.bfloat16 if precision == "medium" else dtype]


def _state(weight: Tensor, bias: Tensor | None) -> tuple:
    """What changes when the numbers do."""
    given = (weight,) if bias is None else (weight, bias)
    return tuple((p._version, last_step(p)) for p in given)


class _Pack:
    """A packed weight and what it was made from."""

    __slots__ = ("bias", "made", "packed", "turned", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None, layout: tuple):
        order, head, rotated, compute, self.turned = layout
        source = weight.t() if self.turned else weight
        self.packed = _native.C.pack(
            address(source), *source.shape, *source.stride(), DTYPES[source.dtype], address(bias),
            order, head, rotated, compute, torch.get_num_threads(),
        )  # fmt: skip
        self._remember(weight, bias)

    def _remember(self, weight: Tensor, bias: Tensor | None) -> None:
        # Detached views share the version counters and keep the storages: while they live, nobody
        # else's numbers can come to lie at the same address.
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.made = _state(weight, bias)

    def _alike(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Could these lie in the same pack?"""
        mine = self.weight
        return (
            (mine.dtype, mine.shape, mine.stride()) == (weight.dtype, weight.shape, weight.stride())
            and (self.bias is None) == (bias is None)
            and self.packed.tier == _native.tier()
        )

    def fits(self, weight: Tensor, bias: Tensor | None) -> bool:
        there = address(weight), address(bias)
        return (
            there == (address(self.weight), address(self.bias))
            and self.made == _state(weight, bias)
            and self._alike(weight, bias)
            and self.packed.fits(*there)
        )

    def renewed(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Packs other numbers in the same place, if the layout is the same and nobody else holds
        the pack: a call in another thread may be reading it.
        """
        if sys.getrefcount(self.packed) > 2 or not self._alike(weight, bias):
            return False
        self.packed.fill(address(weight), address(bias), torch.get_num_threads())
        self._remember(weight, bias)
        return True


_LOCK = threading.Lock()
"""Held while a pack is looked up or made."""
_PACKS: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""weight -> {layout: `_Pack`}. Weak: packs live as long as their weight."""


def packed(
    weight: Tensor,
    bias: Tensor | None,
    order: int = PLAIN,
    head: int = 0,
    rotated: int = 0,
    int8: bool = False,
    turned: bool = False,
    dtype: torch.dtype | None = None,
) -> Any:
    """The pack of a weight `(N, K)` of any strides, with its bias `(N,)` or None, of its dtype.

    Args:
        order: of the packed columns.
        head, rotated: `HALVES_OF_HEADS` only: head width, and how many columns are in pairs.
        int8: one scale for each row of the weight, products in int8.
        turned: the pack of the transposed weight, for gradients of inputs.
        dtype: of what is multiplied with it; None: its own.
    """
    layout = order, head, rotated, INT8 if int8 else compute_dtype(dtype or weight.dtype), turned
    with _LOCK:
        packs = _PACKS.get(weight)
        if packs is None:
            packs = _PACKS[weight] = {}
        found = packs.get(layout)
        if found is None or not (found.fits(weight, bias) or found.renewed(weight, bias)):
            _drop_old(packs, weight)
            found = packs[layout] = _Pack(weight, bias, layout)
        return found.packed


def _drop_old(packs: dict, weight: Tensor) -> None:
    """Packs of numbers that the weight no longer has, with the memory that they keep alive."""
    for layout, pack in list(packs.items()):
        if pack.weight.dtype != weight.dtype or address(pack.weight) != address(weight):
            del packs[layout]
