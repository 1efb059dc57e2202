"""What an op must do at least: the numbers that a measured time is compared with."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Floating-point operations (a multiply-add is two), and bytes read and written once each."""

    flops: int
    bytes: int

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes)
