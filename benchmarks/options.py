"""What a suite is asked for, and how it answers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Emit = Callable[[dict], None]
"""Takes one record (records.py lists the kinds) as soon as it is measured."""
Tell = Callable[[str], None]
"""Takes a line that says what is being done."""


@dataclass(frozen=True)
class Options:
    """One suite's work. Empty `contenders` means all that are not slow.

    `dtypes` holds at least one float dtype and may hold int8. `seconds` is the racing time of one
    cell, `rounds` its least number of rounds. `scratch` is a folder for this run alone.
    """

    models: tuple[str, ...]
    workloads: tuple[str, ...]
    contenders: tuple[str, ...]
    dtypes: tuple[str, ...]
    device: str
    threads: int
    seconds: float
    rounds: int
    memory: bool
    quick: bool
    scratch: Path
