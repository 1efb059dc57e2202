"""A progress bar that appears only when somebody is watching and the work is long."""

import time

from encoder_fast import settings

# Shorter work is over before a bar could be read.
DELAY_SECONDS = 1.5


class Progress:
    """Context manager with `advance(count)`: a rich bar on stderr, or nothing.

    show=None   a bar once the work has lasted `DELAY_SECONDS`
    show=True   a bar from the start
    show=False  never
    Whatever `show` says there is no bar where stderr is not a terminal (or a notebook).
    """

    def __init__(self, total: int, label: str, show: bool | None = None):
        show = settings.progress() if show is None else show
        self.total, self.label = total, label
        if not isinstance(show, bool | None):
            raise TypeError(f"progress must be True, False or None, got {show!r}")
        self.delay = {None: DELAY_SECONDS, True: 0.0, False: None}[show]
        self.bar = self.task = None
        self.done = 0

    def __enter__(self):
        self.started = time.monotonic()
        self.advance(0)
        return self

    def advance(self, count: int) -> None:
        """`count` more units of work are done."""
        self.done += count
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done)
        elif self.delay is not None and time.monotonic() - self.started >= self.delay:
            self._open()

    def _open(self) -> None:
        self.delay = None
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress
        except ImportError:
            return
        console = Console(stderr=True)
        if not (console.is_terminal or console.is_jupyter):
            return
        text = TextColumn("{task.description}")
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = RichProgress(*columns, console=console, transient=True)
        self.bar.start()
        self.task = self.bar.add_task(self.label, total=self.total, completed=self.done)

    def __exit__(self, *error):
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
