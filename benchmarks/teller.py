"""What the harness is doing right now: one line on a terminal, a line a step elsewhere."""

import sys
import time

from encoder_fast import settings


class Teller:
    """Call it with a text. On a terminal the line is rewritten; in a log a new line comes at most
    every `every_s` seconds, so that a run of minutes is neither silent nor flooded.
    """

    def __init__(self, every_s: float = 5.0):
        self.every_s, self.last = every_s, -every_s
        self.live = sys.stderr.isatty()
        self.shown = settings.progress() is not False

    def __enter__(self) -> "Teller":
        self.started = time.monotonic()
        return self

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if not self.shown or (not self.live and now - self.last < self.every_s):
            return
        self.last = now
        line = f"{now - self.started:6.0f} s  {text}"
        if self.live:
            print(f"\r\x1b[2K{line[:100]}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def __exit__(self, *error) -> None:
        if self.live and self.shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
