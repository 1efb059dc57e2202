"""Records: the JSON lines of a run, one for each thing measured, written as it is measured.

Every record is an object with "kind". Times are in ms, sizes in MiB, rates per second; a value that
is missing is null. `model`, `step` and `memory` records are one contender on one workload, `op`
records one backend on one shape; their "status" is ok, refused (wrong answers), failed or skipped,
with a "reason". A model or step record of a contender that never ran has no workload, and one of a
workload that the model cannot take has no contender.
"""

import json
import math
import os
from pathlib import Path

from encoder_fast.benchmarks.timing import STEADY

CELL = {
    "model": ("model", "workload", "dtype", "contender"),
    "step": ("model", "workload", "dtype", "contender"),
    "memory": ("model", "workload", "dtype", "contender"),
    "op": ("op", "backend", "dtype", "shape", "pass"),
}
"""What a record is about, by kind: of several records with the same values the last one counts."""
NEEDED = {kind: (*names, "status") for kind, names in CELL.items()} | {
    "environment": ("date", "device"),
    "roof": ("dtype", "flops_per_s", "bytes_per_s"),
    "end": ("status",),
}
"""Keys without which a record of a kind cannot be shown."""


class Writer:
    """Appends records to a file; each is on disk as one whole line when the call returns.

    A line that a killed run left unfinished is cut off first. Numbers that are not finite are
    written as null.

    Raises:
        ValueError: the file exists and holds something else.
    """

    def __init__(self, path: str | Path):
        path = Path(path)
        if path.exists() and path.stat().st_size:
            records, whole = _parsed(path)
            if not records:
                raise ValueError(f"{path}: exists, and no benchmark records are in it")
            os.truncate(path, whole)
        self._file = open(path, "ab")  # noqa: SIM115

    def __call__(self, record: dict) -> None:
        line = json.dumps(_finite(record), allow_nan=False, ensure_ascii=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *error) -> None:
        self._file.close()


def _finite(value):
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(path: str | Path) -> list[dict]:
    """All records of a file, in order. A last line without its end is left out.

    Raises:
        ValueError: no such file, no records in it, or a line that is not a record, with its number.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file of benchmark records")
    found, _ = _parsed(path)
    if not found:
        raise ValueError(f"{path}: no benchmark records in it")
    return found


def _parsed(path: Path) -> tuple[list[dict], int]:
    """Records, and how many bytes of the file are whole lines."""
    records, whole = [], 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        whole += len(line)
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: not a line of JSON: {error}") from None
        if why := _fault(record):
            raise ValueError(f"{path}:{number}: {why}")
        records.append(record)
    return records, whole


def _fault(record: object) -> str | None:
    if not isinstance(record, dict) or "kind" not in record:
        return 'not a benchmark record: an object with "kind" is needed'
    if record["kind"] not in NEEDED:
        return f"unknown kind of record {record['kind']!r}; known: {', '.join(NEEDED)}"
    missing = [name for name in NEEDED[record["kind"]] if name not in record]
    return f"{record['kind']} record without {', '.join(missing)}" if missing else None


def latest(records: list[dict], kind: str) -> list[dict]:
    """Records of one kind, the last of each cell, in the order in which cells first came."""
    found = {}
    for record in records:
        if record["kind"] == kind:
            found[tuple(record[name] for name in CELL[kind])] = record
    return list(found.values())


def races(records: list[dict], kind: str) -> dict[tuple[str, str], list[dict]]:
    """(model, dtype of the race) -> its records. int8 engines race in the rounds of a float dtype,
    which their records name as "race".
    """
    found = {}
    for record in latest(records, kind):
        key = record["model"], record.get("race") or record["dtype"]
        found.setdefault(key, []).append(record)
    return found


def blocks(race: list[dict]) -> dict[str, list[dict]]:
    """Workload -> the timed records of a race, fastest first."""
    found = {}
    for record in race:
        if record["status"] == "ok" and record.get("ms"):
            found.setdefault(record["workload"], []).append(record)
    return {name: sorted(block, key=lambda r: r["ms"]) for name, block in found.items()}


def op_steady(record: dict) -> bool | None:
    """Do the controls before and after an op's block agree? None where there are none."""
    controls = record.get("control_before_s"), record.get("control_after_s")
    return max(controls) <= STEADY * min(controls) if all(controls) else None


def is_baseline(record: dict) -> bool:
    """Is it what the ratios of its race refer to?"""
    return record["contender"] == record.get("baseline")


def memory_of(records: list[dict]) -> dict[tuple, dict]:
    """(model, workload, dtype, contender) -> its record with "peak_mib" and "added_mib". A step's
    own record has them.
    """
    return {
        tuple(record[name] for name in CELL["memory"]): record
        for record in latest(records, "memory")
        if record["status"] == "ok"
    }


def not_measured(race: list[dict]) -> list[tuple[str, str, list[str], str]]:
    """(status, who, workloads or shapes, reason), the same reason of the same one said once."""
    found = {}
    for record in race:
        if record["status"] == "ok":
            continue
        who = record.get("contender") or record.get("backend") or "all engines"
        if record["kind"] == "op":
            who = f"{record['op']}: {who}"
        reason = record.get("reason") or "no reason given"
        where = record.get("workload") or record.get("shape")
        places = found.setdefault((record["status"], who, reason), [])
        if where and where not in places:
            places.append(where)
    return [(status, who, where, reason) for (status, who, reason), where in found.items()]


def interruption(records: list[dict]) -> str | None:
    """Why the records are not a whole run, if they are not."""
    last = records[-1]
    if last["kind"] != "end":
        return "The run was cut off: what it had measured until then is here."
    if last["status"] == "failed":
        return f"Not all of it was measured: {last.get('reason') or 'no reason given'}"
    if last["status"] != "done":
        return "The run was interrupted: what it had measured until then is here."
    return None
