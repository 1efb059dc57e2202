"""Launch numbers of the triton backend's attention: pure functions of device kind, dtype, shape.

A tile's rows are a power of two from 32 to 128; programs are counted on the grid's first axis, the
only one that goes beyond 65,535. Not measured: no GPU was at hand. Chosen so that compiled kernels
spill nothing and fit the 99 KB of shared memory of the smallest GPU (sm_86, sm_89, sm_120).
"""

from typing import NamedTuple

import torch

from encoder_fast.kernels._launch_table import TABLE

LOCAL = 64
"""Largest half-width of a window that is taken whole: three tiles of 64 keys around one of 64
queries."""
COARSE = 128
"""Rows of the tiles of the second map of a plan."""


class Launch(NamedTuple):
    """Tiles of one kernel. Forward and dQ walk over blocks of keys, dK and dV over queries."""

    rows: int
    """Of the tile that a program owns."""
    block: int
    """Rows of what it walks over."""
    warps: int
    stages: int

    @property
    def map_rows(self) -> int:
        """Rows of the tiles of the map that it uses: `LOCAL` or `COARSE`."""
        return max(self.rows, LOCAL)


def padded_width(D: int) -> int:
    """Columns of a tile: halves of a head padded to a power of two, as products need at least."""
    return max(16, 2 * _power_of_two((D + 1) // 2))


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def takes_whole_window(half: int | None, holes: bool, D: int, itemsize: int) -> bool:
    """Is this layer for the kernels of small windows?"""
    fits = padded_width(D) * itemsize <= 256
    return half is not None and half <= LOCAL and not holes and fits


def launch(kernel: str, arch: str, dtype: torch.dtype, D: int, drops: bool = False) -> Launch:
    """Of `kernel`: "forward", "dq", "dkv", or one of these with "local_" before it."""
    key = arch, str(dtype).removeprefix("torch."), padded_width(D), drops
    found = TABLE.get(f"triton_attention_{kernel}", {}).get(key)
    if found:
        return Launch(found["rows"], found["block"], found["warps"], found["stages"])
    row_bytes = padded_width(D) * dtype.itemsize
    narrow = dtype.itemsize == 2 and row_bytes <= 128
    # Four warps hold two tiles of 64 x 64 sums, not also dropout or a second gradient.
    warps = 4 if narrow and not drops and not kernel.endswith("dkv") else 8
    if kernel.startswith("local_"):
        return Launch(LOCAL, LOCAL, warps, 1)
    return (_forward if kernel == "forward" else _backward)(arch, dtype, row_bytes, warps)


def _forward(arch: str, dtype: torch.dtype, row_bytes: int, warps: int) -> Launch:
    if dtype.itemsize == 2 and row_bytes <= 128:
        return Launch(128, 64 if arch.startswith("sm_8") else 128, 8, 2)
    if dtype.itemsize == 2 and row_bytes <= 256:
        return Launch(128, 64, 8, 2)
    if row_bytes <= 512:
        return Launch(64, 32, 8, 2)
    return Launch(64, 16, 8, 1)


def _backward(arch: str, dtype: torch.dtype, row_bytes: int, warps: int) -> Launch:
    if dtype.itemsize == 2 and row_bytes <= 128:
        return Launch(64, 64, warps, 2)
    if dtype.itemsize == 2 and row_bytes <= 256:
        return Launch(64, 64, warps, 1)
    if row_bytes <= 256:
        return Launch(64, 32, warps, 2)
    if row_bytes <= 512:
        return Launch(64, 32, warps, 1)
    return Launch(32, 16, warps, 1)


def grid(tiles: int, run: Launch, H: int) -> tuple[int]:
    """Programs of a launch: each tile of the map, as often as it holds tiles of the launch, times
    the heads, which count fastest."""
    return (tiles * (run.map_rows // run.rows) * H,)
