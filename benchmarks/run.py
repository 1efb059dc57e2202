"""How fast is each engine on this machine?

    encoder-fast bench models                        every model and workload, the fastest dtype
    encoder-fast bench models ops finetune --quick   a first look, some minutes
    encoder-fast bench models --models modernbert-base --workloads 8x128 1x2048 --dtype bfloat16
    encoder-fast bench ops --ops attention mlp --backends torch "peer sdpa" --workloads 8x512
    python benchmarks/run.py ops                     the same from a checkout

The same weights, dtype, threads and inputs for everyone, interleaved round by round in one
process. A contender is timed only if its output on that very workload passes the accuracy check.
Results go to OUT/NAME.jsonl, one line each as they are measured, and OUT/NAME.html; Ctrl-C keeps
what was measured. benchmarks/README.md has the method.
"""

import argparse
import datetime
import json
import math
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from encoder_fast.benchmarks.options import Options

SUITES = ("models", "ops", "finetune")
QUICK = {
    "modernbert-base": ("1x32", "8x128", "1x2048"),
    "minilm-l6": ("search-log",),
}
"""Model -> workloads of `--quick`: what two slow cores do in some minutes."""
QUICK_STEPS = ("8x128",)
STEPS = ("8x512", "paper-512", "1x8192")
"""Workloads of the finetune suite."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("suites", nargs="+", choices=SUITES, metavar="SUITE", help="models, ops, finetune")
    add("--quick", action="store_true", help="a choice of cells that takes some minutes")
    add("--models", nargs="+", default=[], metavar="NAME", help="default: all")
    add("--workloads", nargs="+", default=[], metavar="NAME", help="default: all")
    add(
        "--contenders",
        nargs="+",
        default=[],
        metavar="NAME",
        help="of models and finetune; transformers sdpa is always there (default: all)",
    )
    add("--ops", nargs="+", default=[], metavar="NAME", help="of the ops suite (default: all)")
    add(
        "--backends",
        nargs="+",
        default=[],
        metavar="NAME",
        help='of the ops suite: our own and peers like "peer sdpa" (default: all)',
    )
    add(
        "--dtype",
        nargs="+",
        default=["auto"],
        metavar="DTYPE",
        help="auto (default: the fastest here), float32, bfloat16, float16; int8 beside one",
    )
    add("--device", default="auto", help="auto (default), cpu, cuda, cuda:1, ...")
    add("--threads", type=int, help="default: the cores of this machine")
    add("--seconds", type=float, help="racing time of each workload (default 20; quick 6)")
    add("--rounds", type=int, help="least rounds of each workload (default 3; quick 2)")
    add("--no-memory", action="store_true", help="leave out peak memory (a process each)")
    add("--out", default="bench-output", help="folder for the results (default: bench-output)")
    add("--name", help="file name without its ending (default: date and time)")
    add("--json", action="store_true", help="print the records as JSON lines, not tables")


def run(args: argparse.Namespace) -> int:
    """0 done, 1 a suite failed or nothing was measured, 130 interrupted.

    Raises:
        ValueError, ImportError: something was asked for that the harness or the machine has not.
    """
    if find_spec("matplotlib") is None:
        raise ModuleNotFoundError("the report needs matplotlib: pip install 'encoder-fast[bench]'")
    chosen = _checked(args)
    from encoder_fast.benchmarks import contenders, environment, page, report

    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    name = args.name or datetime.datetime.now().strftime("%Y-%m-%d_%H%M%S")
    lines = out / f"{name}.jsonl"
    failures, started = [], time.monotonic()
    with report.Writer(lines) as emit, tempfile.TemporaryDirectory() as scratch:
        engines = _chosen(args, contenders.ALL) if "models" in args.suites else ()
        emit(environment.stamp(chosen["device"], chosen["threads"], engines))
        try:
            _run_suites(args, chosen, Path(scratch), emit, failures)
            status = "failed" if failures else "done"
        except KeyboardInterrupt:
            status = "interrupted"
        end = {"kind": "end", "status": status, "reason": "; ".join(failures) or None}
        emit(end | {"seconds": time.monotonic() - started})
    records = report.read(lines)
    page.write(records, out / f"{name}.html")
    if args.json:
        for record in records:
            print(json.dumps(record))
    else:
        report.show(records)
    print(f"{lines}\n{out / f'{name}.html'}", file=sys.stderr)
    if status == "interrupted":
        return 130
    return int(bool(failures) or not any(record.get("status") == "ok" for record in records))


def _checked(args: argparse.Namespace) -> dict:
    """The options that need a look at the machine or at the tables of names.

    Raises:
        ValueError: a name that is not known, with the list of those that are.
    """
    import torch

    from encoder_fast.benchmarks import models, workloads
    from encoder_fast.hardware import fastest_dtype, usable_cores, usable_device

    _known("--models", args.models, models.CONFIGS)
    _known("--workloads", args.workloads, workloads.WORKLOADS)
    _check_who(args)
    _known("--dtype", args.dtype, ("auto", "float32", "bfloat16", "float16", "int8"))
    for option, value in (("--threads", args.threads), ("--rounds", args.rounds)):
        if value is not None and value < 1:
            raise ValueError(f"{option}: got {value}, at least 1 needed")
    if args.seconds is not None and not 0 <= args.seconds < math.inf:
        raise ValueError(f"--seconds: got {args.seconds}, a finite number from 0 on needed")
    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = str(usable_device(device))
    dtypes = list(dict.fromkeys(args.dtype))
    if "auto" in dtypes:
        found, why = fastest_dtype(device)
        print(f"dtype {found}: {why}", file=sys.stderr)
        dtypes = list(dict.fromkeys(found if d == "auto" else d for d in dtypes))
    if dtypes == ["int8"]:
        raise ValueError(
            "--dtype: got int8 alone; its ratios refer to a float dtype: --dtype auto int8"
        )
    return {"device": device, "dtypes": dtypes, "threads": args.threads or usable_cores()}


def _check_who(args: argparse.Namespace) -> None:
    """The names that belong to one suite only."""
    from encoder_fast.benchmarks import contenders, ops_suite, step_contenders

    tables = {"models": contenders.CONTENDERS, "finetune": step_contenders.CONTENDERS}
    tables = {suite: names for suite, names in tables.items() if suite in args.suites}
    every = dict.fromkeys(name for table in tables.values() for name in table)
    _known("--contenders", args.contenders, every)
    for suite, names in tables.items():
        if args.contenders and not set(args.contenders) & names.keys():
            raise ValueError(
                f"--contenders: got {', '.join(args.contenders)}; none takes part in {suite}, "
                f"which has: {', '.join(names)}"
            )
    ops = "ops" in args.suites
    if ops:
        ops_suite.check_packages()
    _known("--ops", args.ops, ops_suite.op_names() if ops else ())
    _known("--backends", args.backends, ops_suite.backend_names() if ops else ())


def _known(option: str, given: list[str], allowed) -> None:
    unknown = [name for name in given if name not in allowed]
    if unknown and not allowed:
        raise ValueError(f"{option}: got {', '.join(unknown)}; no suite that was named takes it")
    if unknown:
        raise ValueError(f"{option}: got {', '.join(unknown)}; allowed: {', '.join(allowed)}")


def _run_suites(args: argparse.Namespace, chosen: dict, scratch: Path, emit, failures) -> None:
    """Run them all. Why one could not finish goes to `failures`; what it had measured is kept."""
    import torch

    from encoder_fast.benchmarks import environment
    from encoder_fast.benchmarks.teller import Teller
    from encoder_fast.benchmarks.timing import reason

    torch.set_num_threads(chosen["threads"])
    environment.limit_memory()
    with Teller() as tell:
        for suite in dict.fromkeys(args.suites):
            run_suite = {"models": _models, "ops": _ops, "finetune": _finetune}[suite]
            try:
                run_suite(args, chosen, scratch, emit, tell)
            except Exception as error:
                if args.debug:
                    raise
                failures.append(f"{suite}: {reason(error)}")


def _options(args, chosen: dict, scratch: Path, models: tuple, workloads, **more) -> Options:
    seconds, rounds = (6, 2) if args.quick else (20, 3)
    values = {
        "contenders": tuple(args.contenders),
        "dtypes": tuple(chosen["dtypes"]),
        "device": chosen["device"],
        "threads": chosen["threads"],
        "seconds": seconds if args.seconds is None else args.seconds,
        "rounds": args.rounds or rounds,
        "memory": not args.no_memory,
        "quick": args.quick,
        "scratch": scratch,
    }
    return Options(models=tuple(models), workloads=tuple(workloads), **values | more)


def _chosen(args, every: tuple) -> tuple[str, ...]:
    """The named ones of a suite, else all; a quick run leaves out slow ones."""
    named = [name for name in args.contenders if name in {c.name for c in every}]
    return tuple(named or [c.name for c in every if not (args.quick and c.slow)])


def _models(args, chosen: dict, scratch: Path, emit, tell) -> None:
    from encoder_fast.benchmarks import contenders, models, models_suite, workloads

    plan = QUICK if args.quick else dict.fromkeys(models.CONFIGS, workloads.WORKLOADS)
    more = {"contenders": _chosen(args, contenders.ALL)}
    for model in args.models or plan:
        names = args.workloads or plan.get(model, QUICK["minilm-l6"])
        options = _options(args, chosen, scratch, (model,), names, **more)
        models_suite.run(options, emit, tell)


def _finetune(args, chosen: dict, scratch: Path, emit, tell) -> None:
    from encoder_fast.benchmarks import finetune_suite, step_contenders

    names = args.workloads or (QUICK_STEPS if args.quick else STEPS)
    more = {"contenders": _chosen(args, step_contenders.ALL)}
    options = _options(args, chosen, scratch, args.models or ("modernbert-base",), names, **more)
    finetune_suite.run(options, emit, tell)


def _ops(args, chosen: dict, scratch: Path, emit, tell) -> None:
    from encoder_fast.benchmarks import ops_suite

    options = _options(args, chosen, scratch, args.models, args.workloads)
    ops_suite.run(options, emit, tell, tuple(args.ops), tuple(args.backends))


if __name__ == "__main__":
    from encoder_fast.cli import main

    sys.exit(main(["bench", *sys.argv[1:]]))
