"""Lines against length, and rooflines: both axes logarithmic, the legend below."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from encoder_fast.benchmarks import plot_style
from encoder_fast.benchmarks.plot_style import (
    COLOURS,
    MARKERS,
    QUIET,
    TEXT,
    Look,
    clipped,
)
from encoder_fast.kernels import dispatch

PLOT_PT, LEFT_PT, UNDER_PT, OVER_PT = 215, 36, 32, 20
"""Height of a plot, and the room for its labels."""


@dataclass(frozen=True)
class Line:
    """Points (x, y), sorted by x."""

    name: str
    points: list[tuple[float, float]]
    look: Look


def drawn(lines: list[Line], ticks: dict[float, str], above: str, below: str) -> Callable:
    """Function: key, text for those who cannot see it -> SVG.

    Args:
        ticks: x -> label, of two lines at most.
        above, below: what y and x are.
    """
    return lambda key, about: plot_style.svg(_length(lines, ticks, above, below), key, about)


def _axes(names: list[str], above: str, below: str, tall: bool) -> tuple[Figure, object, int]:
    """Figure, axes and legend columns. `tall`: labels of x have two lines."""
    columns, legend_pt = plot_style.legend_size(names)
    under = UNDER_PT + 10 * tall
    figure = plot_style.canvas(OVER_PT + PLOT_PT + under + legend_pt)
    axes = plot_style.axes(figure, LEFT_PT, legend_pt + under, 10, OVER_PT)
    axes.set_title(above, loc="left", x=-0.12, fontsize=8, pad=8)
    axes.set_xlabel(below, fontsize=8, labelpad=3)
    axes.grid()
    axes.set_axisbelow(True)
    axes.tick_params(length=2, which="both")
    return figure, axes, columns


def _length(lines: list[Line], ticks: dict[float, str], above: str, below: str) -> Figure:
    names = [clipped(line.name, 44) for line in lines]
    tall = any("\n" in label for label in ticks.values())
    figure, axes, columns = _axes(names, above, below, tall)
    handles = []
    for line, name in zip(lines, names, strict=True):
        look = line.look
        style = {"color": look.colour, "linestyle": look.line, "marker": look.marker}
        style |= {"linewidth": 2.4 if look.ours else 1.3, "zorder": 3 if look.ours else 2}
        axes.plot(*zip(*line.points, strict=True), **style)
        handles.append(Line2D([], [], label=name, **style))
    xs, ys = zip(*(point for line in lines for point in line.points), strict=True)
    plot_style.log_axis(axes.xaxis, min(xs), max(xs))
    plot_style.log_axis(axes.yaxis, min(ys), max(ys))
    axes.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FixedFormatter([ticks[x] for x in sorted(ticks)]))
    plot_style.legend(figure, handles, columns)
    return figure


def roofline(records: list[dict], roof: dict | None) -> Callable:
    """Function as of `drawn`. `records` are ops with "flops", "bytes" and "flops_per_s"; a shape
    says what is done, the colour who does it.
    """
    return lambda key, about: plot_style.svg(_roofline(records, roof), key, about)


def _roofline(records: list[dict], roof: dict | None) -> Figure:
    ops = list(dict.fromkeys(r["op"] for r in records))
    colours = _colours(list(dict.fromkeys(r["backend"] for r in records)))
    shapes = {op: MARKERS[i % len(MARKERS)] for i, op in enumerate(ops)}
    names = [clipped(name, 24) for name in (*ops, *colours)]
    figure, axes, columns = _axes(names, "flops/s", "flops per byte", tall=False)
    # Ours last, so that they are on top where points meet.
    for r in sorted(records, key=lambda r: r["backend"] in dispatch.BACKENDS):
        paint = {"color": colours[r["backend"]], "marker": shapes[r["op"]]}
        at = r["flops"] / r["bytes"], r["flops_per_s"]
        axes.plot(*([x] for x in at), linestyle="none", alpha=0.75, zorder=3, **paint)
    xs = [r["flops"] / r["bytes"] for r in records]
    ys = [r["flops_per_s"] for r in records]
    if roof:
        ends = min(xs) / 1.25, max(xs) * 1.25
        corner = roof["flops_per_s"] / roof["bytes_per_s"]
        bend = [x for x in (ends[0], corner, ends[1]) if ends[0] <= x <= ends[1]]
        most = [min(roof["flops_per_s"], roof["bytes_per_s"] * x) for x in bend]
        axes.plot(bend, most, color=TEXT, linewidth=1.2, zorder=2)
        ys += most
    plot_style.log_axis(axes.xaxis, min(xs), max(xs))
    plot_style.log_axis(axes.yaxis, min(ys), max(ys))
    plain = {"linestyle": "none", "color": QUIET}
    handles = [Line2D([], [], marker=shapes[op], label=op, **plain) for op in ops]
    for name, colour in colours.items():
        handles.append(Line2D([], [], color=colour, linewidth=5, label=clipped(name, 24)))
    plot_style.legend(figure, handles, columns)
    return figure


def _colours(backends: list[str]) -> dict[str, str]:
    """Ours have the accent and its shades; the specification is grey; peers take the others."""
    ours = [COLOURS[name] for name in ("encoder_fast", "encoder_fast-2", "encoder_fast-3")]
    grey = COLOURS["other"]
    theirs = [colour for colour in COLOURS.values() if colour not in (*ours, grey)]
    left = {True: itertools.cycle(theirs), False: itertools.cycle(ours)}
    return {
        name: grey if name == "reference" else next(left[name.startswith("peer ")])
        for name in backends
    }
