"""What got slower between two runs?

    python benchmarks/compare.py before.json after.json
    python benchmarks/compare.py bench-output/a.jsonl bench-output/b.jsonl --threshold 1.05

Takes what `--benchmark-json` of bench_ops.py wrote and the JSON lines of `encoder-fast bench`. A
machine may be in another phase in each run, so absolute times are not compared: ops by their time
over the control's, models and training steps by their ratio to the baseline, or over the control's
time where there is no ratio. Exit status 1 if an entry is slower than the threshold by more than
its own spread, 2 if the files cannot be compared.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

EXPECTED = "expected is JSON from --benchmark-json of bench_ops.py, or JSON lines of bench"
KEYS = {
    "op": ("op", "backend", "shape", "dtype", "pass"),
    "model": ("model", "contender", "workload", "dtype"),
    "step": ("model", "contender", "workload", "dtype"),
}
"""Kind of record -> what names an entry."""


class CannotCompare(Exception):
    """A file is missing, foreign, or has nothing in common with the other."""


@dataclass(frozen=True)
class Speed:
    """How long one entry takes in units that a slow machine does not change, with its quartiles."""

    low: float
    middle: float
    high: float
    unit: str


@dataclass(frozen=True)
class Change:
    """`times` is how many times longer an entry takes in the second run. `clear` where the spreads
    of the two runs do not touch.
    """

    entry: str
    times: float
    clear: bool
    unit: str


def records(path: Path) -> list[dict]:
    """The records of a run.

    A last line that was cut short is left out: that run was stopped, the rest is whole.

    Raises:
        CannotCompare: no such file, or not one of ours.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise CannotCompare(f"{path}: {reason}; {EXPECTED}") from None
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        found = _lines(path, text)
    else:
        found = _benchmarks(whole)
    if not any(isinstance(x, dict) and x.get("kind") in KEYS for x in found):
        raise CannotCompare(f"{path}: no measured op, model or step in it; {EXPECTED}")
    return found


def _benchmarks(whole) -> list[dict]:
    """Records of one JSON value: pytest-benchmark's, or a file of one line."""
    if not isinstance(whole, dict):
        return []
    entries = whole.get("benchmarks")
    if not isinstance(entries, list):
        return [whole]
    found = [x["extra_info"] for x in entries if isinstance(x, dict) and x.get("extra_info")]
    return [{"kind": "op", "status": "ok", **info} for info in found if "control_s" in info]


def _lines(path: Path, text: str) -> list[dict]:
    found, lines = [], text.splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            if number < len(lines) or not found:
                raise CannotCompare(f"{path}: line {number} is not JSON; {EXPECTED}") from None
    return found


def speeds(path: Path) -> dict[tuple, list[Speed]]:
    """Entry -> its speeds, one in each unit that its record has, the best unit first.

    Raises:
        CannotCompare: a record lacks what names or measures it.
    """
    found = {}
    for record in records(path):
        if not isinstance(record, dict) or record.get("kind") not in KEYS:
            continue
        if record.get("status") != "ok":
            continue
        kind = record["kind"]
        try:
            key = (kind, *(record[name] for name in KEYS[kind]))
            found[key] = list(_op(record) if kind == "op" else _raced(record))
        except (KeyError, TypeError, ZeroDivisionError) as error:
            message = f"{path}: a record of kind {kind!r} is not complete ({error!r}); {EXPECTED}"
            raise CannotCompare(message) from None
    return found


def _op(record: dict):
    unit = record["control_s"] * 1e3
    yield Speed(*(record[name] / unit for name in ("ms_low", "ms", "ms_high")), "control")


def _raced(record: dict):
    if record.get("ratio") and record["contender"] != record["baseline"]:
        # A ratio says how many times faster: its high quartile is the short time.
        names = ("ratio_high", "ratio", "ratio_low")
        yield Speed(*(1 / record[name] for name in names), record["baseline"])
    if record.get("control_ms"):
        times = (record.get(name, record["ms"]) for name in ("ms_low", "ms", "ms_high"))
        yield Speed(*(ms / record["control_ms"] for ms in times), "control")


def compare(before: Path, after: Path) -> dict:
    """Changes of what both runs have, and the names of what only one has.

    Raises:
        CannotCompare: also where the runs have nothing in common.
    """
    old, new = speeds(before), speeds(after)
    changes = []
    for key in old:
        pairs = [(a, b) for a in old[key] for b in new.get(key, ()) if a.unit == b.unit]
        if pairs:
            a, b = pairs[0]
            clear = b.low > a.high or b.high < a.low
            changes.append(Change(_name(key), b.middle / a.middle, clear, a.unit))
    if not changes:
        raise CannotCompare(
            f"{after}: no measured entry in common with {before}; expected are two runs of the "
            "same ops, or of the same models and workloads"
        )
    return {
        "changes": sorted(changes, key=lambda change: -change.times),
        "appeared": [_name(key) for key in new if key not in old],
        "disappeared": [_name(key) for key in old if key not in new],
    }


def _name(key: tuple) -> str:
    return " | ".join(map(str, key))


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, metavar="A.json")
    parser.add_argument("after", type=Path, metavar="B.json")
    parser.add_argument(
        "--threshold", type=float, default=1.1, help="times slower that matter (default: 1.1)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    if not args.threshold >= 1:
        parser.error(f"--threshold: got {args.threshold}, at least 1 needed")
    try:
        found = compare(args.before, args.after)
    except CannotCompare as error:
        print(error, file=sys.stderr)
        return 2
    slower = [c for c in found["changes"] if c.times > args.threshold and c.clear]
    faster = [c for c in found["changes"] if c.times < 1 / args.threshold and c.clear]
    if args.json:
        changes = [asdict(change) for change in found["changes"]]
        print(json.dumps(found | {"changes": changes, "slower": [c.entry for c in slower]}))
    else:
        _show(found, slower, faster[::-1])
    return 1 if slower else 0


def _show(found: dict, slower: list[Change], faster: list[Change]) -> None:
    for title, changes in (("slower", slower), ("faster", faster)):
        for change in changes:
            times = change.times if title == "slower" else 1 / change.times
            print(f"{title} {times:6.2f}x  {change.entry}  (against {change.unit})")
    for title in ("appeared", "disappeared"):
        for entry in found[title]:
            print(f"{title}  {entry}")
    count = len(found["changes"])
    print(f"{count} compared: {len(slower)} slower, {len(faster)} faster")


if __name__ == "__main__":
    sys.exit(main())
