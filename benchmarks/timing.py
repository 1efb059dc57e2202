"""How a speed is measured here.

Machines of this kind change speed by up to 4x for seconds at a time, without telling the guest. So
contenders take turns within each round; a fixed matrix product, the control, runs before and after
every timed call; a round in which the controls differ by more than 1.3x is tagged and left out; and
what is reported is the median over rounds of the *ratio* within a round. Absolute times are printed
beside it, for orientation.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

STEADY = 1.3
"""Largest ratio between the controls of a round that counts."""
CONTROL_FLOPS = 2 * 512 * 768 * 2304


class Control:
    """A product of the model's own shape and dtype; about 2 to 8 ms."""

    def __init__(self, dtype: torch.dtype):
        generator = torch.Generator().manual_seed(0)
        self.a = torch.randn(512, 768, generator=generator).to(dtype)
        self.b = torch.randn(768, 2304, generator=generator).to(dtype)

    def seconds(self) -> float:
        """Fastest of four runs."""
        return min(elapsed(lambda: self.a @ self.b) for _ in range(4))


def elapsed(call: Callable[[], object]) -> float:
    """Wall seconds of one call (CPU: calls return when done)."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@dataclass
class Race:
    """Seconds by contender, one entry a round, and each round's controls."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    controls: list[list[float]] = field(default_factory=list)

    def steady(self) -> list[int]:
        """Rounds whose controls agree."""
        return [i for i, c in enumerate(self.controls) if max(c) <= STEADY * min(c)]

    def ratios(self, name: str, baseline: str) -> list[float]:
        """How many times faster than `baseline`, one number a steady round, sorted."""
        ours, theirs = self.seconds[name], self.seconds[baseline]
        return sorted(theirs[i] / ours[i] for i in self.steady())

    def median_seconds(self, name: str) -> float:
        """Over steady rounds, or over all if there is none."""
        rounds = self.steady() or range(len(self.controls))
        return statistics.median(self.seconds[name][i] for i in rounds)


def race(
    calls: dict[str, Callable[[], object]], control: Control, budget_s: float, least: int
) -> Race:
    """Interleaved rounds until `budget_s` seconds are used and `least` rounds done (at most
    200).
    """
    result = Race({name: [] for name in calls})
    end = time.perf_counter() + budget_s
    while len(result.controls) < least or (
        time.perf_counter() < end and len(result.controls) < 200
    ):
        controls = [control.seconds()]
        # Every other round in the opposite order: what comes first may profit or suffer.
        order = list(calls) if len(result.controls) % 2 == 0 else list(calls)[::-1]
        for name in order:
            result.seconds[name].append(elapsed(calls[name]))
            controls.append(control.seconds())
        result.controls.append(controls)
    return result
