"""`encoder-fast doctor`: what is installed, what this machine is, what runs and what is missing.

Nothing here may stop the report: an optional package that is broken can raise anything on import.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import platform
import sys
import warnings

from encoder_fast import hardware
from encoder_fast.commands import tables

# (module, name on the package index, what it is for, how to get it)
REQUIRED = (
    ("torch", "torch", "everything", "pip install torch"),
    ("numpy", "numpy", "vectors on the host", "pip install numpy"),
    ("safetensors", "safetensors", "reading weights", "pip install safetensors"),
    ("tokenizers", "tokenizers", "reading texts", "pip install tokenizers"),
    ("huggingface_hub", "huggingface_hub", "models by name", "pip install huggingface_hub"),
    ("rich", "rich", "tables and progress bars", "pip install rich"),
)
OPTIONAL = (
    ("triton", "triton", "torch.compile on a GPU", "pip install 'encoder-fast[gpu]'"),
    ("transformers", "transformers", "comparisons", "pip install 'encoder-fast[hf]'"),
    (
        "sentence_transformers",
        "sentence-transformers",
        "comparisons",
        "pip install 'encoder-fast[hf]'",
    ),
    ("pyarrow", "pyarrow", "embed to .parquet", "pip install pyarrow"),
    ("pytest", "pytest", "the tests", "pip install 'encoder-fast[test]'"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Lists versions, hardware, threads, and for each op the backends and why one cannot run.\n"
        "Exit status 1 where something that every command needs is missing or broken."
    )
    parser.epilog = "example:\n  encoder-fast doctor --json > machine.json"
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    report = collect()
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _show(report)
    return 0 if report["works"] else 1


def collect() -> dict:
    """The report as a dict of plain values."""
    packages = [_package(*row, needed=True) for row in REQUIRED]
    packages += [_package(*row, needed=False) for row in OPTIONAL]
    broken = [p for p in packages if p["needed"] and p["problem"]]
    return {
        "works": not broken,
        "encoder_fast": _attempt(_own_version),
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": packages,
        "machine": _attempt(_machine),
        "threads": _attempt(_threads),
        "native": _attempt(_native),
        "backends": _attempt(_backends),
        "missing": [
            {"what": p["name"], "for": p["for"], "problem": p["problem"], "get": p["get"]}
            for p in [*packages, *_missing_engine()]
            if p["problem"]
        ],
    }


def _package(module: str, name: str, purpose: str, get: str, needed: bool) -> dict:
    """Version of a package, and what is wrong with it: the import is the only test that counts."""
    version = problem = None
    try:
        if importlib.util.find_spec(module) is None:
            problem = "not installed"
        else:
            with _quiet():
                importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # A compiled package may raise SystemExit, ImportError, OSError, a C++ exception, ...
        problem = f"broken: {_one_line(error)}"
    if problem != "not installed":
        with contextlib.suppress(Exception):
            version = importlib.metadata.version(name)
        version = version or str(getattr(sys.modules.get(module), "__version__", "unknown"))
    row = {"name": name, "version": version, "needed": needed, "for": purpose}
    return {**row, "problem": problem, "get": get if problem else None}


@contextlib.contextmanager
def _quiet():
    """Packages print banners and warnings when they are imported; the report may be JSON."""
    sink = io.StringIO()
    out, err = contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink)
    with out, err, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _attempt(part):
    """The part of the report, or {"problem": why there is none}."""
    try:
        return part()
    except Exception as error:
        return {"problem": _one_line(error)}


def _one_line(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _own_version():
    from encoder_fast._version import __version__

    return __version__


def _machine():
    name, _ = hardware.cpu_info()
    memory = hardware.memory_bytes()
    return {
        "cpu": name,
        "cpu_flags": hardware.kernel_flags(),
        "usable_cores": hardware.usable_cores(),
        "memory_gib": memory and round(memory / 2**30, 1),
        "gpus": _attempt(hardware.gpus),
        "cuda_of_torch": _attempt(_cuda_version),
        "dtype_auto": _attempt(_auto_dtype),
    }


def _cuda_version():
    import torch

    return torch.version.cuda or "none: this torch is a CPU build"


def _auto_dtype():
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return f"{device}: {' because '.join(hardware.fastest_dtype(device))}"


def _threads():
    import torch

    from encoder_fast.kernels._native_weights import matmul_precision

    return {
        "torch_threads": torch.get_num_threads(),
        "torch_interop_threads": torch.get_num_interop_threads(),
        "float32_matmul_precision": matmul_precision(),
    }


def _native():
    from encoder_fast.kernels import _native

    if _native.C is None:
        return {"engine": _native.problem}
    # Raises, with the allowed names, where ENCODER_FAST_CPU_ISA is wrong.
    tier = _native.tier()
    return {"engine": _native.C.__version__, "tier": tier, "tiers": _native.tiers()}


def _missing_engine() -> list[dict]:
    """The native engine as a row of `missing`, if it can be asked for at all."""
    try:
        from encoder_fast.kernels import _native
    except Exception:
        return []
    get = _native.HOW_TO_GET_IT
    row = {"name": "encoder_fast._C", "for": "fast models on a CPU", "get": get}
    return [{**row, "problem": _native.problem}]


def _backends():
    """{device: {backend: {op: reason or None}}} for a model 768 wide with heads 64 wide."""
    import torch

    from encoder_fast.kernels import dispatch

    report = {}
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        request = dispatch.Request(torch.device(device), dtype, head_width=64, width=768)
        report[device] = {
            backend: {op: dispatch.why_not(op, backend, request) for op in dispatch.op_tables()}
            for backend in dispatch.BACKENDS
        }
    return report


def _show(report: dict) -> None:
    rows = [("encoder_fast", report["encoder_fast"]), ("python", report["python"])]
    rows += [("system", report["system"])]
    rows += [(p["name"], p["version"] or p["problem"]) for p in report["packages"]]
    tables.show("versions", ("package", "version"), rows)
    for name in ("machine", "threads", "native"):
        tables.show(name, ("what", "value"), [(k, _plain(v)) for k, v in report[name].items()])
    tables.show("backends", ("device", "backend", "op", "runs"), _backend_rows(report["backends"]))
    rows = [(m["what"], m["for"], m["problem"], m["get"]) for m in report["missing"]]
    tables.show("missing", ("package", "used for", "problem", "how to get it"), rows)
    print("all that is needed is here" if report["works"] else "something needed is missing")


def _plain(value):
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    return "unknown" if value is None else str(value)


def _backend_rows(backends):
    if "problem" in backends:
        return [("-", "-", "-", backends["problem"])]
    return [
        # The remedy, after the semicolon, is in the table of what is missing.
        (device, backend, op, "yes" if reason is None else f"no: {reason.split('; ')[0]}")
        for device, names in backends.items()
        for backend, ops in names.items()
        for op, reason in ops.items()
    ]
