"""What the contenders that run in torch have in common."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch

from encoder_fast.benchmarks import models
from encoder_fast.benchmarks.engine import Ready, Task
from encoder_fast.checkpoint import read_json
from encoder_fast.hardware import usable_device
from encoder_fast.kernels.dispatch import BackendError, Request, resolve, why_not

COMPLETE = ("native", "torch", "reference")
"""Backends of ours that have every op."""


def asked_for(backend: str) -> str:
    """What a model is built with to time a backend. One that lacks ops is timed as people get it:
    by `auto`, which fills the gaps with torch. What ran each op is in the record.
    """
    return backend if backend in COMPLETE else "auto"


def backend_why_not(task: Task, backend: str) -> str | None:
    """Why a backend of ours cannot run the model of `task`: its own words."""
    config = models.config_of(read_json(task.folder / "config.json"))
    device = torch.device(task.device)
    request = Request(device, task.torch_dtype, config.head_width, config.hidden_size)
    try:
        chosen = resolve(asked_for(backend), request).chosen
    except BackendError as error:
        return str(error)
    if backend in COMPLETE or backend in chosen.values():
        return None
    reasons = dict.fromkeys(
        reason for op in chosen if (reason := why_not(op, backend, request)) is not None
    )
    return f"{backend} runs no op of this model: {'; '.join(reasons) or 'others came first'}"


def torch_why_not(task: Task) -> str | None:
    """Why plain torch cannot take part."""
    if task.dtype == "int8":
        return "computes in the float dtypes of torch, not int8"
    try:
        usable_device(task.device)
    except ValueError as error:
        return str(error)
    return None


def compiled_why_not(task: Task) -> str | None:
    """Why torch.compile cannot take part: what it makes must itself be compiled here."""
    if reason := torch_why_not(task):
        return reason
    return no_compiler(task.device)


def no_compiler(device: str) -> str | None:
    """What torch.compile lacks on a device, or None."""
    if torch.device(device).type != "cpu":
        return installed("triton")
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        return f"torch.compile needs a C++ compiler on a CPU; {compiler} is not here"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "torch.compile needs Python's headers on a CPU; Python.h is not here"
    return None


def installed(*packages: str) -> str | None:
    """None, or which of `packages` is missing."""
    missing = [name for name in packages if find_spec(name) is None]
    names = " ".join(name.replace("_", "-") for name in missing)
    return f"not installed: pip install {names}" if missing else None


def quiet_transformers() -> None:
    """Its bars and notes about loading would break the line that tells the progress, and fill a
    log. Called before a model is loaded, because importing transformers takes seconds.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


@contextmanager
def compiling(**inductor: object) -> Iterator[None]:
    """Where torch.compile may compile, with these settings of inductor.

    After eight graphs of one function torch would stop compiling it without an error; here every
    model, dtype and shape is one more.
    """
    # Slow to import, and of no use to other contenders.
    from torch._dynamo import config as dynamo_config
    from torch._inductor import config as inductor_config

    limits = {"recompile_limit": 10_000, "accumulated_recompile_limit": 10_000}
    with dynamo_config.patch(limits), inductor_config.patch(inductor):
        yield


def compiled_now(ready: Ready, calls: int = 2, **inductor: object) -> Ready:
    """`ready` after enough calls that no later one compiles, so that none of it is timed."""
    with compiling(**inductor):
        for _ in range(calls):
            ready.call()
    return ready
