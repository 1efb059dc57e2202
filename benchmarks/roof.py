"""The most that this machine reaches: what the fraction behind every claimed speed refers to.

Measured, not read from a data sheet: the best of many short runs, because machines of this kind
lose speed for seconds at a time and never gain any. `control_s` is the control's time in those
runs; a time taken in a slower phase is compared with the roof of that phase (see `in_phase`).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from encoder_fast.benchmarks.timing import Clock, Control
from encoder_fast.kernels import linear
from encoder_fast.kernels._cost import Cost

MATMULS = {
    "cpu": ((512, 768, 2304), (1024, 1024, 1024), (2048, 768, 3072)),
    "cuda": ((8192, 8192, 8192), (32768, 768, 2304), (16384, 4096, 4096)),
}
"""(T, W, O) of the products that are tried."""
SHORTEST_RUN_S = 0.002


@dataclass(frozen=True)
class Roof:
    """Best matrix product and best stream on one device in one dtype.

    The stream is read from and written to main memory. An op whose tensors stay in a cache may pass
    it, so its fraction may exceed 1.
    """

    dtype: str
    device: str
    flops_per_s: float
    bytes_per_s: float
    control_s: float

    def seconds(self, cost: Cost) -> float:
        """The least time for `cost`: products and memory traffic can overlap."""
        return max(cost.flops / self.flops_per_s, cost.bytes / self.bytes_per_s)

    def fraction(self, cost: Cost, seconds: float) -> float:
        """1 for an op that takes no longer than it must."""
        return self.seconds(cost) / seconds

    def in_phase(self, control_s: float) -> "Roof":
        """The roof in a phase of the machine in which the control takes `control_s` seconds."""
        slower = control_s / self.control_s
        rates = self.flops_per_s / slower, self.bytes_per_s / slower
        return replace(self, flops_per_s=rates[0], bytes_per_s=rates[1], control_s=control_s)

    def record(self) -> dict:
        """The "roof" record of a report."""
        return {"kind": "roof", **vars(self)}


def beyond_the_caches(device: str) -> int:
    """Bytes of a buffer that no cache holds: four times the last one, where its size is known."""
    if torch.device(device).type != "cpu":
        return 2**30
    name = "SC_LEVEL3_CACHE_SIZE"
    known = os.sysconf(name) if name in getattr(os, "sysconf_names", ()) else 0
    return max(2**27, 4 * known)


def measure(
    dtype: torch.dtype,
    device: str = "cpu",
    budget_s: float = 1.0,
    stream_bytes: int | None = None,
    control: Control | None = None,
) -> Roof:
    """Measure for about `budget_s` seconds, at least two runs of each kind.

    Args:
        stream_bytes: size of each of the three buffers; None is `beyond_the_caches`.
        control: None makes one.
    """
    control = control or Control(dtype, device)
    clock = Clock(device)
    with torch.inference_mode():
        products = _products(dtype, device)
        flops_per_s, before = _best(products, clock, control, budget_s / 2)
        products.clear()
        streams = _streams(device, stream_bytes or beyond_the_caches(device))
        bytes_per_s, after = _best(streams, clock, control, budget_s / 2)
    name = str(dtype).removeprefix("torch.")
    return Roof(name, device, flops_per_s, bytes_per_s, min(before, after))


def _products(dtype: torch.dtype, device: str) -> list[tuple[float, Callable]]:
    """(flops, call): each product as a plain one, and as the torch backend's linear op, which keeps
    its weight packed where it can.
    """
    calls = []
    for T, W, rows in MATMULS["cuda" if torch.device(device).type == "cuda" else "cpu"]:
        with torch.inference_mode(False):
            x_TW = torch.randn(T, W, device=device).to(dtype)
            weight_OW = torch.randn(rows, W, device=device).to(dtype)
        flops = linear.cost(T, W, rows, dtype.itemsize).flops
        calls.append((flops, lambda x=x_TW, w=weight_OW: x @ w.mT))
        calls.append((flops, lambda x=x_TW, w=weight_OW: linear.torch_linear(x, w, None)))
    return calls


def _streams(device: str, size: int) -> list[tuple[float, Callable]]:
    """(bytes, call): copy, and triad a = b + 3 c."""
    a, b, c = (torch.full((size // 4,), float(i), device=device) for i in range(3))
    moved = a.numel() * 4
    return [
        (2 * moved, lambda: a.copy_(b)),
        (3 * moved, lambda: torch.add(b, c, alpha=3.0, out=a)),
    ]


def _best(calls: list, clock: Clock, control: Control, budget_s: float) -> tuple[float, float]:
    """(best rate, best control) of rounds over `calls`, the first of which warms up."""
    repeats = []
    for _, call in calls:
        clock.seconds(call)
        repeats.append(max(1, round(SHORTEST_RUN_S / max(clock.seconds(call), 1e-7))))
    best, best_control, end = 0.0, control.seconds(), clock.now() + budget_s
    for round_ in range(10**6):
        if round_ >= 2 and clock.now() >= end:
            break
        for (amount, call), count in zip(calls, repeats, strict=True):
            best = max(best, amount * count / clock.seconds(call, count))
        best_control = min(best_control, control.seconds())
    return best, best_control
