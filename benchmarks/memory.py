"""Peak memory of one forward: growth of the process's peak resident size, in a process of its own
for each contender.
"""

import json
import subprocess
import sys
from pathlib import Path

MIB = 2**20


def why_not() -> str | None:
    """Linux tells and resets the peak; elsewhere there is no exact number."""
    return None if Path("/proc/self/clear_refs").exists() else "needs Linux's /proc/self/clear_refs"


def _status(name: str) -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name))
    return int(line.split()[1]) * 1024


def measure(contender: str, folder: str, tokens: int, dtype: str, threads: int) -> dict[str, float]:
    """Run in a fresh process: MiB that one forward of `tokens` adds, and the process's whole
    peak.
    """
    import torch
    from contenders import CONTENDERS

    torch.set_num_threads(threads)
    with torch.inference_mode():
        call = CONTENDERS[contender].build(Path(folder), getattr(torch, dtype))
        ids = torch.randint(5, 50_000, (1, tokens), generator=torch.Generator().manual_seed(0))
        mask = torch.ones_like(ids)
        call(ids[:, :64], mask[:, :64])
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        call(ids, mask)
        return {"added_mib": (_status("VmHWM") - before) / MIB, "peak_mib": _status("VmHWM") / MIB}


def in_process_of_its_own(contender: str, folder: Path, tokens: int, options) -> dict[str, float]:
    """`measure` in a child."""
    arguments = [contender, str(folder), str(tokens), options.dtype, str(options.threads)]
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    name, folder, tokens, dtype, threads = sys.argv[1:]
    print(json.dumps(measure(name, folder, int(tokens), dtype, int(threads))))
