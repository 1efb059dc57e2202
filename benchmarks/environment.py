"""What the numbers were measured on, and a limit on memory so that one cell cannot take the run."""

import datetime
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "encoder-fast",
    "torch",
    "triton",
    "transformers",
    "sentence-transformers",
    "onnxruntime",
    "openvino",
    "ctranslate2",
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
    "liger-kernel",
    "quack-kernels",
    "numpy",
)


def commit() -> str | None:
    """Commit of this tree, with a mark if files differ from it; None outside git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


def _command() -> str:
    """What to type to do it again: both ways to start the harness end in the same arguments."""
    words = sys.argv[1:]
    return shlex.join(["encoder-fast", "bench", *(words[1:] if words[:1] == ["bench"] else words)])


def stamp(device: str, threads: int, contenders: tuple[str, ...] = ()) -> dict:
    """The "environment" record.

    Args:
        contenders: who takes part; of one with packages of its own (envs.py) those are listed too.
    """
    import torch

    from encoder_fast import hardware
    from encoder_fast.benchmarks import envs

    cpu, flags = hardware.cpu_info()
    memory = hardware.memory_bytes()
    found = torch.device(device).type == "cuda" and hardware.gpus()
    return {
        "kind": "environment",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": _command(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "flags": [flag for flag in hardware.KERNEL_FLAGS if flag in flags],
        "memory_gib": memory and round(memory / 2**30, 1),
        "gpu": found[0] if found else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: v for name in PACKAGES if (v := _version(name))}
        | {f"{name} in {env}": v for env in contenders for name, v in envs.versions(env).items()},
        "threads": threads,
        "device": device,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def limit_memory() -> None:
    """Let an allocation beyond what the machine has raise, where the system would kill the run.

    Linux only: elsewhere nothing is changed.
    """
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return
    import resource

    lines = dict(line.split(":") for line in meminfo.read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = int(available * 0.95)
    if hard == resource.RLIM_INFINITY or hard > wanted:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
