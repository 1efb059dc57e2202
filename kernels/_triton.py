"""The door to the `triton` backend: what it needs, and its kernels, imported when first used.

An install without Triton works. `import encoder_fast` does not import it: that takes as long as
torch's own import of a small package (0.2 s), for machines that may have no GPU.

With TRITON_INTERPRET=1 in the environment before Triton is imported, kernels run on CPU tensors,
one program after the other, thousands of times slower: for tests, never chosen by `auto`.
"""

import contextlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

OLDEST = (3, 6)
"""Triton's version: tensor descriptors and the launch interface that the kernels are written for.
Proven with 3.6, 3.7 and 3.9 (`make prove`)."""
LEAST_CAPABILITY = (8, 0)
"""Ampere: the first with bfloat16 matrix units and asynchronous copies."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDEST_HEAD = 256


def interpreted() -> bool:
    """Do kernels run in Triton's interpreter?"""
    triton = sys.modules.get("triton")
    return triton is not None and triton.knobs.runtime.interpret


@cache
def problem() -> str | None:
    """Why Triton itself cannot be used, whatever the device; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install 'encoder-fast[gpu]'"
    try:
        version = importlib.import_module("triton").__version__
    except (ImportError, OSError, AttributeError) as error:
        return f"triton is broken: {' '.join(str(error).split())}"
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        return f"triton: got version {version}, {OLDEST[0]}.{OLDEST[1]} or newer needed"
    return None


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a CUDA device."""
    return torch.cuda.get_device_capability(device)


@cache
def multiprocessors(device: torch.device) -> int:
    """Of a CUDA device; 4 in the interpreter, so that persistent kernels take several tiles."""
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


def why_not(request) -> str | None:
    """Why the kernels cannot serve a `dispatch.Request`; None if they can."""
    device = request.device
    if device.type != "cuda" and not (device.type == "cpu" and interpreted()):
        return f"device: got {device}, a CUDA device needed"
    if request.dtype not in DTYPES:
        return f"dtype: got {request.dtype}, allowed are {DTYPES}"
    if device.type == "cuda" and torch.version.hip:
        return "device: got an AMD GPU, where the kernels were never run"
    if device.type == "cuda" and capability(device) < LEAST_CAPABILITY:
        found = ".".join(map(str, capability(device)))
        return f"device: got compute capability {found}, 8.0 or newer needed"
    return problem()


def why_not_attention(request) -> str | None:
    """As `why_not`, for attention."""
    if request.head_width > WIDEST_HEAD:
        return f"head width: got {request.head_width}, allowed are 1 to {WIDEST_HEAD}"
    return why_not(request)


class Lazy:
    """A function of a kernels module, which is imported at the first call or by `load`."""

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name

    def load(self) -> Callable:
        module = importlib.import_module(f"encoder_fast.kernels.{self.module}")
        return getattr(module, self.name)

    def __call__(self, *args, **kwargs) -> Any:
        return self.load()(*args, **kwargs)


@contextlib.contextmanager
def on_device_of(x: Tensor) -> Iterator[None]:
    """Kernels launched here run where `x` lies, on that device's current stream: Triton takes the
    current device, whatever the tensors'.
    """
    if x.device.type != "cuda" or x.device.index == torch.cuda.current_device():
        yield
    else:
        with torch.cuda.device(x.device):
            yield


def traced() -> bool:
    """Must a call go through registered operators? A graph is being traced, or a mode or transform
    wants to see each operation.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    if torch._C._get_tracing_state() is not None:
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None


def autocast(*tensors: Tensor | None) -> list[Tensor | None]:
    """Inputs of a product: in the dtype of autocast where that is on."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [None if x is None else x.to(dtype) for x in tensors]


_LIBRARY = torch.library.Library("encoder_fast", "FRAGMENT")


class Operator:
    """A function that launches kernels, registered with torch as `encoder_fast::<name>`.

    A plain eager call runs the function itself: the dispatcher would cost 5 us of host time.

    Args:
        schema: as `torch.library.define` takes it.
        run: on the device of its first tensor argument.
        fake: shapes and dtypes of the results, for tracing.
    """

    def __init__(self, schema: str, run: Callable, fake: Callable):
        self.name = schema.partition("(")[0].strip()

        def guarded(*args):
            first = next(x for x in args if isinstance(x, Tensor))
            with on_device_of(first):
                return run(*args)

        self.run = guarded
        _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CUDA", "CPU"):
            _LIBRARY.impl(self.name, guarded, key)
        torch.library.register_fake(f"encoder_fast::{self.name}", fake, lib=_LIBRARY)
        self.registered = getattr(torch.ops.encoder_fast, self.name)

    def __call__(self, *args):
        return (self.registered if traced() else self.run)(*args)
