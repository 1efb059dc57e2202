"""Pieces that several Triton kernels share: activations, and random numbers by position."""

import triton
import triton.language as tl

SQRT_HALF = tl.constexpr(0.7071067811865476)
PDF_AT_0 = tl.constexpr(0.3989422804014327)
TANH_SCALE = tl.constexpr(0.7978845608028654)
TANH_CUBE = tl.constexpr(0.044715)


@triton.jit
def tanh(x):
    """Odd, and without overflow; libdevice's is not in the interpreter."""
    e = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -size, size)


@triton.jit
def sigmoid(x):
    """fp32; exp never overflows."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0, e / (1.0 + e), 1.0 / (1.0 + e))


@triton.jit
def activated(x, KIND: tl.constexpr):
    """An activation of fp32 numbers; KIND is a value of `_triton_mlp.KINDS`."""
    if KIND == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * SQRT_HALF))
    elif KIND == "gelu_tanh":
        return 0.5 * x * (1.0 + tanh((x + x * x * x * TANH_CUBE) * TANH_SCALE))
    elif KIND == "relu":
        # A comparison with NaN is false: NaN stays.
        return tl.where(x < 0, 0.0, x)
    elif KIND == "silu":
        return x * sigmoid(x)
    else:
        tl.static_assert(KIND == "tanh")
        return tanh(x)


@triton.jit
def slope_of(x, KIND: tl.constexpr):
    """The derivative of `activated`."""
    if KIND == "gelu":
        return 0.5 * (1.0 + tl.erf(x * SQRT_HALF)) + x * PDF_AT_0 * tl.exp(-0.5 * x * x)
    elif KIND == "gelu_tanh":
        t = tanh((x + x * x * x * TANH_CUBE) * TANH_SCALE)
        inner = (1.0 + x * x * 3.0 * TANH_CUBE) * TANH_SCALE
        # Where tanh is 1, its slope is 0 and must win over an inner slope that overflowed.
        curved = tl.where(tl.abs(t) == 1.0, 0.0, x * (1.0 - t * t) * inner)
        return 0.5 * (1.0 + t) + 0.5 * curved
    elif KIND == "relu":
        return tl.where(x > 0, 1.0, 0.0)
    elif KIND == "silu":
        s = sigmoid(x)
        return s * (1.0 + x * (1.0 - s))
    else:
        tl.static_assert(KIND == "tanh")
        t = tanh(x)
        return 1.0 - t * t


@triton.jit
def uniform(seed, place, row, part):
    """Numbers in [0, 1) with 24 bits that depend on whole-number coordinates and the seed only:
    Philox4x32-10 (Salmon et al. 2011) with the counter (place, row, part, 0), first word.
    """
    zero = place * 0 + row * 0 + part * 0
    bits, _, _, _ = tl.philox(seed, place + zero, row + zero, part + zero, zero)
    return (bits >> 8).to(tl.float32) * (1.0 / 16777216.0)
