"""Gives pytest the options and records of bench_ops.py, which are in op_plugin.py."""

import os
import sys
from pathlib import Path

# `python -m pytest` puts the working folder first: in a checkout, kernels/ would then hide Hugging
# Face's package of that name.
ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != ROOT]

from encoder_fast.benchmarks.op_plugin import (  # noqa: E402, F401
    pytest_addoption,
    pytest_configure,
    pytest_runtest_makereport,
)
