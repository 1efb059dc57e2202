"""What a measured ratio rests on: the clock, the control, the rounds that count."""

import time

import pytest
import torch

from encoder_fast.benchmarks import timing
from encoder_fast.benchmarks.timing import SHORTEST_BLOCK_S, Block, Clock, Control, Race, race


class FakeTime:
    """A clock that moves only when told to."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class FakeEngine:
    """Takes `seconds_each` of fake time a call; raises on call number `fails_at`."""

    def __init__(self, fake: FakeTime, seconds_each: float, fails_at: int | None = None):
        self.fake, self.each, self.fails_at, self.calls = fake, seconds_each, fails_at, 0

    def seconds(self, repeats: int = 1) -> float:
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")
        self.fake.now_s += repeats * self.each
        return repeats * self.each


class FakeControl:
    """Takes the seconds in `script`, then its last value for ever."""

    flops = 1

    def __init__(self, *script: float):
        self.script = list(script)

    def seconds(self) -> float:
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


def test_the_clock_waits_for_the_device(monkeypatch):
    """An engine that only hands work to a device is not fast: the wait belongs to its time."""
    fake = FakeTime()
    clock = Clock("cuda", fake)
    pending = []

    def wait(self):
        fake.now_s += sum(pending)
        pending.clear()

    monkeypatch.setattr(Clock, "wait", wait)
    pending.append(5.0)
    assert clock.seconds(lambda: pending.append(0.25), repeats=4) == 1.0


def test_a_short_call_is_timed_in_blocks():
    fake = FakeTime()
    engine = FakeEngine(fake, SHORTEST_BLOCK_S / 10)
    result = race({"a": engine}, FakeControl(1.0), 0, 3, clock=Clock(now=fake))
    assert engine.calls == 4
    assert fake.now_s == pytest.approx(SHORTEST_BLOCK_S * 3.1)
    assert [block.seconds for block in result.blocks["a"]] == pytest.approx([engine.each] * 3)


def test_a_long_call_is_a_block_from_the_first_one_on():
    """Engines come warmed up; a call of seconds that only counts calls would cost a round."""
    fake = FakeTime()
    engine = FakeEngine(fake, 2 * SHORTEST_BLOCK_S)
    result = race({"a": engine}, FakeControl(1.0), 0, 3, clock=Clock(now=fake))
    assert engine.calls == 3 and len(result.blocks["a"]) == 3


def test_ratios_come_from_rounds_whose_controls_agree():
    steady, slow = (1.0, 1.1), (1.0, 1.4)
    result = Race(
        {
            "ours": [Block(1, steady), Block(2, steady), Block(1, slow), None],
            "theirs": [Block(3, steady), Block(3, slow), Block(9, steady), Block(9, steady)],
        }
    )
    assert result.steady("ours", "theirs") == [0]
    assert result.ratios("ours", "theirs") == [3.0]
    assert result.median_seconds("ours", "theirs") == 1
    assert result.ratios("theirs", "theirs") == [1.0, 1.0, 1.0]


def test_a_call_is_measured_in_the_controls_of_its_own_seconds():
    """Twice as slow a machine is the same part of its roof, whichever rounds were steady."""
    blocks = [Block(10, (1, 1)), Block(20, (2, 2)), Block(30, (2, 4))]
    assert Race({"ours": blocks}).in_controls("ours") == 10


def test_without_a_steady_round_there_is_a_time_but_no_ratio():
    result = Race({"ours": [Block(2, (1, 9))], "theirs": [Block(3, (1, 9))]})
    assert result.ratios("ours", "theirs") == []
    assert result.median_seconds("ours", "theirs") == 2


def test_contenders_take_turns_in_both_orders():
    fake, told = FakeTime(), []
    ready = {name: FakeEngine(fake, 1.0) for name in "abc"}
    race(ready, FakeControl(1.0), 0, 2, told.append, Clock(now=fake))
    assert told == [f"round {n}: {x}" for n, x in zip("111222", "abccba", strict=True)]


def test_a_contender_that_fails_loses_its_own_cell_only():
    fake = FakeTime()
    ready = {"good": FakeEngine(fake, 1.0), "bad": FakeEngine(fake, 1.0, fails_at=2)}
    result = race(ready, FakeControl(1.0), 0, 4, clock=Clock(now=fake))
    assert [block is None for block in result.blocks["bad"]] == [False, True, True, True]
    assert None not in result.blocks["good"]
    assert result.failures == {"bad": result.failures["bad"]}
    assert result.failures["bad"].startswith("out of memory")
    assert len(result.ratios("bad", "good")) == 1


def test_a_race_of_failures_ends():
    fake = FakeTime()
    result = race({"a": FakeEngine(fake, 1.0, fails_at=1)}, FakeControl(1.0), 9, 5)
    assert len(result.blocks["a"]) == 1 and "a" in result.failures


def test_rounds_go_on_until_the_budget_is_used():
    fake = FakeTime()
    ready = {"a": FakeEngine(fake, 1.0)}
    assert len(race(ready, FakeControl(1.0), 5.5, 1, clock=Clock(now=fake)).blocks["a"]) == 6


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError(), "out of memory"),
        (RuntimeError("CUDA out of memory. Tried 2 GiB"), "out of memory (CUDA out of memory."),
        (ValueError("a\n  b"), "ValueError: a b"),
    ],
)
def test_reasons_are_one_line(error, text):
    assert timing.reason(error).startswith(text) and "\n" not in timing.reason(error)


class Work:
    """A few products of small matrices: about a millisecond."""

    def __init__(self):
        self.x = torch.randn(192, 192)
        self.clock = Clock()

    def run(self):
        for _ in range(8):
            self.x @ self.x

    def seconds(self, repeats: int = 1) -> float:
        return self.clock.seconds(self.run, repeats)


def test_the_same_contender_twice_is_a_draw():
    """The median over steady rounds is within 5 % of 1; a busy machine gets more rounds, never a
    wider limit.
    """
    control = Control(torch.float32)
    ratios, middle = [], float("nan")
    for _ in range(8):
        result = race({"a": Work(), "b": Work()}, control, 1.0, 20)
        ratios = sorted(ratios + result.ratios("a", "b"))
        if len(ratios) >= 15:
            middle = timing.quartiles(ratios)[1]
            if abs(middle - 1) <= 0.05:
                return
    pytest.fail(f"median ratio {middle} of {len(ratios)} steady rounds")


def test_the_harness_costs_less_than_a_percent_of_the_shortest_block():
    """Per block: two reads of the clock and the waits around an empty call."""
    clock = Clock()
    costs = []
    for _ in range(200):
        start = time.perf_counter()
        inside = clock.seconds(lambda: None, 1)
        costs.append(max(inside, time.perf_counter() - start))
    assert sorted(costs)[100] < 0.01 * SHORTEST_BLOCK_S
