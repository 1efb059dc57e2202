"""What Triton compiles when an op is called, for any GPU, on a machine without one.

`recording(arch)` stands in for the driver: Triton takes its target from it, compiles each launch as
it would for real, and nothing runs. Ops are called with plain CPU tensors; what kernels would
have written is left undefined, so results mean nothing.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction, MockTensor

from encoder_fast.kernels import _launches, _triton

SMS = {80: 108, 86: 84, 90: 132, 100: 148, 120: 188}
"""Streaming multiprocessors of an A100, A10, H200, B200 and RTX PRO 6000."""


@dataclass(frozen=True)
class Launched:
    """One launch: what was compiled for it, and its grid."""

    kernel: str
    arch: int
    grid: tuple[int, ...]
    types: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    compiled: Any
    """Triton's compiled kernel: `asm` and `metadata`."""

    @property
    def variant(self) -> str:
        """Names what was compiled, without the grid."""
        warps, stages = self.compiled.metadata.num_warps, self.compiled.metadata.num_stages
        constants = " ".join(f"{name}={value}" for name, value in self.constants)
        return f"{self.kernel}({', '.join(self.types)}) {constants} warps={warps} stages={stages}"


class _Unaligned(MockTensor):
    """Stands for a tensor that does not begin at a multiple of 16 bytes."""

    @staticmethod
    def data_ptr() -> int:
        return 4


class _Driver:
    """Answers what Triton asks of a driver before a launch."""

    def __init__(self, arch: int):
        self.arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        # Triton caches by device: each architecture is one.
        return self.arch

    def get_current_stream(self, device: int) -> int:
        return 0


def _stand_in(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    aligned = x.storage_offset() * x.element_size() % 16 == 0
    return (MockTensor if aligned else _Unaligned)(x.dtype, list(x.shape))


def _type(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        return str(x.dtype).removeprefix("torch.")
    return "none" if x is None else type(x).__name__


def _recorder(arch: int, launches: list[Launched], run: Callable) -> Callable:
    def record(self, *args, grid, warmup, **named):
        names = [p.name for p in self.params]
        given = dict(zip(names, args, strict=False)) | {
            k: v for k, v in named.items() if k in names
        }
        stands = [_stand_in(x) for x in args]
        options = {name: _stand_in(x) for name, x in named.items()}
        compiled = run(self, *stands, grid=grid, warmup=True, **options)
        constant = {p.name for p in self.params if p.is_constexpr}
        launches.append(
            Launched(
                self.fn.__name__,
                arch,
                grid(given) if callable(grid) else tuple(grid),
                tuple(_type(given[name]) for name in names if name not in constant),
                tuple((name, given[name]) for name in names if name in constant),
                compiled,
            )
        )
        return compiled

    return record


@contextlib.contextmanager
def recording(arch: int) -> Iterator[list[Launched]]:
    """The launches made in the block, in order, compiled for compute capability `arch` / 10.

    Raises:
        RuntimeError: TRITON_INTERPRET is set: nothing would be compiled.
    """
    if triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set: kernels are not compiled in this process")
    launches: list[Launched] = []
    driver.set_active(_Driver(arch))
    patches = (
        mock.patch.object(JITFunction, "run", _recorder(arch, launches, JITFunction.run)),
        mock.patch.object(_launches, "arch", lambda device: f"sm_{arch}"),
        mock.patch.object(_triton, "multiprocessors", lambda device: SMS[arch]),
    )
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield launches
