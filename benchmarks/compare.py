"""What got slower between two runs?

    python benchmarks/compare.py before.json after.json
    python benchmarks/compare.py bench-output/a.jsonl bench-output/b.jsonl --threshold 1.05

Takes what `--benchmark-json` of bench_ops.py wrote and the JSON lines of `encoder-fast bench`. A
machine may be in another phase in each run, so absolute times are not compared: ops by their time
over the control's, models and training steps by their ratio to the baseline, or over the control's
time where there is no ratio of several rounds. Exit status 1 if an entry is slower than the
threshold by more than its own spread, 2 if the files cannot be compared.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from encoder_fast.benchmarks import records

EXPECTED = "expected is JSON from --benchmark-json of bench_ops.py, or JSON lines of bench"
KINDS = ("op", "model", "step")
"""Kinds of records with a speed; `records.CELL` says what names an entry of each."""
SETTING = ("device", "cpu", "gpu", "threads")
"""Keys of an environment that should be the same in both runs."""


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


def read(path: Path) -> list[dict]:
    """The records of a run, in either form.

    Raises:
        CannotCompare: no such file, or not one of ours.
    """
    try:
        found = _benchmarks(path) or records.read(path)
    except (OSError, ValueError) as error:
        text = f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise CannotCompare(f"{text}; {EXPECTED}") from None
    if not any(record["kind"] in KINDS for record in found):
        raise CannotCompare(f"{path}: no measured op, model or step in it; {EXPECTED}")
    return found


def _benchmarks(path: Path) -> list[dict]:
    """The records in a file of pytest-benchmark; none where it is another file."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
        found = [entry["extra_info"] for entry in entries]
    except (OSError, ValueError, TypeError, KeyError):
        return []
    return [{"kind": "op", "status": "ok", **info} for info in found if "control_s" in info]


def speeds(path: Path, run: list[dict]) -> dict[tuple, list[Speed]]:
    """Entry -> its speeds, one in each unit that its record has, the best unit first; none where
    the machine changed too much while it was measured.

    Raises:
        CannotCompare: a record lacks what names or measures it.
    """
    found = {}
    for record in run:
        kind = record["kind"]
        if kind not in KINDS:
            continue
        try:
            key = (kind, *(record[name] for name in records.CELL[kind]))
            # The last record of a cell counts.
            found.pop(key, None)
            if record["status"] == "ok":
                found[key] = list(_op(record) if kind == "op" else _raced(record))
        except (KeyError, TypeError, ZeroDivisionError) as error:
            message = f"{path}: a record of kind {kind!r} is not complete ({error!r}); {EXPECTED}"
            raise CannotCompare(message) from None
    return found


def _op(record: dict):
    if records.op_steady(record) is False:
        return
    unit = record["control_s"] * 1e3
    yield Speed(*(record[name] / unit for name in ("ms_low", "ms", "ms_high")), "control")


def _raced(record: dict):
    # An int8 engine may have raced in other floats in the other run: that is another unit.
    race = record.get("race") or record["dtype"]
    # One steady round has no spread, so it cannot say whether a change is one.
    several = record.get("ratio") and record.get("steady", 2) > 1
    if several and record["contender"] != record["baseline"]:
        # A ratio says how many times faster: its high quartile is the short time.
        names = ("ratio_high", "ratio", "ratio_low")
        yield Speed(*(1 / record[name] for name in names), f"{record['baseline']} {race}")
    if record.get("control_ms"):
        times = (record.get(name, record["ms"]) for name in ("ms_low", "ms", "ms_high"))
        yield Speed(*(ms / record["control_ms"] for ms in times), f"control {race}")


def compare(before: Path, after: Path) -> dict:
    """Changes of what both runs have, the names of what only one has or what cannot be compared,
    and in what the machines of the runs differ.

    Raises:
        CannotCompare: also where the runs have nothing in common.
    """
    runs = read(before), read(after)
    old, new = speeds(before, runs[0]), speeds(after, runs[1])
    changes, unsteady = [], []
    for key in old.keys() & new.keys():
        pairs = [(a, b) for a in old[key] for b in new[key] if a.unit == b.unit]
        if not pairs:
            unsteady.append(_name(key))
        else:
            a, b = pairs[0]
            clear = b.low > a.high or b.high < a.low
            changes.append(Change(_name(key), b.middle / a.middle, clear, a.unit))
    if not old.keys() & new.keys():
        raise CannotCompare(
            f"{after}: no measured entry in common with {before}; expected are two runs of the "
            "same ops, or of the same models and workloads"
        )
    return {
        "changes": sorted(changes, key=lambda change: (-change.times, change.entry)),
        "appeared": [_name(key) for key in new if key not in old],
        "disappeared": [_name(key) for key in old if key not in new],
        "not comparable": sorted(unsteady),
        "differs": _differences(*runs),
    }


def _differences(before: list[dict], after: list[dict]) -> list[str]:
    """What the runs' last environments say differently: a speed may have changed by that alone."""
    ends = [[r for r in run if r["kind"] == "environment"][-1:] for run in (before, after)]
    if not all(ends):
        return []
    (a,), (b,) = ends
    return [f"{n}: {a.get(n)}, then {b.get(n)}" for n in SETTING if a.get(n) != b.get(n)]


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
    for title in ("appeared", "disappeared", "not comparable", "differs"):
        for entry in found[title]:
            print(f"{title}  {entry}")
    count = len(found["changes"])
    print(f"{count} compared: {len(slower)} slower, {len(faster)} faster")


if __name__ == "__main__":
    sys.exit(main())
