"""How the figures look: one colour for each family of engines, the page's own light and dark.

A figure is drawn with fixed colours; in the SVG each becomes a CSS variable of the page. Widths are
those of a phone: 1 pt is a little more than a pixel there, so 8 pt stays legible.
"""

import html
import io
import itertools
import re
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

PT = 1 / 72
WIDTH_PT = 280
TEXT, QUIET, GRID, PAPER = "#101112", "#707172", "#d0d1d2", "#fdfcfb"
COLOURS = {
    "encoder_fast": "#d9480f",
    "encoder_fast-2": "#f29a2e",
    "encoder_fast-3": "#8f2d0a",
    "transformers": "#1f6fb2",
    "sentence-transformers": "#4aa8d8",
    "onnxruntime": "#00896b",
    "openvino": "#c65fa1",
    "ctranslate2": "#96740a",
    "vllm": "#43318f",
    "other": "#7d848d",
}
"""By the first word of a contender's name; -2 and -3 are further backends of ours. They differ
in lightness too, for those who see fewer of them."""
DARK = {
    "encoder_fast": "#ff8a55",
    "encoder_fast-2": "#ffc98a",
    "encoder_fast-3": "#d2572a",
    "transformers": "#62a8ea",
    "sentence-transformers": "#9ad3f2",
    "onnxruntime": "#35c9a4",
    "openvino": "#f2aed8",
    "ctranslate2": "#d9b64a",
    "vllm": "#8672f5",
    "other": "#868d97",
}
"""The same on a dark page."""
LINES = ("solid", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))
MARKERS = "osD^vPX*<>"
RC = {
    "svg.hashsalt": "encoder_fast",
    # Text stays text and takes the page's font, which is narrower than the one it is laid out with.
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": TEXT,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": TEXT,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "text.parse_math": False,
}


@dataclass(frozen=True)
class Look:
    """Of one engine, the same in all figures of a page."""

    colour: str
    line: object
    marker: str
    ours: bool


def family(name: str) -> str:
    """Key of COLOURS."""
    first = name.split(" ", 1)[0]
    return first if first in COLOURS else "other"


def looks(names: list[str]) -> dict[str, Look]:
    """A family shares a colour, its members differ in line; neighbours in the list also differ in
    marker, for those who cannot tell two families' colours apart.
    """
    counts = {kind: itertools.count() for kind in COLOURS}
    found = {}
    for i, name in enumerate(dict.fromkeys(names)):
        kind = family(name)
        line = LINES[next(counts[kind]) % len(LINES)]
        marker = MARKERS[i % len(MARKERS)]
        found[name] = Look(COLOURS[kind], line, marker, kind == "encoder_fast")
    return found


def css() -> str:
    """Colours as variables."""

    def block(colours: dict[str, str]) -> str:
        return "".join(f"--{name}:{colour};" for name, colour in colours.items())

    dark = f"@media (prefers-color-scheme:dark){{:root{{{block(DARK)}}}}}"
    return f":root{{{block(COLOURS)}}}{dark}"


def clipped(name: str, most: int = 34) -> str:
    """A name that fits into a figure."""
    return name if len(name) <= most else name[: most - 1] + "…"


def canvas(height_pt: float) -> Figure:
    """An empty figure as wide as all others; use it within `matplotlib.rc_context(RC)`."""
    figure = Figure(figsize=(WIDTH_PT * PT, height_pt * PT))
    FigureCanvasSVG(figure)
    return figure


def axes(figure: Figure, left: float, bottom: float, right: float, top: float) -> Axes:
    """Axes by their distances in points from the figure's edges."""
    height = figure.get_figheight() / PT
    return figure.add_axes(
        (
            left / WIDTH_PT,
            bottom / height,
            (WIDTH_PT - left - right) / WIDTH_PT,
            (height - bottom - top) / height,
        )
    )


def short(value: float) -> str:
    """1500 as 1.5k."""
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


def log_axis(axis, low: float, high: float) -> None:
    """A log axis over positive data; between powers of ten it is labelled where that leaves room.

    matplotlib's own labels would be formulas, whose glyphs do not take the page's font.
    """
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    decades = high / low
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 60 else (1,), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.set_minor_formatter(NullFormatter())
    getattr(axis.axes, f"set_{axis.axis_name}lim")(low / 1.25, high * 1.25)


def legend(figure: Figure, handles: list[Line2D], columns: int) -> None:
    """At the bottom of the figure, in the room that `legend_size` asks for."""
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.005, 0),
        ncols=columns,
        frameon=False,
        fontsize=7.5,
        handlelength=2.2,
        columnspacing=1,
        labelspacing=0.35,
        borderpad=0.1,
    )


def legend_size(names: list[str]) -> tuple[int, float]:
    """(columns, height in points)."""
    columns = 2 if max(map(len, names)) <= 24 else 1
    return columns, -(-len(names) // columns) * 11.5 + 4


def svg(figure: Figure, key: str, about: str) -> str:
    """The figure as an <svg> element whose ids start with `key`, so that many fit on a page."""
    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{key}-', text)
    text = re.sub(r'href="#', f'href="#{key}-', text)
    text = re.sub(r"url\(#", f"url(#{key}-", text)
    for colour, name in _VARIABLES.items():
        text = text.replace(colour, name)
    box = re.search(r'viewBox="[^"]*"', text)[0]
    opening = f'<svg class="figure" role="img" aria-label="{html.escape(about)}" {box}'
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return re.sub(r"<svg[^>]*>", lambda _: f"{opening} {names}>", text, count=1).strip()


_VARIABLES = {colour: f"var(--{name})" for name, colour in COLOURS.items()} | {
    TEXT: "currentColor",
    QUIET: "var(--quiet)",
    GRID: "var(--grid)",
    PAPER: "var(--card)",
}


def context():
    """Settings for everything drawn inside."""
    return matplotlib.rc_context(RC)
