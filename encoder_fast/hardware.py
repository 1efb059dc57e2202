"""What this machine is, read without starting anything: no GPU context, no subprocess."""

import os
import platform
from pathlib import Path

# The x86 and ARM flags that decide which kernels can run, slowest first.
KERNEL_FLAGS = (
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "asimd",
    "asimdhp",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
)
_BF16_MATMUL = ("amx_bf16", "avx512_bf16", "bf16")


def cpu_info() -> tuple[str, set[str]]:
    """(name, set of flags); the flags are empty where the system does not list them."""
    name, flags = platform.processor() or platform.machine(), set()
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return name, flags
    for line in path.read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip().lower() in ("flags", "features"):
            flags = set(value.split())
            break
    return name, flags


def kernel_flags() -> list[str]:
    """Names of `KERNEL_FLAGS` that this CPU has."""
    _, flags = cpu_info()
    return [flag for flag in KERNEL_FLAGS if flag in flags]


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int | None:
    """Physical memory, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def gpus() -> list[dict]:
    """One {name, memory_bytes, capability} for each CUDA device that torch sees."""
    import torch

    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = f"{properties.major}.{properties.minor}"
        found.append(
            {
                "name": properties.name,
                "memory_bytes": properties.total_memory,
                "capability": capability,
            }
        )
    return found


def usable_device(device):
    """A torch device from its name; ValueError where this machine cannot compute on it."""
    import torch

    try:
        found = torch.device(device)
        torch.empty(1, device=found).cpu()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = " ".join(str(error).split("\n")[0].split())
        raise ValueError(f"device: got {device!r}, not usable here: {reason}") from None
    return found


def fastest_dtype(device) -> tuple[str, str]:
    """Name of the smallest dtype that `device` multiplies natively -> (name, reason)."""
    import torch

    device = torch.device(device)
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major >= 8:
            return "bfloat16", f"compute capability {major}.{minor} multiplies bfloat16"
        if major == 7:
            return "float16", f"compute capability {major}.{minor} multiplies float16 only"
        return "float32", f"compute capability {major}.{minor} has no 16-bit matrix units"
    if device.type != "cpu":
        return "float32", f"nothing is known about {device.type}"
    _, flags = cpu_info()
    found = next((flag for flag in _BF16_MATMUL if flag in flags), None)
    if found:
        return "bfloat16", f"this CPU has {found}"
    return "float32", "this CPU multiplies no 16-bit floats"
