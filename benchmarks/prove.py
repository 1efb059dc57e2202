"""Compiles every Triton kernel for the GPUs it is meant for, on a machine without one.

    python benchmarks/prove.py                      all ops, sm_80, sm_90 and sm_100
    python benchmarks/prove.py --ops mlp --archs 90
    python benchmarks/prove.py --write              renew benchmarks/compiled_kernels.json

Each kernel must keep its numbers in registers (no spills), fit the shared memory of its GPU, use no
atomics, multiply on the matrix unit where it multiplies, and move 128 bits at a time where it moves
rows. What the compiler made is compared with the committed table: a kernel that needs more than it
did fails. Exit status 1 if anything is wrong. Nothing here says how fast a kernel is.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

TABLE = Path(__file__).with_name("compiled_kernels.json")
ARCHS = (80, 90, 100)
SMALL_ARCHS = (86, 120)
"""GPUs with 99 KiB of shared memory for a block: attention, which takes the most, must fit."""
MATRIX = {80: "HMMA", 86: "HMMA", 90: "HGMMA", 100: "UTCHMMA", 120: "HMMA"}
MATRIX_16 = ("bfloat16", "float16")


def problems(row: dict, shared_limit: int) -> list[str]:
    """What is wrong with a compiled kernel, as a list of sentences."""
    counts, found = row["counts"], []
    if row["spilled"]:
        found.append(f"{row['spilled']} bytes of registers are spilled")
    if row["shared"] > shared_limit * 1024:
        found.append(f"{row['shared']} bytes of shared memory, {shared_limit} KiB at most")
    if not row["blocks"]:
        found.append("no block fits on a multiprocessor")
    atomics = [name for name in ("RED", "ATOM", "ATOMG") if counts.get(name)]
    if atomics:
        found.append(f"atomic instructions: {', '.join(atomics)}")
    if row["matrix"] and not any(counts.get(name) for name in (row["matrix"], "HMMA")):
        found.append(f"it multiplies, and has no {row['matrix']}")
    if row["wide"] and not (
        counts.get("LDG.E.128") or counts.get("UTMALDG") or counts.get("LDGSTS")
    ):
        found.append("no load of 128 bits")
    return found


def worse(row: dict, before: dict) -> list[str]:
    """In what a kernel needs more than the committed table says."""
    found = [
        f"{name}: {before[name]} became {row[name]}"
        for name in ("registers", "spilled", "shared")
        if row[name] > before[name]
    ]
    if row["blocks"] < before["blocks"]:
        found.append(f"blocks: {before['blocks']} became {row['blocks']}")
    return found


def _row(launched) -> dict:
    from encoder_fast.benchmarks.prove_compile import needs_of

    row = needs_of(launched.compiled, launched.arch).row()
    sixteen = any(kind in MATRIX_16 for kind in launched.types)
    multiplies = "tt.dot" in launched.compiled.asm["ttir"] and sixteen
    row["matrix"] = MATRIX[launched.arch] if multiplies else ""
    row["wide"] = sixteen and "tt.load" in launched.compiled.asm["ttir"]
    return row


def compile_all(archs, ops, tell) -> dict[str, dict]:
    """`arch op kernel-variant` -> what it needs, each variant once."""
    from encoder_fast.benchmarks.prove_record import recording
    from encoder_fast.benchmarks.prove_work import all_work

    rows: dict[str, dict] = {}
    for arch in archs:
        for work in all_work(ops if arch not in SMALL_ARCHS else ("attention",)):
            tell(f"sm_{arch} {work.op} {work.name}")
            with recording(arch) as launches:
                work.run()
            for launched in launches:
                key = f"sm_{arch} {work.op} {launched.variant}"
                if key not in rows:
                    rows[key] = _row(launched)
    return rows


def report(rows: dict[str, dict], before: dict[str, dict]) -> int:
    """Print one line a kernel -> how many are wrong."""
    from encoder_fast.benchmarks.prove_compile import SHARED

    wrong = 0
    for key, row in sorted(rows.items()):
        arch = int(key.split()[0].removeprefix("sm_"))
        found = problems(row, SHARED[arch][1])
        if key in before:
            found += worse(row, before[key])
        counts = " ".join(f"{name}:{n}" for name, n in row["counts"].items())
        print(
            f"{'WRONG' if found else 'ok   '} {key}: {row['registers']} registers, "
            f"{row['shared']} B shared, {row['blocks']} blocks; {counts}"
        )
        for line in found:
            print(f"        {line}")
        wrong += bool(found)
    return wrong


def save(rows: dict[str, dict], version: str) -> None:
    """Write the table, wholly or not at all: one line a kernel."""
    lines = [f"{json.dumps(key)}: {json.dumps(row)}" for key, row in sorted(rows.items())]
    text = f'{{"triton": {json.dumps(version)}, "kernels": {{\n' + ",\n".join(lines) + "\n}}\n"
    handle, name = tempfile.mkstemp(dir=TABLE.parent, prefix=".compiled-")
    with open(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(name, 0o644)
    os.replace(name, TABLE)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/prove.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    archs = (*ARCHS, *SMALL_ARCHS)
    parser.add_argument("--ops", nargs="+", metavar="OP", help="only these ops")
    parser.add_argument("--archs", nargs="+", type=int, default=archs, choices=archs, metavar="N")
    parser.add_argument("--write", action="store_true", help="renew the committed table")
    args = parser.parse_args(arguments)
    os.environ.pop("TRITON_INTERPRET", None)  # before Triton is imported
    import triton

    from encoder_fast.benchmarks.teller import Teller

    with Teller() as tell:
        rows = compile_all(args.archs, args.ops and tuple(args.ops), tell)
    stored = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    same = stored.get("triton") == triton.__version__
    before = stored.get("kernels", {}) if same and not args.write else {}
    wrong = report(rows, before)
    print(f"{len(rows)} kernels, Triton {triton.__version__}: {wrong} wrong")
    if not same and stored:
        print(f"the committed table is of Triton {stored['triton']}: not compared with it")
    if args.write and not wrong:
        save(rows, triton.__version__)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
