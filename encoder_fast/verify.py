"""`encoder-fast verify`: does every backend of this machine compute a real checkpoint right?"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch

from encoder_fast import verify_int8, verify_transformers
from encoder_fast.commands import tables
from encoder_fast.errors import BackendError
from encoder_fast.hardware import usable_device
from encoder_fast.kernels.dispatch import BACKENDS
from encoder_fast.progress import Progress
from encoder_fast.verify_cases import Texts
from encoder_fast.verify_checks import Alone, Checks, Result, judge
from encoder_fast.weights import load, resolve_folder

DTYPES = ("float32", "bfloat16", "float16", "float64")


def add_arguments(parser):
    parser.description = (
        "Runs a checkpoint on every backend and compares it with the plain reference in fp64, one\n"
        "text at a time: window edges, padding, holes, packing, positions, token types, empty\n"
        "rows, gradients; and with transformers where installed. Exit status 1 if a check fails."
    )
    parser.epilog = "example:\n  encoder-fast verify ./all-MiniLM-L6-v2 --dtype float32 bfloat16"
    parser.add_argument("model", help="model folder or hub id")
    parser.add_argument(
        "--dtype", nargs="+", choices=DTYPES, help="default: its own, float32 and bfloat16"
    )
    parser.add_argument(
        "--backend", nargs="+", choices=BACKENDS, help="default: all that can run it"
    )
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument(
        "--precision", choices=("int8",), help="check int8 in place of the backends: its cosine"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run(args) -> int:
    """0 if every check holds, 1 if one does not.

    Raises:
        ValueError: a model that cannot be loaded, a device or backend asked for that cannot run it.
    """
    folder, device = resolve_folder(args.model), usable_device(args.device)
    if args.precision:
        results, notes = list(verify_int8.check(folder, args.dtype or ["bfloat16"], device)), []
    else:
        results, notes = verify(folder, args.dtype, args.backend, device)
    failed = [r for r in results if not r.ok]
    if args.json:
        print(json.dumps(_report(args.model, device, results, notes), indent=2))
    else:
        _show(f"verify {args.model} on {device}", results, notes)
    return 1 if failed else 0


def verify(
    folder: Path,
    dtypes: list[str] | None = None,
    backends: list[str] | None = None,
    device: torch.device | str = "cpu",
) -> tuple[list[Result], list[str]]:
    """All results, and a line for each thing that could not be checked."""
    device = torch.device(device)
    oracle = Alone(load(folder, dtype="float64", device=device, backend="reference"))
    texts = Texts(oracle.model.config)
    if dtypes is None:
        own = str(load(folder).dtype).removeprefix("torch.")
        dtypes = list(dict.fromkeys((own, "float32", "bfloat16")))
    reason = verify_transformers.missing()
    hf = None if reason else verify_transformers.Comparison(folder, texts, device)
    results, notes = [], []
    plans = len(dtypes) * (len(backends or BACKENDS) * 15 + 1)
    with Progress(plans, "verify") as progress:
        for dtype in dtypes:
            plain = Alone(load(folder, dtype=dtype, device=device, backend="reference"))
            models = dict(_candidates(folder, dtype, backends, device, notes))
            for backend, model in models.items():
                for _, check in Checks(model, backend, texts, oracle, plain).all():
                    results.append(check())
                    progress.advance(1)
            results += _against_transformers(hf, texts, models)
            progress.advance(1)
    return results, notes + ([reason] if reason else [])


def _candidates(folder, dtype, backends, device, notes) -> Iterator[tuple]:
    """Each backend with the checkpoint on it. One not asked for by name may refuse, with a note."""
    for backend in backends or BACKENDS:
        try:
            yield backend, load(folder, dtype=dtype, device=device, backend=backend)
        except BackendError as error:
            if backends is not None:
                raise
            notes.append(f"{backend}, {dtype}: {error}")


def _against_transformers(hf, texts: Texts, models: dict) -> Iterator[Result]:
    """The padded batch on each backend; the oracle is transformers in fp64, plain its own dtype."""
    if hf is None or not models:
        return
    dtype = next(iter(models.values())).dtype
    exact, plain = hf.hidden_states(torch.float64), hf.hidden_states(dtype)
    for backend, model in models.items():
        with torch.no_grad():
            ours = hf.case.run(model)
        rows = []
        for x, p, e in zip(ours, plain, exact, strict=True):
            where = backend, str(dtype).removeprefix("torch.")
            numbers = judge(x, p, e, dtype)
            rows.append(Result("transformers", *where, *numbers, f"text of {len(e)} tokens"))
        yield max(rows, key=lambda r: r.badness)


def _report(model: str, device: torch.device, results: list[Result], notes: list[str]) -> dict:
    """Plain values for JSON, which knows no infinity."""

    def number(x: float) -> float | None:
        return x if math.isfinite(x) else None

    rows = [
        {
            "check": r.check,
            "backend": r.backend,
            "dtype": r.dtype,
            "error": number(r.error),
            "allowed": number(r.allowed),
            "ok": r.ok,
            "where": r.where,
        }
        for r in results
    ]
    return {
        "model": str(model),
        "device": str(device),
        "ok": all(r.ok for r in results),
        "results": rows,
        "notes": notes,
    }


def _show(title: str, results: list[Result], notes: list[str]) -> None:
    verdict = {True: "ok", False: "FAIL"}
    rows = [
        (r.check, r.backend, r.dtype, f"{r.error:.2e}", f"{r.allowed:.2e}", verdict[r.ok], r.where)
        for r in results
    ]
    tables.show(title, ("check", "backend", "dtype", "error", "allowed", "verdict", "where"), rows)
    for note in notes:
        print(f"not checked: {note}")
    failed = sum(not r.ok for r in results)
    count = len(results)
    print(f"{failed} of {count} checks FAILED" if failed else f"all {count} checks hold")
