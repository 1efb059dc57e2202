"""Searches for better launch numbers and writes them to `kernels/_launch_table.py`.

    python -m encoder_fast.benchmarks.tune                      on the GPU if there is one
    python -m encoder_fast.benchmarks.tune --device cpu --dry-run --seconds 20

Every candidate's output is checked against the specification before it is timed. Candidates and
the present entry take turns, as in every benchmark here. A candidate replaces the present entry
only if it is faster by more than the present entry differs from itself. The timed call is a
forward.
"""

import argparse
import ast
import contextlib
import datetime
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from encoder_fast.benchmarks.engine import Ready
from encoder_fast.benchmarks.teller import Teller
from encoder_fast.benchmarks.timing import Clock, Control, quartiles, race, reason
from encoder_fast.benchmarks.tune_targets import TARGETS, Key, Launch, Target
from encoder_fast.hardware import cpu_info, usable_device
from encoder_fast.kernels import _launch_table, _launches

TABLE = Path(_launch_table.__file__)
FINALISTS = 4
LEAST_RATIOS = 5
LEAST_GAIN = 1.02
"""Smaller gains are not worth another row to keep."""
AGAIN = "present, a second time"


@dataclass(frozen=True)
class Decision:
    """Outcome for one key. `ratio` and `spread` are quartiles of how many times faster than the
    present launch the best other one was, and the present launch itself; None without enough
    steady rounds.
    """

    key: Key
    present: Launch
    best: Launch | None = None
    ratio: tuple[float, float, float] | None = None
    spread: tuple[float, float, float] | None = None
    refused: tuple[tuple[Launch, str], ...] = ()

    @property
    def better(self) -> bool:
        """Is the best other launch to replace the present one?"""
        return bool(self.ratio) and self.ratio[0] > max(LEAST_GAIN, self.spread[2])

    def lines(self) -> list[str]:
        """For a person."""
        found = [f"  {_text(launch)} is out: {why}" for launch, why in self.refused]
        if not self.ratio:
            return [*found, f"  keeps {_text(self.present)}: too few steady rounds to tell"]
        low, middle, high = self.ratio
        verdict = "takes" if self.better else "keeps " + _text(self.present) + "; best other:"
        return [
            *found,
            f"  {verdict} {_text(self.best)}, {middle:.2f}x ({low:.2f} to {high:.2f}) "
            f"{_text(self.present)}, which differs from itself by {self.spread[0]:.2f} to "
            f"{self.spread[2]:.2f}",
        ]


def _text(launch: Launch) -> str:
    return " ".join(f"{name}={value}" for name, value in launch._asdict().items())


@torch.inference_mode()
def search(
    target: Target,
    key: Key,
    device: str,
    seconds: float,
    tell: Callable[[str], None],
    most: int | None = None,
) -> Decision:
    """Check all launches (`most` of them, if set, spread evenly), race them for a third of
    `seconds`, and the best few for the rest.

    Raises:
        RuntimeError: the present launch fails its own check: nothing can be compared with it.
    """
    present = target.present(key)
    start, wrong = target.build(key, device), target.check(key, device)
    candidates = target.candidates(key)
    if most:
        candidates = candidates[:: -(-len(candidates) // most)]
    ready, refused = {}, []
    for launch in dict.fromkeys((present, *candidates)):
        tell(f"{target.name} {key}: checking {_text(launch)}")
        try:
            call = start(launch)
            why = wrong(call())
        except Exception as error:
            why = reason(error)
        if why is None:
            ready[launch] = Ready(call, lambda output: output, Clock(device))
        elif launch == present:
            raise RuntimeError(f"{target.name} {key}: {_text(present)}, now in use: {why}")
        else:
            refused.append((launch, why))
    control = Control(getattr(torch, key[1]), device)
    first = race(ready, control, seconds / 3, 2, tell)
    ranked = [(first.ratios(launch, present), launch) for launch in ready if launch != present]
    ranked = sorted(((quartiles(r)[1], launch) for r, launch in ranked if r), reverse=True)
    finalists = [launch for _, launch in ranked[:FINALISTS]]
    final = race(
        {launch: ready[launch] for launch in (present, *finalists)} | {AGAIN: ready[present]},
        control,
        seconds * 2 / 3,
        2 * LEAST_RATIOS,
        tell,
    )
    ratios = {name: final.ratios(name, present) for name in (*finalists, AGAIN)}
    enough = {name: quartiles(r) for name, r in ratios.items() if len(r) >= LEAST_RATIOS}
    spread = enough.pop(AGAIN, None)
    if not enough or spread is None:
        return Decision(key, present, refused=tuple(refused))
    best = max(enough, key=lambda launch: enough[launch][0])
    return Decision(key, present, best, enough[best], spread, tuple(refused))


def read(path: Path) -> dict:
    """The table in a file, read as data: nothing in it is run."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TABLE":
            return ast.literal_eval(node.value)
    raise ValueError(f"{path} holds no TABLE")


def write(path: Path, table: dict) -> None:
    """Replace the table in `path`, wholly or not at all."""
    head = path.read_text(encoding="utf-8").partition("TABLE = ")[0]
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".launches-", suffix=".py")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(head + render(table))
            file.flush()
            os.fsync(file.fileno())
        assert read(Path(name)) == table
        shutil.copymode(path, name)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def render(table: dict) -> str:
    """Python text of a table, as the formatter leaves it."""
    lines = ["TABLE = {"]
    for name, rows in sorted(table.items()):
        if not rows:
            lines.append(f"    {_literal(name)}: {{}},")
            continue
        lines.append(f"    {_literal(name)}: {{")
        for key, row in sorted(rows.items()):
            lines.append(f"        ({', '.join(map(_literal, key))}): {{")
            lines += [f"            {_literal(k)}: {_literal(v)}," for k, v in row.items()]
            lines.append("        },")
        lines.append("    },")
    return "\n".join([*lines, "}", ""])


def _literal(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    assert '"' not in value and "\\" not in value, value
    return f'"{value}"'


def row_of(decision: Decision, device: str) -> dict:
    """The table's row for a better launch: its numbers and the evidence."""
    cuda = torch.device(device).type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else cpu_info()[0]
    date = datetime.datetime.now(datetime.timezone.utc).date()
    present = "/".join(map(str, decision.present))
    measured = f"{date} {name}, torch {torch.__version__}: {decision.ratio[1]:.2f}x {present}"
    return decision.best._asdict() | {"measured": measured[:70]}


def run(
    targets: tuple[Target, ...],
    device: str,
    seconds: float,
    path: Path,
    dry_run: bool,
    most: int | None = None,
) -> int:
    """Search every key of `targets`; rows are written as they are found. 1 if one failed."""
    kind, failed = _launches.arch(torch.device(device)), 0
    work = [(target, key) for target in targets for key in target.keys(kind)]
    with Teller() as tell:
        for target, key in work:
            print(f"{target.name} {key}", flush=True)
            try:
                decision = search(target, key, device, seconds / len(work), tell, most)
            except RuntimeError as error:
                print(f"  not tuned: {reason(error)}", flush=True)
                failed = 1
                continue
            print("\n".join(decision.lines()), flush=True)
            if decision.better and not dry_run:
                table = read(path)
                table.setdefault(target.name, {})[key] = row_of(decision, device)
                write(path, table)
                print(f"  written to {path}", flush=True)
    return failed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m encoder_fast.benchmarks.tune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, names = parser.add_argument, [target.name for target in TARGETS]
    add("--device", help="cuda, cuda:1, cpu (default: cuda where there is one)")
    add("--dry-run", action="store_true", help="search and print, but write nothing")
    add("--seconds", type=float, default=120.0, help="racing time of all keys (default 120)")
    add("--most", type=int, metavar="N", help="try only N launches of each key")
    add("--only", nargs="+", choices=names, default=names, metavar="TARGET", help=", ".join(names))
    args = parser.parse_args(arguments)
    try:
        device = usable_device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if not args.dry_run and not os.access(TABLE.parent, os.W_OK):
        print(f"{TABLE}: not writable; --dry-run searches without writing", file=sys.stderr)
        return 2
    chosen = tuple(target for target in TARGETS if target.name in args.only)
    return run(chosen, str(device), args.seconds, TABLE, args.dry_run, args.most)


if __name__ == "__main__":
    sys.exit(main())
