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


def takes_whole_window(
    half: int | None, holes: bool, dropout_p: float, dtype: torch.dtype, D: int
) -> bool:
    """Is this layer for the kernels of small windows? What they hold of wider heads, fp32 or
    dropout's numbers would not fit in registers.
    """
    fits = dtype.itemsize == 2 and padded_width(D) <= 64
    return half is not None and half <= LOCAL and not holes and not dropout_p and fits


def launch(kernel: str, arch: str, dtype: torch.dtype, D: int, heavy: bool = False) -> Launch:
    """Of `kernel`: "forward", "dq", "dkv", or one of these with "local_" before it. `heavy`: with a
    window or dropout, whose masks take registers.
    """
    width = padded_width(D)
    key = arch, str(dtype).removeprefix("torch."), width, heavy
    found = TABLE.get(f"triton_attention_{kernel}", {}).get(key)
    if found:
        return Launch(found["rows"], found["block"], found["warps"], found["stages"])
    if kernel.startswith("local_"):
        return Launch(LOCAL, LOCAL, 4, 1)
    if dtype.itemsize == 2:
        of = _forward_16 if kernel == "forward" else _backward_16
        return of(kernel, arch, width, heavy)
    if width <= 64:
        return Launch(64, 32, 8, 2)
    if width <= 128:
        return Launch(64, 32, 8, 2 if kernel == "forward" else 1)
    return Launch(64 if kernel == "forward" else 32, 16, 8, 1)


def _forward_16(kernel: str, arch: str, width: int, heavy: bool) -> Launch:
    if width <= 64:
        return Launch(128, 64 if heavy or arch.startswith("sm_8") else 128, 8, 2)
    return Launch(128, 64, 8, 2) if width <= 128 else Launch(64, 32, 8, 2)


def _backward_16(kernel: str, arch: str, width: int, heavy: bool) -> Launch:
    """Four warps to 64 rows: each holds 16 whole rows, and more would hold the same ones twice."""
    if width <= 64:
        return Launch(64, 32 if heavy else 64, 4, 2)
    if width <= 128:
        return Launch(64, 32 if kernel == "dq" else 16, 4, 2)
    return Launch(32, 32, 8, 1)


def grid(tiles: int, run: Launch, H: int) -> tuple[int]:
    """Programs of a launch: each tile of the map, as often as it holds tiles of the launch, times
    the heads, which count fastest."""
    return (tiles * (run.map_rows // run.rows) * H,)
