"""Triton's interpreter with bfloat16 as a GPU has it.

The interpreter keeps bfloat16 as the uint16 of its bits. It multiplies these as whole numbers
(triton-lang/triton#11584: `tl.dot` is wrong by 1e10) and truncates fp32 where a GPU rounds to
nearest even. Here bfloat16 is widened to fp32 for arithmetic and rounded as hardware does.
"""

from collections.abc import Callable

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

Builder = interpreter.InterpreterBuilder
Handle = interpreter.TensorHandle
CASTS = ("fp_ext", "fp_trunc", "si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui")


def is_bf16(x) -> bool:
    return isinstance(x, Handle) and x.dtype.scalar == tl.bfloat16


def widened(bits: np.ndarray) -> np.ndarray:
    """uint16 patterns -> float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(x: np.ndarray) -> np.ndarray:
    """float32 -> uint16 patterns, to nearest even."""
    x = np.asarray(x, np.float32)
    bits = np.ascontiguousarray(x).view(np.uint32)
    nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), nearest)


def _numbers(x: Handle) -> np.ndarray:
    return widened(x.data) if is_bf16(x) else x.data


def _handle(numbers: np.ndarray, like: Handle) -> Handle:
    """Numbers as a handle of the type of `like`."""
    kind = like.dtype.scalar
    return Handle(
        rounded(numbers) if kind == tl.bfloat16 else numbers.astype(like.data.dtype), kind
    )


def _arithmetic(original: Callable) -> Callable:
    def operation(self, *handles):
        *arguments, op = handles
        if not any(map(is_bf16, arguments)):
            return original(self, *handles)
        result = op(*(_numbers(x) for x in arguments))
        return Handle(result, tl.int1) if result.dtype == bool else _handle(result, arguments[-1])

    return operation


def _cast(original: Callable) -> Callable:
    def cast(self, source, target, *rest):
        kinds = source.dtype.scalar, target.scalar
        if tl.bfloat16 not in kinds or kinds[0] == kinds[1]:
            return original(self, source, target, *rest)
        numbers = _numbers(source)
        if kinds[1] == tl.bfloat16:
            return Handle(rounded(numbers.astype(np.float32)), tl.bfloat16)
        return original(self, Handle(numbers, tl.float32), target, *rest)

    return cast


def _fma(self, x, y, z):
    # One rounding, as the hardware's fused multiply-add.
    return _handle(_numbers(x).astype(np.float64) * _numbers(y) + _numbers(z), z)


def _dot(original: Callable) -> Callable:
    def dot(self, a, b, c, *rest):
        if not (is_bf16(a) or is_bf16(b)):
            if a.data.dtype == np.float16:
                wide = a.data.astype(np.float32) @ b.data.astype(np.float32)
                return _handle(wide + c.data.astype(np.float32), c)
            return original(self, a, b, c, *rest)
        return _handle(_numbers(a) @ _numbers(b) + _numbers(c), c)

    return dot


def install() -> None:
    """Mend the interpreter of this process."""
    Builder.binary_op = _arithmetic(Builder.binary_op)
    Builder.unary_op = _arithmetic(Builder.unary_op)
    Builder.create_fma = _fma
    Builder.create_dot = _dot(Builder.create_dot)
    Builder.cast_impl = _cast(Builder.cast_impl)
    Builder.create_fp_to_fp = _cast(Builder.create_fp_to_fp)
    for name in CASTS:
        setattr(Builder, f"create_{name}", lambda self, x, kind: self.cast_impl(x, kind))
