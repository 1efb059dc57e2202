"""The door to the native CPU engine, the extension module `encoder_fast._C` built from csrc/.

An install without it is a working one: the `torch` backend serves. Then `C` is None and `missing`
says why. The engine holds one tier of kernels for each family of instruction sets and takes the
best one that this machine runs, or the one that the environment variable ENCODER_FAST_CPU_ISA
names; that is read once, by the engine, when the first model is built.
"""

import contextlib
import importlib
import warnings
from collections.abc import Iterator
from types import ModuleType

# Before the extension: torch's copy of the OpenMP library then serves both, with one pool of
# threads.
import torch
from torch.autograd import forward_ad

from encoder_fast._version import __version__

HOW_TO_GET_IT = (
    "install a C++ compiler (g++ 12 or newer) and Python's headers, then reinstall encoder_fast "
    "with ENCODER_FAST_BUILD=cpu in the environment: it builds the engine or says what is wrong"
)

_warned = False


def _load() -> tuple[ModuleType | None, str | None]:
    """The extension, or None and what is wrong with it."""
    name = "encoder_fast._C"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            return None, f"{name} is broken: {error}"
        return None, "encoder_fast was installed without its native CPU engine"
    except (ImportError, OSError) as error:
        return None, f"{name} is broken: {' '.join(str(error).split())}"
    built = getattr(module, "__version__", "unknown")
    if built != __version__:
        return None, f"{name} is of version {built}, the rest of encoder_fast of {__version__}"
    return module, None


C, problem = _load()
missing = problem and f"{problem}; {HOW_TO_GET_IT}"


def autocast_dtype() -> torch.dtype | None:
    """What autocast multiplies in on a CPU; None where it is off."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def serves() -> bool:
    """Is the engine here, and is this a plain eager call? Traced graphs, dispatch modes, autocast
    to other dtypes than bf16, forward-mode gradients and function transforms need to see torch's
    own operations.
    """
    if C is None or torch.compiler.is_compiling():
        return False
    if autocast_dtype() not in (None, torch.bfloat16):
        return False
    if torch._C._get_tracing_state() is not None or torch._C._len_torch_dispatch_stack():
        return False
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return not transformed and getattr(forward_ad, "_current_level", -1) < 0


def tiers() -> list[str]:
    """Tiers that this machine can run, best first; `amx_emulated`, for tests, last."""
    return C.tiers() if C else []


def tier() -> str | None:
    """The tier in use, None without the extension.

    Raises:
        ValueError: ENCODER_FAST_CPU_ISA names none that can run here.
    """
    return C.tier() if C else None


def has_int8() -> bool:
    """Has the tier in use int8 products?"""
    return C is not None and C.has_int8()


def has_by_3() -> bool:
    """Does the tier in use multiply fp32 numbers by three bf16 products each, on a matrix unit?"""
    return C is not None and C.has_by_3()


@contextlib.contextmanager
def use_tier(name: str) -> Iterator[None]:
    """Runs the kernels of another tier, in all threads; for tests.

    Raises:
        ValueError: this machine cannot run it.
    """
    before = tier()
    if C is None:
        raise ValueError(f"tier: got {name!r}, but {missing}")
    C.use_tier(name)
    try:
        yield
    finally:
        C.use_tier(before)


def check(warn: bool) -> None:
    """For a new model on a CPU.

    Args:
        warn: say, once in a process, that it has to do without the engine.

    Raises:
        ValueError: ENCODER_FAST_CPU_ISA names a tier that cannot run here.
    """
    global _warned
    if C:
        tier()
    elif warn and not _warned:
        _warned = True
        warnings.warn(f"slower than it could be: {missing}", stacklevel=2)
