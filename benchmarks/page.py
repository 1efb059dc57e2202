"""Records as one HTML file that needs nothing else: no script, no network, light and dark."""

import html
from collections.abc import Iterator
from pathlib import Path

from encoder_fast.benchmarks import plot_style, report
from encoder_fast.benchmarks.headline import Standing, standings
from encoder_fast.benchmarks.page_style import CSS
from encoder_fast.benchmarks.plots import Plot, plots
from encoder_fast.benchmarks.records import interruption, races
from encoder_fast.files import atomic_path

STATUSES = ("refused", "failed", "skipped")
METHOD = (
    "Ratios are what counts. A machine may change its speed several times over within seconds, so "
    "engines take turns within a round, each round gives one ratio to the baseline, and the median "
    "over rounds stands here with its quartiles. Two other engines are compared by dividing their "
    "ratios. Milliseconds and tokens per second are for orientation.",
    "A fixed matrix product runs before and after each timed block. A round in which it changed by "
    "more than 1.3 times counts for nothing; “4 of 5” says how many rounds were steady. Without "
    "any, there is no ratio.",
    "Everyone has the same weights, dtype, threads and inputs. Engines that pad get the padded "
    "batch, and only real tokens are counted. int8 engines are marked: they compute less exactly.",
    "Right answers first: an engine is timed on a workload only if its output there is good, with "
    "an error of at most three times that of transformers in the same dtype, or, in int8, with a "
    "cosine of 0.99 for each token. Those that miss it are listed as refused.",
    "The roof is what the machine itself reached in the same seconds: the part of the control "
    "product's speed that the needed operations for real tokens make up.",
    "Memory is measured in a process of its own: its peak, and how far that grew in one run.",
)


def write(records: list[dict], path: str | Path) -> None:
    """Write the page of `records` (records.py) to `path`, whole or not at all."""
    text = "\n".join(_page(records))
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _e(text: object) -> str:
    return html.escape(str(text))


def _page(records: list[dict]) -> Iterator[str]:
    environment = next((r for r in records if r["kind"] == "environment"), {})
    machine = (environment.get("gpu") or {}).get("name") or environment.get("cpu")
    title = f"Encoder speed on {machine or 'this machine'}"
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    # The browser itself sees to it that nothing is fetched.
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<link rel="icon" href="data:,">'
    yield f"<title>{_e(title)}</title>\n<style>{CSS}{plot_style.css()}</style>\n</head>"
    yield "<body>\n<main>"
    yield from _header(title, environment, interruption(records))
    yield from _headline(standings(records))
    yield from _sections(records, plots(records))
    yield '<h2 id="method">How this was measured</h2>\n<div class="method">'
    yield from (f"<p>{_e(paragraph)}</p>" for paragraph in METHOD)
    yield "</div>"
    yield from _environments(records)
    yield "</main>\n</body>\n</html>\n"


def _header(title: str, environment: dict, fault: str | None) -> Iterator[str]:
    yield "<header>"
    if fault:
        yield f'<p class="banner" role="alert">{_e(fault)}</p>'
    yield f'<p class="eyebrow">encoder_fast benchmark</p>\n<h1>{_e(title)}</h1>'
    lead = "Every engine on the same weights, dtype, threads and inputs. Losses are shown like wins"
    yield f'<p class="lead">{lead}, and who was not timed is listed with the reason.</p>'
    facts = {
        "": str(environment.get("date") or "").replace("T", " "),
        "commit ": environment.get("commit"),
        "device ": environment.get("device"),
        "threads ": environment.get("threads"),
    }
    chips = "".join(f"<li>{_e(name)}{_e(value)}</li>" for name, value in facts.items() if value)
    yield f'<ul class="chips">{chips}</ul>\n</header>'


def _headline(found: list[Standing]) -> Iterator[str]:
    """What a reader wants to know first, wins and losses."""
    if not found:
        return
    compared = [s for s in found if s.lead]
    won = [s for s in compared if s.lead > 1]
    tiles = []
    if compared:
        worst, best = (pick(compared, key=lambda s: s.lead) for pick in (min, max))
        about = "workloads in which encoder_fast is ahead of every other engine"
        tiles.append(("ours", f"{len(won)} of {len(compared)}", about))
        for word, one in (("Best", best), ("Worst", worst)):
            about = f"{word}: {one.ours} against {one.rival}, the fastest other, on {one.where}"
            tiles.append(("", f"{one.lead:.2f}×", about))
    yield '<section class="tiles">'
    for kind, value, about in tiles:
        yield f'<div class="tile {kind}"><b>{_e(value)}</b><span>{_e(about)}</span></div>'
    yield "</section>"
    header = ("race", "workload", "fastest engine", "ratio", "encoder_fast to the fastest other")
    rows = [(s.race, s.workload, s.fastest, s.ratio_text, s.against) for s in found]
    baselines = ", ".join(dict.fromkeys(s.baseline for s in found))
    title = f"The fastest engine of each workload, and its ratio to {baselines}"
    yield _table(title, header, rows, keys=1, whole=True)


def _sections(records: list[dict], drawn: list[Plot]) -> Iterator[str]:
    """Figures, table and notes of each race, then of the ops."""
    tables = iter(report.tables(records))
    for kind in ("model", "step"):
        for model, dtype in races(records, kind):
            suffix = ": training step" if kind == "step" else ""
            yield f"<section>\n<h2>{_e(model)}, {_e(dtype)}{suffix}</h2>"
            yield _figures([plot for plot in drawn if plot.section == (kind, model, dtype)])
            yield from _table_and_notes(next(tables))
            yield "</section>"
    rest = list(tables)
    if rest:
        yield "<section>\n<h2>Ops</h2>"
        yield _figures([plot for plot in drawn if plot.section == ("op",)])
        for table in rest:
            yield f"<details><summary>{_e(table[0])}</summary>"
            yield from _table_and_notes(table)
            yield "</details>"
        yield "</section>"


def _figures(drawn: list[Plot]) -> str:
    cards = "".join(
        f'<figure class="card" id="{plot.key}"><h3>{_e(plot.title)}</h3>\n{plot.svg}\n'
        f"<figcaption>{_e(plot.caption)}</figcaption></figure>\n"
        for plot in drawn
    )
    return f'<div class="plots">\n{cards}</div>' if cards else ""


def _table_and_notes(table: report.Table) -> Iterator[str]:
    title, header, rows, notes = table
    if rows:
        yield _table(title, header, rows, report.KEYS[header] - 1)
    else:
        yield f'<p class="under">{_e(title)}: nothing was timed.</p>'
    if notes:
        yield f'<ul class="notes">{"".join(map(_note, notes))}</ul>'


def _note(note: str) -> str:
    status, _, rest = note.partition(": ")
    if status in STATUSES:
        return f'<li><span class="tag {status}">{status}</span>{_e(rest)}</li>'
    return f"<li>{_e(note)}</li>"


def _table(title: str, header: tuple, rows: list[tuple], keys: int, whole: bool = False) -> str:
    """A table in a frame of its own, which scrolls where the page is narrow. What the first `keys`
    columns say is a heading over the rows that share it. `whole`: all columns are words.
    """
    names = header[keys:]
    words = set(names) if whole else report.WORDS
    head = "".join(
        f'<th scope="col"{"" if name in words else " class=n"}>{_e(name)}</th>' for name in names
    )
    body, before = [], None
    for row in rows:
        if row[:keys] != before:
            before = row[:keys]
            about = f"<span>{_e(' '.join(before))}</span>"
            body.append(f'<tr class="group"><th colspan="{len(names)}">{about}</th></tr>')
        cells = zip(names, row[keys:], strict=True)
        inner = "".join(f'<td class="{_kind(*cell, words)}">{_e(cell[1])}</td>' for cell in cells)
        ours, base = _is_ours(header, row), "baseline" in row
        body.append(f'<tr class="{"ours " * ours}{"baseline" * base}">{inner}</tr>')
    return (
        f'<div class="frame card"><table><caption><span>{_e(title)}</span></caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{chr(10).join(body)}</tbody></table></div>"
    )


def _kind(name: str, cell: str, words: set[str]) -> str:
    """CSS class of a cell."""
    if cell == report.UNSTEADY:
        return "unsteady"
    if name in ("contender", "backend", "fastest engine"):
        return "who"
    if name == "ran":
        return "long"
    return "" if name in words else "n"


def _is_ours(header: tuple, row: tuple) -> bool:
    for name in ("contender", "fastest engine"):
        if name in header:
            return plot_style.family(row[header.index(name)]) == "encoder_fast"
    return False


def _environments(records: list[dict]) -> Iterator[str]:
    found = [r for r in records if r["kind"] == "environment"]
    if found:
        yield '<h2 id="environment">Where this was measured</h2>'
    for record in found:
        lines = report.environment_lines(record)
        inner = "".join(f"<dt>{_e(name)}</dt><dd>{_e(value)}</dd>" for name, value in lines)
        yield f'<dl class="environment card">{inner}</dl>'
