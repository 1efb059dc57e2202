"""All layers of an encoder as one call of the native engine, for inference.

Between two attentions a token meets only row-wise work: projection, residual, norm, feed-forward
block, norm, projection with rope. The engine takes a block of rows through all of it while the
block lies in a core's cache, with the residual stream in fp32, and meets the other threads twice a
layer (`csrc/engine.cpp`). Op by op, each of these steps would write its result to memory and the
next would read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from encoder_fast.kernels import _native
from encoder_fast.kernels._layout import Layout
from encoder_fast.kernels._native_linear import needs_gradient, usable
from encoder_fast.kernels._native_weights import (
    ACTIVATIONS,
    DTYPES,
    HALVES_OF_ALL,
    HALVES_OF_HEADS,
    PLAIN,
    address,
    matmul_precision,
    packed,
)
from encoder_fast.kernels._steps import steps_taken

WIDEST_INT8 = 8192
"""Numbers of a row that the engine quantises (csrc/cpu/chain.inl)."""

Parameters = tuple[Tensor, Tensor | None]
"""A weight and its bias."""


@dataclass(frozen=True)
class LayerParameters:
    """What one layer reads: weights `(out, in)`, norms `(W,)`."""

    qkv: Parameters
    out: Parameters
    up: Parameters
    down: Parameters
    attention_norm: Parameters
    """Of the norm that follows attention, in pre-norm layers the one before the feed-forward."""
    mlp_norm: Parameters
    """Of the norm that follows the feed-forward block, in pre-norm models the next layer's."""
    rope: tuple[Tensor, Tensor] | None
    """cos and sin, fp32 `(T, D/2)`."""
    half: int | None

    def parameters(self) -> list[Tensor]:
        pairs = self.qkv, self.out, self.up, self.down, self.attention_norm, self.mlp_norm
        return [x for pair in pairs for x in pair if x is not None]


@dataclass(frozen=True)
class Stack:
    """What all layers have in common."""

    heads: int
    pre_norm: bool
    gated: bool
    activation: str
    eps: float


def _table(layer: LayerParameters, tables: dict[int, int]) -> int:
    """Index of the layer's rope tables in the order of their first use, -1 for none."""
    return -1 if layer.rope is None else tables.setdefault(id(layer.rope), len(tables))


class _Prepared:
    """The packed layers of a model, and the state of its parameters that they were made in."""

    __slots__ = ("stack", "state", "views")

    def __init__(self, state: tuple, stack: Any, parameters: list[Tensor]):
        self.state, self.stack = state, stack
        # While they live, no other tensor can come to lie at an address that `state` names.
        self.views = [p.detach() for p in parameters]


_PREPARED: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""First weight of a model -> {int8: `_Prepared`}. Weak: it lives as long as that weight."""


def _state(
    x_TW: Tensor, layers: Sequence[LayerParameters], parameters: list[Tensor], stack: Stack
) -> tuple | None:
    """All that a pack depends on; None where the engine cannot read a parameter."""
    try:
        versions = [
            (type(p), p.data_ptr(), p._version, p.dtype, p.shape, p.stride()) for p in parameters
        ]
    except RuntimeError:  # made in inference mode, without a count of versions, or without memory
        return None
    tables: dict[int, int] = {}
    kinds = tuple((layer.half, _table(layer, tables)) for layer in layers)
    return (
        steps_taken(),
        x_TW.dtype,
        _native.autocast_dtype(),
        _native.tier(),
        matmul_precision(),
        stack,
        kinds,
        tuple(versions),
    )


def _shapes_fit(layer: LayerParameters, W: int, gated: bool) -> bool:
    """Do the shapes make a layer? Where not, torch's own operations say what is wrong."""
    inner = layer.down[0].shape[-1]
    shapes = (3 * W, W), (W, W), ((1 + gated) * inner, W), (W, inner)
    pairs = layer.qkv, layer.out, layer.up, layer.down
    return all(
        weight.shape == shape and (bias is None or bias.shape == shape[:1])
        for (weight, bias), shape in zip(pairs, shapes, strict=True)
    ) and all(p is None or p.shape == (W,) for p in (*layer.attention_norm, *layer.mlp_norm))


def _pack(layers: Sequence[LayerParameters], stack: Stack, dtype: torch.dtype, int8: bool) -> Any:
    """The engine's own form of the layers, an `_C.Stack`, with products in `dtype`."""
    first, _ = layers[0].out
    W = first.shape[0]
    packs = _native.C.Stack(
        W, stack.heads, stack.pre_norm, stack.gated, ACTIVATIONS[stack.activation], stack.eps,
        DTYPES[first.dtype],
    )  # fmt: skip
    options = {"int8": int8, "dtype": dtype}
    tables: dict[int, int] = {}
    for layer in layers:
        order = PLAIN if layer.rope is None else HALVES_OF_HEADS
        pair = (0, 0) if layer.rope is None else (W // stack.heads, 2 * W)
        weights = (
            packed(*layer.qkv, order, *pair, **options),
            packed(*layer.out, **options),
            packed(*layer.up, HALVES_OF_ALL if stack.gated else PLAIN, **options),
            packed(*layer.down, dtype=dtype),
        )
        places = [address(x) for x in (*layer.qkv, *layer.out, *layer.up, *layer.down)]
        norms = [address(x) for x in (*layer.attention_norm, *layer.mlp_norm)]
        half = -1 if layer.half is None else layer.half
        packs.add_layer(*weights, places, norms, _table(layer, tables), half)
    return packs


def _prepared(
    x_TW: Tensor, layers: Sequence[LayerParameters], stack: Stack, int8: bool
) -> _Prepared | None:
    """Packed layers in the state that the parameters are in; None where the engine cannot serve."""
    autocast = _native.autocast_dtype()
    if not _native.serves() or (int8 and autocast is not None):
        return None
    parameters = [p for layer in layers for p in layer.parameters()]
    if needs_gradient(x_TW, *parameters):
        return None
    state = _state(x_TW, layers, parameters, stack)
    if state is None:
        return None
    found = _PREPARED.setdefault(layers[0].qkv[0], {})
    prepared = found.get(int8)
    if prepared is not None and prepared.state == state and prepared.stack.fits():
        return prepared
    if not (usable(x_TW, *parameters) and all(p.is_contiguous() for p in parameters)):
        return None
    if not all(_shapes_fit(layer, x_TW.shape[1], stack.gated) for layer in layers):
        return None
    prepared = _Prepared(state, _pack(layers, stack, autocast or x_TW.dtype, int8), parameters)
    found[int8] = prepared
    return prepared


def run_layers(
    x_TW: Tensor,
    layers: Sequence[LayerParameters],
    stack: Stack,
    layout: Layout,
    cu: Tensor,
    int8: bool = False,
) -> Tensor | None:
    """Embedded tokens -> the last hidden state, `(T, W)` -> `(T, W)`; None where this call needs
    more than the engine does (a gradient, tensors of another dtype or kind). Under autocast
    products are in its dtype, and the residual stream stays in fp32.

    Args:
        cu: int32 `(B+1,)`: sequence b is rows `cu[b]` to `cu[b+1]`.
        int8: products with one scale for each token and each output, except in the second
            feed-forward matrix, whose inputs have outliers in gated models (arXiv 2405.14428).
    """
    prepared = _prepared(x_TW, layers, stack, int8)
    if prepared is None:
        return None
    dtype, stream = x_TW.dtype, layers[0].out[0].dtype
    x_TW, cu = x_TW.to(stream).contiguous(), cu.contiguous()
    out_TW = torch.empty_like(x_TW)
    columns_T = layout.columns_T.contiguous() if layout.lengths != layout.spans else None
    tables = {id(layer.rope): layer.rope for layer in layers if layer.rope is not None}
    ropes = [(address(cos), address(sin)) for cos, sin in tables.values()]
    prepared.stack.run(
        x_TW.shape[0], address(x_TW), address(out_TW), address(cu), len(layout.lengths),
        address(columns_T), ropes, torch.get_num_threads(),
    )  # fmt: skip
    return out_TW.to(dtype)
