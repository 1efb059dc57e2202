"""Launch numbers of the kernels: the measured table, and the rule where nothing was measured.

A launch changes how fast an op is, never what it computes. Looking one up is a dictionary read;
nothing is measured at import or in a call. `encoder_fast.benchmarks.tune` writes the table.
"""

from functools import cache
from typing import NamedTuple

import torch

from encoder_fast.kernels._launch_table import TABLE


class Window(NamedTuple):
    """How the torch backend attends a local layer."""

    queries: int
    """Queries per block; a block sees `queries + 2 * half` keys."""
    dense: int
    """Longest sequence that is attended whole, under a band mask; not below `queries`."""


@cache
def arch(device: torch.device) -> str:
    """The table's name of a kind of device: "cpu", "sm_90" for an H200, else the device's type."""
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"{'gfx' if torch.version.hip else 'sm'}_{major}{minor}"


def window_rule(half: int) -> Window:
    """Where nothing was measured: 64 queries keep the window of ModernBERT (half 64) at 192 keys,
    and a sequence that one such window covers is attended whole.

    2026-11-30, SDPA bf16, 12 heads, T = 2048: 13.6 ms with 64, 15.9 with 128, 21.1 with 256.
    """
    queries = min(256, max(64, half))
    return Window(queries, queries + 2 * half)


_WINDOWS = {key: Window(row["queries"], row["dense"]) for key, row in TABLE["window"].items()}


def window(kind: str, dtype: torch.dtype, half: int) -> Window:
    """Launch of a local layer of half-width `half` on a device of that `arch`."""
    return _WINDOWS.get((kind, str(dtype).removeprefix("torch."), half)) or window_rule(half)
