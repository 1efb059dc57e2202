"""Copies of the tree, and processes that build and run them, for the tests of packaging."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONTENTS = ("encoder_fast", "kernels", "csrc", "benchmarks", "tests")


def clean_environment(**changes: str) -> dict[str, str]:
    """This process's environment without what could point Python or a compiler elsewhere."""
    dropped = {"PYTHONPATH", "PYTHONHOME", "CC", "CXX", "CUDA_HOME", "ENCODER_FAST_BUILD"}
    return {key: value for key, value in os.environ.items() if key not in dropped} | changes


def run(command: list[str], cwd: Path, **changes: str) -> str:
    """Standard output of a command that must succeed; the test fails with all it printed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=clean_environment(**changes),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{' '.join(command)[:300]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def python(code: str, cwd: Path, **changes: str) -> str:
    return run([sys.executable, "-c", code], cwd, **changes)


def copy_of_tree(tree: Path) -> Path:
    """The tree as it would be committed, copied to `tree`."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", "build")
    for folder in CONTENTS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, tree)
    return tree
