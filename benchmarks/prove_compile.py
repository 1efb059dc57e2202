"""What a compiled kernel needs of a GPU, and which instructions it is made of."""

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import triton

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
REGISTERS, THREADS, MOST_BLOCKS = 65536, {80: 2048, 86: 1536, 90: 2048, 100: 2048, 120: 1536}, 32
"""Of a multiprocessor."""
SHARED = {80: (164, 163), 86: (100, 99), 90: (228, 227), 100: (228, 227), 120: (100, 99)}
"""KiB of shared memory of a multiprocessor, and the most that one block may have."""
RESERVED = 1024
"""Bytes of shared memory that the system takes in each block."""
COUNTED = (
    *("HGMMA", "HMMA", "UTCHMMA", "UTMALDG", "UTMASTG", "LDGSTS", "MUFU.EX2", "BAR.SYNC"),
    *("LDG.E.128", "LDG", "STG.E.128", "STG", "LDL", "STL", "RED", "ATOM", "ATOMG"),
)


@dataclass(frozen=True)
class Needs:
    """Of one compiled kernel. `spilled` is in bytes; `blocks` fit on a multiprocessor at once;
    `counts` are instructions in the code, each where it occurs."""

    registers: int
    spilled: int
    shared: int
    blocks: int
    counts: dict[str, int]

    def row(self) -> dict:
        return asdict(self)


def _tool(name: str, *arguments: str) -> str:
    done = subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}: {(done.stderr or done.stdout).strip()[:400]}")
    return done.stdout + done.stderr


def _assembled(ptx: str, arch: int, folder: str) -> str:
    """What the assembler says about registers and spills."""
    source = Path(folder) / "kernel.ptx"
    source.write_text(ptx, encoding="utf-8")
    assembler = (
        "ptxas-blackwell" if arch >= 100 and (TOOLS / "ptxas-blackwell").exists() else "ptxas"
    )
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE).group(1)
    return _tool(assembler, "-v", "--gpu-name", target, str(source), "-o", f"{folder}/out.cubin")


def _count(sass: str) -> dict[str, int]:
    """Occurrences of the instructions in `COUNTED`; LDG and STG are those of other widths."""
    found = Counter()
    for line in re.findall(
        r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)", sass, re.MULTILINE
    ):
        name = next((n for n in COUNTED if line == n or line.startswith(n + ".")), None)
        if line.startswith(("LDG.", "STG.")) and ".128" in line:
            name = line[:3] + ".E.128"
        if name:
            found[name] += 1
    return dict(sorted(found.items()))


def needs_of(compiled, arch: int) -> Needs:
    """Registers, spills, shared memory, blocks at once and instructions of a compiled kernel."""
    with tempfile.TemporaryDirectory() as folder:
        said = _assembled(compiled.asm["ptx"], arch, folder)
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        sass = _tool("nvdisasm", "-c", str(cubin))
    registers = int(re.search(r"Used (\d+) registers", said).group(1))
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", said)))
    shared, threads = compiled.metadata.shared, 32 * compiled.metadata.num_warps
    # Registers are given out to warps in units of 256.
    by_warp = -(-registers * 32 // 256) * 256
    fits = REGISTERS // (by_warp * threads // 32), THREADS[arch] // threads, MOST_BLOCKS
    by_shared = SHARED[arch][0] * 1024 // (shared + RESERVED)
    return Needs(registers, spilled, shared, min(*fits, by_shared), _count(sass))
