"""The figures of a report. Each is made only where its data is there; its caption says what is
seen, in which unit.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from encoder_fast.benchmarks import plot_bars, plot_lines
from encoder_fast.benchmarks.plot_bars import Bar
from encoder_fast.benchmarks.plot_lines import Line
from encoder_fast.benchmarks.plot_style import (
    GRID,
    TEXT,
    Look,
    context,
    looks,
    short,
)
from encoder_fast.benchmarks.records import blocks, is_baseline, latest, races


@dataclass(frozen=True)
class Plot:
    """One figure. `section` is ("model" or "step", model, dtype) or ("op",); `key` is unique on a
    page and an id in it; `svg` is an element to put into HTML.
    """

    key: str
    section: tuple[str, ...]
    title: str
    caption: str
    svg: str


def plots(records: list[dict]) -> list[Plot]:
    """All figures that the records have data for."""
    names = [r["contender"] for r in records if r["kind"] in ("model", "step") and r["contender"]]
    look = looks(names)
    memory = latest(records, "memory")
    found = []
    with context():
        for (model, dtype), race in races(records, "model").items():
            section = ("model", model, dtype)
            timed = blocks(race)
            made = [
                *_ratios(timed, look),
                *_speeds(timed, look),
                *_memory(race, memory, look),
                *_padding(timed, look),
            ]
            found += _keyed(section, made, len(found))
        for (model, dtype), race in races(records, "step").items():
            made = list(_steps(blocks(race), look))
            found += _keyed(("step", model, dtype), made, len(found))
        found += _keyed(("op",), list(_rooflines(records)), len(found))
    return found


def _keyed(section: tuple, made: list[tuple], start: int) -> list[Plot]:
    """Numbered, because a name may hold characters that an id may not."""
    result = []
    for i, (kind, title, caption, draw) in enumerate(made, start + 1):
        key = f"plot-{kind}-{i}"
        result.append(Plot(key, section, title, caption, draw(key, f"{title}. {caption}")))
    return result


def _ratios(timed: dict, look: dict[str, Look]) -> Iterator[tuple]:
    """Of each workload: who is how many times faster than the baseline."""
    for workload, block in timed.items():
        counted = [r for r in block if is_baseline(r) or (r.get("ratio") and r.get("steady"))]
        if all(map(is_baseline, counted)):
            continue
        without = [r for r in block if r not in counted]
        counted.sort(key=lambda r: -(1.0 if is_baseline(r) else r["ratio"]))
        bars = [_ratio_bar(r, look) for r in counted]
        bars += [Bar(r["contender"], 0, "no steady round", GRID) for r in without]
        baseline = counted[0]["baseline"]
        caption = (
            f"How many times faster than {baseline} in the same round. Bar: median of the steady "
            "rounds; line on it: quartiles. Right of the mark at 1 is faster."
        )
        draw = plot_bars.drawn(bars, mark=1.0)
        yield "ratio", f"{workload}: ratio to {baseline}", caption, draw


def _ratio_bar(record: dict, look: dict[str, Look]) -> Bar:
    name = record["contender"]
    if is_baseline(record):
        return Bar(name, 1.0, "1", TEXT)
    shown = f"{record['ratio']:.2f}"
    if record["steady"] < record["rounds"]:
        shown += f"  ({record['steady']} of {record['rounds']} rounds)"
    spread = record.get("ratio_low"), record.get("ratio_high")
    return Bar(name, record["ratio"], shown, look[name].colour, look[name].ours, spread=spread)


def _even(record: dict) -> bool:
    """Texts of one length: those have a length to be drawn against."""
    return bool(record.get("tokens")) and record["tokens"] == record.get("slots")


def _speeds(timed: dict, look: dict[str, Look]) -> Iterator[tuple]:
    records = [r for block in timed.values() for r in block if _even(r)]
    lines = _lines(records, look, lambda r: r["longest"], lambda r: r["tokens_per_s"])
    if not lines:
        return
    ticks = {r["longest"]: f"{r['longest']}\n{r['workload']}" for r in records}
    draw = plot_lines.drawn(lines, ticks, "real tokens/s", "tokens in a text, and the workload")
    caption = "Real tokens per second against the length of the texts, both axes logarithmic."
    yield "speed", "Speed against length", f"{caption} Higher is faster.", draw


def _memory(race: list[dict], memory: list[dict], look: dict[str, Look]) -> Iterator[tuple]:
    cells = {(r["model"], r["dtype"], r["contender"]) for r in race}
    records = [
        r
        for r in memory
        if (r["model"], r["dtype"], r["contender"]) in cells
        and r["status"] == "ok"
        and _even(r)
        and (r.get("added_mib") or 0) > 0
    ]
    lines = _lines(records, look, lambda r: r["tokens"], lambda r: r["added_mib"])
    if not lines:
        return
    ticks = {r["tokens"]: str(r["tokens"]) for r in records}
    names = ", ".join(dict.fromkeys(r["workload"] for r in records))
    draw = plot_lines.drawn(lines, ticks, "MiB added by one run", "tokens in a run")
    caption = (
        "Growth of the peak memory in one run, in MiB, beyond the loaded model, against the real "
        f"tokens in the run ({names}), both axes logarithmic. Lower is less."
    )
    yield "memory", "Memory against length", caption, draw


def _lines(records: list[dict], look: dict[str, Look], x, y) -> list[Line]:
    """One for each contender, highest end first; none where there is one length only."""
    found = {}
    for record in records:
        if y(record):
            found.setdefault(record["contender"], {})[x(record)] = y(record)
    if len({at for points in found.values() for at in points}) < 2:
        return []
    lines = [Line(name, sorted(points.items()), look[name]) for name, points in found.items()]
    return sorted(lines, key=lambda line: -line.points[-1][1])


def _padding(timed: dict, look: dict[str, Look]) -> Iterator[tuple]:
    """What padding costs: how much of a padded batch is real, and what that does to the speed."""
    mixed = {w: block for w, block in timed.items() if block[0]["tokens"] < block[0]["slots"]}
    if not mixed:
        return
    shares, speeds = [], []
    for workload, block in mixed.items():
        tokens, slots = block[0]["tokens"], block[0]["slots"]
        shown = f"{tokens:,} of {slots:,} slots, {tokens / slots:.0%}"
        shares.append(Bar(workload, tokens / slots, shown, TEXT, behind=1.0))
        padded = next((r for r in block if is_baseline(r)), None)
        packed = next((r for r in block if look[r["contender"]].ours), None)
        if padded:
            shown = f"{short(padded['tokens_per_s'])} of {short(padded['slots_per_s'])}"
            colour, slots_per_s = look[padded["contender"]].colour, padded["slots_per_s"]
            label = f"{workload}: {padded['contender']}"
            speeds.append(Bar(label, padded["tokens_per_s"], shown, colour, behind=slots_per_s))
        if padded and packed:
            colour, speed = look[packed["contender"]].colour, packed["tokens_per_s"]
            label = f"{workload}: {packed['contender']}"
            speeds.append(Bar(label, speed, short(speed), colour, strong=True))
    caption = "Part of a padded batch that is real tokens; the grey rest is padding."
    yield "padding", "Padding waste", caption, plot_bars.drawn(shares, percent=True)
    if speeds:
        caption = (
            "Per second: real tokens (bar) and, of the baseline, which pads, all slots that it "
            "computes (grey behind). encoder_fast computes real tokens only."
        )
        yield "useful", "Real tokens/s against slots/s", caption, plot_bars.drawn(speeds)


def _steps(timed: dict, look: dict[str, Look]) -> Iterator[tuple]:
    for workload, block in timed.items():
        bars = [
            Bar(r["contender"], r["ms"], f"{r['ms']:,.0f} ms", *_painted(r, look)) for r in block
        ]
        caption = "Milliseconds of one training step: forward, backward, optimiser. Less is better."
        yield "step", f"{workload}: time of a step", caption, plot_bars.drawn(bars)
        known = sorted((r for r in block if r.get("added_mib")), key=lambda r: r["added_mib"])
        if known:
            bars = [
                Bar(r["contender"], r["added_mib"], f"{r['added_mib']:,.0f}", *_painted(r, look))
                for r in known
            ]
            caption = (
                "Peak memory of one training step in MiB, beyond weights and optimiser states. "
                "Less is better."
            )
            yield "step-memory", f"{workload}: memory of a step", caption, plot_bars.drawn(bars)


def _painted(record: dict, look: dict[str, Look]) -> tuple[str, bool]:
    one = look[record["contender"]]
    return one.colour, one.ours


def _rooflines(records: list[dict]) -> Iterator[tuple]:
    """One for each dtype and pass."""
    roofs = {r["dtype"]: r for r in records if r["kind"] == "roof"}
    groups = {}
    for record in latest(records, "op"):
        rates = ("flops", "bytes", "flops_per_s")
        if record["status"] == "ok" and all(record.get(name) for name in rates):
            groups.setdefault((record["dtype"], record["pass"]), []).append(record)
    for (dtype, passes), group in groups.items():
        roof = roofs.get(dtype)
        where = "the measured roof, left of its corner by memory, right of it by products"
        caption = (
            "Each point is one op on one shape: operations per byte that it must move, and "
            f"operations per second that it reaches. Line: {where if roof else 'none measured'}. "
            "A point taken while the machine was slow lies lower; the table corrects for that."
        )
        draw = plot_lines.roofline(group, roof)
        yield "roofline", f"Roofline, {dtype}, {passes}", caption, draw
