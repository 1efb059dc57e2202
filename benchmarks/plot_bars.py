"""Horizontal bars with their names above them: names of any length fit a phone."""

from collections.abc import Callable
from dataclasses import dataclass

from encoder_fast.benchmarks import plot_style
from encoder_fast.benchmarks.plot_style import GRID, TEXT, clipped

PITCH_PT, AXIS_PT = 25, 20
CHARACTERS = 50
"""In a row: its name and its value."""


@dataclass(frozen=True)
class Bar:
    """One row: `shown` is printed at its right end; `behind` is a longer, grey bar."""

    name: str
    value: float
    shown: str
    colour: str
    strong: bool = False
    spread: tuple[float | None, float | None] = (None, None)
    behind: float = 0.0


def drawn(bars: list[Bar], mark: float | None = None, percent: bool = False) -> Callable:
    """Function: key, text for those who cannot see it -> SVG.

    Args:
        mark: value with a vertical line through all rows.
        percent: values are parts of 1.
    """
    return lambda key, about: plot_style.svg(_figure(bars, mark, percent), key, about)


def _figure(bars: list[Bar], mark: float | None, percent: bool):
    figure = plot_style.canvas(len(bars) * PITCH_PT + AXIS_PT + 4)
    axes = plot_style.axes(figure, 6, AXIS_PT, 12, 4)
    ends = [x for bar in bars for x in (bar.value, bar.behind, bar.spread[1]) if x]
    axes.set_xlim(0, max([*ends, mark or 0]) * (1.0 if percent else 1.04))
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    if mark is not None:
        axes.axvline(mark, color=TEXT, linewidth=1, zorder=3)
    for row, bar in enumerate(bars):
        _row(axes, row, bar)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="x", length=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}" if percent else plot_style.short(x))
    axes.locator_params(axis="x", nbins=5)
    return figure


def _row(axes, row: int, bar: Bar) -> None:
    weight = "bold" if bar.strong else "normal"
    name = clipped(bar.name, max(12, CHARACTERS - len(bar.shown)))
    right = axes.get_yaxis_transform()
    # The vertical line must not cross what is written.
    plate = {"boxstyle": "square,pad=0.15", "facecolor": plot_style.PAPER, "edgecolor": "none"}
    common = {"y": row - 0.2, "va": "center", "weight": weight, "zorder": 4, "bbox": plate}
    axes.text(x=0.0, s=name, transform=right, **common)
    axes.text(x=1.0, s=bar.shown, transform=right, ha="right", **common)
    at = row + 0.24
    if bar.behind:
        axes.barh(at, bar.behind, 0.3, color=GRID, zorder=2)
    axes.barh(at, bar.value, 0.3, color=bar.colour, zorder=2)
    low, high = bar.spread
    if low is not None and high is not None:
        axes.plot([low, high], [at, at], color=plot_style.PAPER, linewidth=3.4, zorder=5)
        axes.plot([low, high], [at, at], color=TEXT, linewidth=1.3, zorder=6)
