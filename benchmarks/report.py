"""Records as tables: what `encoder-fast bench` prints, and what the page shows.

Losses are rows like wins; who was not timed is listed with the reason; a ratio without a steady
round is words, never a number.
"""

import shutil
import sys
import textwrap
from collections.abc import Iterator

from encoder_fast.benchmarks.records import (
    Writer,
    blocks,
    interruption,
    is_baseline,
    latest,
    memory_of,
    not_measured,
    op_steady,
    races,
    read,
)
from encoder_fast.commands import tables as terminal

__all__ = ["Writer", "environment_lines", "number", "ratio_text", "read", "show", "tables"]

RACE = (
    "workload",
    "contender",
    "tokens/s",
    "ms",
    "ratio",
    "steady",
    "roof",
    "peak MiB",
    "added MiB",
    "ran",
)
OPS = ("op", "shape", "backend", "ms", "quartiles", "Gflop/s", "GB/s", "roof", "steady")
ROOF = ("device", "dtype", "Gflop/s", "GB/s")
KEYS = {RACE: 2, OPS: 3, ROOF: 2}
"""How many first columns say what a row is about; the rest are its values."""
WORDS = {"workload", "contender", "ran", "op", "shape", "backend", "device", "dtype", "ratio"}
"""Columns that are not aligned as numbers."""
UNSTEADY = "no steady round"
IN_CACHE = "above 100 % of the roof: the stream is main memory's, and these tensors are in a cache"

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]], list[str]]
"""Title, header, rows of strings, and lines to be read below."""


def number(value: float | None) -> str:
    """Three significant digits, or all in front of the point; "-" for None."""
    if value is None:
        return "-"
    if abs(value) >= 99.95 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:#.3g}"


def ratio_text(record: dict) -> str:
    """Median ratio with its quartiles, or why there is none."""
    if is_baseline(record):
        return "baseline"
    if record.get("ratio") is None or not record.get("steady"):
        return UNSTEADY
    low, high = record.get("ratio_low"), record.get("ratio_high")
    spread = "" if low is None or high is None else f" ({low:.2f}-{high:.2f})"
    return f"{record['ratio']:.2f}{spread}"


def tables(records: list[dict]) -> list[Table]:
    """One for each model and dtype, then training steps, ops and the measured roof."""
    memory = memory_of(records)
    found = []
    for kind, suffix in (("model", ""), ("step", ", training step")):
        for (model, dtype), race in races(records, kind).items():
            found.append(_race_table(f"{model} {dtype}{suffix}", race, memory))
    found += _op_tables(latest(records, "op"))
    roofs = [r for r in records if r["kind"] == "roof"]
    if roofs:
        rows = [(r["device"], r["dtype"], *_rates(r)) for r in roofs]
        found.append(("Measured roof", ROOF, list(dict.fromkeys(rows)), []))
    return found


def _race_table(title: str, race: list[dict], memory: dict) -> Table:
    rows, about = [], {}
    for workload, block in blocks(race).items():
        for record in block:
            rows.append((workload, record["contender"], *_race_cells(record, memory)))
            if record.get("note"):
                about[f"{record['contender']}: {record['note']}"] = None
    if baseline := next((r["baseline"] for r in race if r.get("baseline")), None):
        title += f" (ratio to {baseline})"
    if any(r["status"] == "ok" and not r.get("real_weights") for r in race):
        about["random weights of the true shapes"] = None
    return title, RACE, rows, [*about, *_reasons(race)]


def _race_cells(record: dict, memory: dict) -> tuple[str, ...]:
    """All but workload and contender."""
    key = tuple(record[name] for name in ("model", "workload", "dtype", "contender"))
    taken = record if record["kind"] == "step" else memory.get(key, {})
    roof = record.get("roof")
    return (
        number(record.get("tokens_per_s")),
        number(record["ms"]),
        ratio_text(record),
        f"{record.get('steady', 0)} of {record.get('rounds', 0)}",
        "-" if roof is None else f"{roof:.0%}",
        number(taken.get("peak_mib")),
        number(taken.get("added_mib")),
        _ran(record.get("ran")),
    )


def _ran(ran: str | dict | None) -> str:
    """ "torch", or op by op where the backends differ."""
    if not isinstance(ran, dict):
        return ran or "-"
    if len(set(ran.values())) == 1:
        return next(iter(ran.values()))
    return ", ".join(f"{op} {backend}" for op, backend in ran.items())


def _reasons(records: list[dict]) -> list[str]:
    lines = []
    for status, who, where, reason in not_measured(records):
        lines.append(f"{status}: {who}{' on ' + ', '.join(where) if where else ''}: {reason}")
    return lines


def _op_tables(ops: list[dict]) -> list[Table]:
    """One for each dtype and pass; the backends of a shape stand together, fastest first."""
    found, absent = {}, []
    for record in ops:
        if record["dtype"] is None:
            absent.append(record)
        else:
            found.setdefault((record["dtype"], record["pass"]), []).append(record)
    result = []
    for (dtype, passes), group in found.items():
        timed = [r for r in group if r["status"] == "ok" and r.get("ms")]
        order = {}
        for record in timed:
            order.setdefault((record["op"], record["shape"]), len(order))
        timed.sort(key=lambda r: (order[r["op"], r["shape"]], r["ms"]))
        rows = [_op_row(record) for record in timed]
        notes = [IN_CACHE] if any((r.get("roof") or 0) > 1.1 for r in timed) else []
        result.append((f"Ops, {dtype}, {passes}", OPS, rows, [*notes, *_reasons(group)]))
    if absent and not result:
        result.append(("Ops", OPS, [], []))
    if absent:
        # Who is not on this machine at all has neither dtype nor shape: said once, at the end.
        result[-1][3].extend(_reasons(absent))
    return result


def _op_row(record: dict) -> tuple[str, ...]:
    roof = record.get("roof")
    spread = f"{number(record.get('ms_low'))}-{number(record.get('ms_high'))}"
    return (
        record["op"],
        record["shape"],
        record["backend"],
        number(record["ms"]),
        spread,
        *_rates(record),
        "-" if roof is None else f"{roof:.0%}",
        {None: "-", True: "yes", False: "no"}[op_steady(record)],
    )


def _rates(record: dict) -> tuple[str, str]:
    """Gflop/s and GB/s."""
    rates = record.get("flops_per_s"), record.get("bytes_per_s")
    return tuple(number(None if rate is None else rate / 1e9) for rate in rates)


def environment_lines(record: dict) -> list[tuple[str, str]]:
    """(what, value) of an "environment" record, for people."""
    gpu = record.get("gpu")
    versions = record.get("versions") or {}
    lines = {
        "date": record["date"],
        "command": record.get("command"),
        "commit": record.get("commit"),
        "device": record["device"],
        "CPU": record.get("cpu"),
        "cores": record.get("cores"),
        "threads": record.get("threads"),
        "CPU flags": " ".join(record.get("flags") or ()),
        "memory": f"{record['memory_gib']} GiB" if record.get("memory_gib") else None,
        "GPU": gpu.get("name", "unnamed") if gpu else None,
        "system": record.get("system"),
        "Python": record.get("python"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    return [(name, str(value)) for name, value in lines.items() if value not in (None, "")]


def show(records: list[dict], columns: int | None = None) -> None:
    """Print everything; tables that are wider than the terminal are cut into several.

    Args:
        columns: width to keep to; None is that of the terminal, or none where output is no terminal
            and COLUMNS is not set.
    """
    columns = columns or shutil.get_terminal_size((200, 24)).columns
    for record in (r for r in records if r["kind"] == "environment"):
        for name, value in environment_lines(record):
            _say(f"{name}: {value}", columns, indent="  ")
        print()
    for title, header, rows, notes in tables(records):
        for part in _fitting(header, rows, columns):
            terminal.show(title, *part)
        if not rows:
            print(f"{title}: nothing was timed")
        for note in notes:
            _say(f"  {note}", columns, indent="    ")
        if notes:
            print()
    if why := interruption(records):
        print(why)


def _say(text: str, columns: int, indent: str) -> None:
    print(textwrap.fill(text, max(columns, 40), subsequent_indent=indent))


def _fitting(header: tuple, rows: list[tuple], columns: int) -> Iterator[tuple]:
    """(header, rows) of tables at most `columns` wide, as far as the cells allow.

    One table where it fits. Else the first key columns become lines of their own, and the values
    are dealt out to as many tables as they need.
    """
    # A terminal's table has lines between its columns, plain text two spaces.
    gap, edge = (3, 1) if sys.stdout.isatty() else (2, 0)
    keys = KEYS[header]
    if rows and sum(_widths(header, rows)) + gap * len(header) + edge > columns:
        header, rows, keys = _with_headings(header, rows, keys)
    widths = _widths(header, rows)
    # What ran is the last column, and may go on in the next line.
    widths = [min(w, 30) if n == "ran" else w for n, w in zip(header, widths, strict=True)]
    start = edge + sum(width + gap for width in widths[:keys])
    parts, used = [], columns
    for i in range(keys, len(header) if rows else 0):
        if used + widths[i] + gap > columns:
            parts.append(list(range(keys)))
            used = start
        parts[-1].append(i)
        used += widths[i] + gap
    for part in parts:
        room = columns - edge - sum(widths[i] + gap for i in part[:-1]) - gap
        yield _part(header, rows, part, max(room, 20))


def _widths(header: tuple, rows: list[tuple]) -> list[int]:
    return [max(map(len, column)) for column in zip(header, *rows, strict=True)]


def _with_headings(header: tuple, rows: list[tuple], keys: int) -> tuple:
    """Header, rows and number of keys of a table whose first key columns are lines of their own."""
    result, before = [], None
    for row in rows:
        heading = row[: keys - 1]
        if heading != before:
            result.append((" ".join(heading), *[""] * (len(header) - keys)))
            before = heading
        result.append(("  " + row[keys - 1], *row[keys:]))
    return header[keys - 1 :], result, 1


def _part(header: tuple, rows: list[tuple], chosen: list[int], room: int) -> tuple:
    """Header and rows of the chosen columns, numbers to the right; `room` is for what ran."""
    names = tuple(header[i] for i in chosen)
    widths = _widths(names, [tuple(row[i] for i in chosen) for row in rows])

    def aligned(row: tuple) -> list[str]:
        given = zip(chosen, widths, strict=True)
        return [row[i] if header[i] in WORDS else row[i].rjust(width) for i, width in given]

    result = []
    for row in rows:
        cells = aligned(row)
        lines = textwrap.wrap(cells[-1], room) if names[-1] == "ran" else [cells[-1]]
        result.append((*cells[:-1], *(lines[:1] or [""])))
        result += [(*[""] * (len(cells) - 1), line) for line in lines[1:]]
    return tuple(aligned(header)), result
