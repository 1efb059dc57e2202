"""How a speed is measured here.

Machines of this kind change speed by up to 4x for seconds at a time, without telling the guest. So
contenders take turns within each round; a fixed matrix product, the control, runs before and after
every timed block; a ratio counts only where the controls around both its blocks agree within 1.3x;
and what is reported is the median over rounds of the *ratio* within a round. Absolute times are
printed beside it, for orientation.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

STEADY = 1.3
"""Largest ratio between the controls around the two blocks of a ratio that counts."""
SHORTEST_BLOCK_S = 0.02
"""A block of a short call holds as many calls as fill this: 1 % of it is 1,000 times what reading
the clock costs."""
MOST_ROUNDS = 200


@dataclass(frozen=True)
class Clock:
    """Wall time that includes the device's work."""

    device: str = "cpu"
    now: Callable[[], float] = time.perf_counter

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if torch.device(self.device).type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, call: Callable[[], object], repeats: int = 1) -> float:
        """Of `repeats` calls."""
        self.wait()
        start = self.now()
        for _ in range(repeats):
            call()
        self.wait()
        return self.now() - start


class Control:
    """A fixed matrix product in the dtype of the race: 2 to 8 ms on two cores."""

    def __init__(self, dtype: torch.dtype, device: str = "cpu"):
        rows = 512 if torch.device(device).type == "cpu" else 32768
        generator = torch.Generator().manual_seed(0)
        self.a = torch.randn(rows, 768, generator=generator).to(device, dtype)
        self.b = torch.randn(768, 2304, generator=generator).to(device, dtype)
        self.flops = 2 * rows * 768 * 2304
        self.clock = Clock(device)

    def seconds(self) -> float:
        """Fastest of four runs."""
        return min(self.clock.seconds(lambda: self.a @ self.b) for _ in range(4))


@dataclass(frozen=True)
class Block:
    """Seconds of one call, and the controls before and after the block that it was timed in."""

    seconds: float
    controls: tuple[float, float]


@dataclass
class Race:
    """Blocks by contender: one a round, or None from the round on in which it failed."""

    blocks: dict[str, list[Block | None]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def steady(self, name: str, baseline: str) -> list[int]:
        """Rounds in which the controls around both blocks agree."""
        pairs = zip(self.blocks[name], self.blocks[baseline], strict=True)
        found = []
        for i, (ours, theirs) in enumerate(pairs):
            if ours is None or theirs is None:
                continue
            controls = ours.controls + theirs.controls
            if max(controls) <= STEADY * min(controls):
                found.append(i)
        return found

    def ratios(self, name: str, baseline: str) -> list[float]:
        """How many times faster than `baseline`, one number a steady round, sorted."""
        ours, theirs = self.blocks[name], self.blocks[baseline]
        return sorted(theirs[i].seconds / ours[i].seconds for i in self.steady(name, baseline))

    def median_seconds(self, name: str, baseline: str) -> float:
        """Over rounds steady against `baseline`, or over all if there is none."""
        done = [i for i, block in enumerate(self.blocks[name]) if block is not None]
        return statistics.median(
            self.blocks[name][i].seconds for i in self.steady(name, baseline) or done
        )

    def in_controls(self, name: str) -> float:
        """Median length of a call of `name`, in controls of the same block: a block in a slow phase
        of the machine has slow controls.
        """
        return statistics.median(b.seconds * 2 / sum(b.controls) for b in self.blocks[name] if b)

    def control_seconds(self, name: str) -> float:
        """Median control around the blocks of `name`: the speed of the machine in those seconds."""
        return statistics.median(c for b in self.blocks[name] if b for c in b.controls)


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """(lower quartile, median, upper quartile) of sorted values."""
    return values[len(values) // 4], statistics.median(values), values[-1 - len(values) // 4]


def race(
    ready: dict,
    control: Control,
    budget_s: float,
    least: int,
    tell: Callable[[str], None] = lambda text: None,
    clock: Clock | None = None,
) -> Race:
    """Interleaved rounds until `budget_s` seconds are used and `least` rounds done.

    Args:
        ready: name -> an object with `seconds(repeats)`, warmed up.
        tell: gets "round 3: name" before each block.

    A contender that raises is out from then on; its error is in `Race.failures`.
    """
    result = Race({name: [] for name in ready})
    clock = clock or Clock()
    end, rounds = clock.now() + budget_s, 0
    repeats = {}
    while rounds < least or (clock.now() < end and rounds < MOST_ROUNDS):
        # Every other round in the opposite order: what comes first may profit or suffer.
        order = list(ready) if rounds % 2 == 0 else list(ready)[::-1]
        before = control.seconds()
        for name in order:
            block = None
            if name not in result.failures:
                tell(f"round {rounds + 1}: {name}")
                block, before = _block(ready[name], name, repeats, control, before, result)
            result.blocks[name].append(block)
        rounds += 1
        if len(result.failures) == len(ready):
            break
    return result


def _block(engine, name, repeats, control, before, result) -> tuple[Block | None, float]:
    """One timed block and the control after it. The first call of an engine says how many calls
    fill a block; a call that fills one by itself, of an engine that is warmed up, is one.
    """
    try:
        seconds = None
        if name not in repeats:
            seconds = engine.seconds(1)
            repeats[name] = max(1, math.ceil(SHORTEST_BLOCK_S / max(seconds, 1e-7)))
        if seconds is None or repeats[name] > 1:
            before = before if seconds is None else control.seconds()
            seconds = engine.seconds(repeats[name]) / repeats[name]
    except Exception as error:
        result.failures[name] = reason(error)
        return None, control.seconds()
    after = control.seconds()
    return Block(seconds, (before, after)), after


_OUT_OF_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "bad_alloc")


def reason(error: BaseException) -> str:
    """One line for a report."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or any(sign in text for sign in _OUT_OF_MEMORY):
        return f"out of memory ({text[:200]})" if text else "out of memory"
    return f"{type(error).__name__}: {text[:300]}"
