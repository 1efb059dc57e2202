"""Peak memory of one run: how far the resident size of a process that holds one engine grows.

Standalone: the worker also loads this file by its path, where encoder_fast is not installed.
"""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

MIB = 2**20
_PROC = Path("/proc/self")


def why_not(device: str = "cpu") -> str | None:
    """Linux tells and resets the peak; elsewhere there is no exact number on a CPU."""
    if device.startswith("cuda") or (_PROC / "clear_refs").exists():
        return None
    return "needs Linux's /proc/self/clear_refs"


def settled(device: str = "cpu") -> int:
    """Bytes in use now, after what is free went back to the system.

    On a CPU the resident size of this process, on CUDA what torch's allocator has given out.
    """
    gc.collect()
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)
        return torch.cuda.memory_allocated(device)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    # musl has no malloc_trim and gives memory back by itself.
    if trim is not None:
        trim(0)
    return _status("VmRSS:")


def measure(call: Callable[[], object], base: int, device: str = "cpu") -> dict[str, float]:
    """MiB of one `call`, its result included.

    Args:
        base: bytes before, from `settled` after a short run.

    Returns:
        "added_mib", the peak beyond `base`, and "peak_mib", the peak itself.
    """
    settled(device)
    peak = _cuda_peak(call, device) if device.startswith("cuda") else _resident_peak(call)
    return {"added_mib": (peak - base) / MIB, "peak_mib": peak / MIB}


def _resident_peak(call: Callable[[], object]) -> int:
    # 5 sets the peak to the present size: proc(5).
    (_PROC / "clear_refs").write_text("5", encoding="ascii")
    call()
    return _status("VmHWM:")


def _cuda_peak(call: Callable[[], object], device: str) -> int:
    import torch

    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


def _status(name: str) -> int:
    lines = (_PROC / "status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024
