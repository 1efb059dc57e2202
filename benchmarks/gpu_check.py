"""Everything a GPU has to say, in under ten minutes: build, tests, tuning, benchmarks.

    python benchmarks/gpu_check.py --out bench-output/gpu-check
    python benchmarks/gpu_check.py --dry-run      the same steps, tiny, on a machine without a GPU

Runs in a checkout, before or after encoder_fast is installed there. A step that fails or outlasts
its time does not stop the later ones. OUT/gpu-check.json is written after every step, also when the
run is interrupted; each step's output is in OUT/NAME.log. The search writes the kernels' launch
table into the checkout; the JSON holds a copy.
"""

# Only the standard library: the first step installs the package.
import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAUNCH_TABLE = ROOT / "kernels" / "_launch_table.py"
GRACE_S = 8.0
"""Between the interrupt, on which benchmarks and pytest report what they have, and the kill."""
LEAST_S = 3.0
"""A step is not begun with less time."""
HEARTBEAT_S, TAIL_LINES = 20.0, 60

OPS = "tests/test_ops.py tests/test_attention.py"
MODELS = " ".join(
    f"tests/test_{name}.py" for name in ("architectures", "invariance", "packing", "heads")
)
TEST = "{python} -I -u -m pytest -q -p no:cacheprovider --device {device}"
TUNE = "{python} -I -u -m encoder_fast.benchmarks.tune --device {device}"
BENCH = "{python} -I -u -m encoder_fast.benchmarks.run {name} --name {name} --out {out}"
BENCH += " --device {device}"
INSTALL = "{python} -I -u -m pip install --no-deps --no-build-isolation -e ."
IMPORT = """{python} -I -c "import encoder_fast, encoder_fast.kernels; print(encoder_fast)" """
OURS = "'encoder_fast torch' 'encoder_fast torch compiled' 'encoder_fast text'"
TINY = "--no-memory --seconds 0.1 --rounds 1 --dtype float32"
PEERS = "'transformers sdpa' 'transformers flash-attn 2' 'transformers compiled'"


@dataclass(frozen=True)
class Step:
    """One child process.

    `command` and `rehearsal`, its stand-in for a machine without a GPU, may hold {name}, {python},
    {device}, {out} and {seconds}, half of the step's time. A step gets `share` out of the sum of
    its own and all later shares of the time that is left. If a `vital` step fails, those after it
    are skipped.
    """

    name: str
    share: float
    command: str
    rehearsal: str
    vital: bool = False


STEPS = (
    # The rehearsal prepares the installation and leaves the environment alone.
    Step("build", 50, INSTALL, f"{INSTALL} --dry-run"),
    Step("import", 20, IMPORT, IMPORT, vital=True),
    Step("op-tests", 100, f"{TEST} {OPS}", f"{TEST} {OPS} -k 'ragged and float16'"),
    Step("model-tests", 100, f"{TEST} {MODELS}", f"{TEST} {MODELS} -k 'BE and torch'"),
    Step("tune", 80, f"{TUNE} --seconds {{seconds}}", f"{TUNE} --dry-run --most 2 --seconds 1"),
    Step("ops", 80, f"{BENCH} --quick", f"{BENCH} --quick {TINY}"),
    Step(
        "models",
        150,
        f"{BENCH} --no-memory --seconds 5 --contenders {OURS} {PEERS} "
        "--models modernbert-base minilm-l6 --workloads 8x512 mixed-8192 1x8192",
        f"{BENCH} {TINY} --contenders 'encoder_fast torch' 'transformers sdpa' "
        "--models minilm-l6 --workloads 1x32",
    ),
    Step(
        "finetune",
        60,
        f"{BENCH} --quick --seconds 5",
        f"{BENCH} {TINY} --models minilm-l6 --workloads 1x32",
    ),
)

_PROBE = """
import importlib.util as u, json, platform, torch
found = {"python": platform.python_version(), "torch": torch.__version__, "gpu": None}
found |= {"triton": __import__("triton").__version__ if u.find_spec("triton") else None}
if torch.cuda.is_available():
    p = torch.cuda.get_device_properties(0)
    found |= {"gpu": p.name, "capability": f"{p.major}.{p.minor}", "cuda": torch.version.cuda}
print(json.dumps(found))
"""


class Stopped(BaseException):
    """The run itself was told to end."""


def _stop(number, frame):
    # Once is enough: a second one must not disturb the ending of a step's processes.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(signal.Signals(number).name)


def _said(*command: str) -> str | None:
    """What a command prints, or None if it cannot run."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def environment() -> dict:
    """What the numbers were measured on; {"gpu": None, ...} without a GPU or without torch."""
    probed = _said(sys.executable, "-I", "-c", _PROBE)
    found = json.loads(probed) if probed else {"torch": None, "gpu": None}
    nvcc = _said("nvcc", "--version")
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return found | {
        "driver": _said(*query),
        "nvcc": nvcc and nvcc.splitlines()[-1],
        "commit": _said("git", "describe", "--always", "--dirty"),
    }


def _end(child: subprocess.Popen, grace_s: float) -> None:
    """Interrupt a step's processes, and kill those that do not heed it in time."""
    for number, wait_s in ((signal.SIGINT, grace_s), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(wait_s)


def _wait(child: subprocess.Popen, name: str, seconds: float) -> bool:
    """True when it ended, False when time was up; a sign of life now and then."""
    started = time.monotonic()
    while (left := started + seconds - time.monotonic()) > 0:
        try:
            child.wait(min(left, HEARTBEAT_S))
            return True
        except subprocess.TimeoutExpired:
            passed = time.monotonic() - started
            print(f"    {name}: {passed:.0f} of at most {seconds:.0f} s", flush=True)
    return child.poll() is not None


def counts(text: str) -> dict[str, int] | None:
    """Passed, failed, ... tests by what pytest printed; None if it did not come to its summary."""
    for line in reversed(text.splitlines()):
        if re.search(r"\bin \d+\.\d+s\b", line):
            found = re.findall(r"(\d+) (passed|failed|skipped|deselected|errors?)\b", line)
            zeros = dict.fromkeys(("passed", "failed", "skipped", "errors"), 0)
            return zeros | {"errors" if n == "error" else n: int(c) for c, n in found}
    return None


def run_step(limit_s: float, log: Path, record: dict) -> None:
    """Run a record's command within `limit_s`, its end included, and fill in the record."""
    grace_s = min(GRACE_S, limit_s / 4)
    started = time.monotonic()
    record |= {"status": "failed", "reason": "interrupted", "limit_s": round(limit_s, 1)}
    try:
        with log.open("wb") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            child = subprocess.Popen(record["command"], cwd=ROOT, start_new_session=True, **streams)
            try:
                ended = _wait(child, record["name"], limit_s - grace_s)
            finally:
                _end(child, grace_s)
        code = record["returncode"] = child.returncode
        if not ended:
            record |= {"status": "timeout", "reason": f"not done in {limit_s - grace_s:.0f} s"}
        elif code == 0:
            record |= {"status": "ok", "reason": None}
        else:
            record["reason"] = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    except OSError as error:
        record["reason"] = f"did not start: {error}"
    finally:
        record["seconds"] = round(time.monotonic() - started, 1)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        record["tail"] = text.splitlines()[-TAIL_LINES:]
        record["tests"] = counts(text) if "pytest" in record["command"] else None


def run_steps(
    steps: tuple[Step, ...], values: dict, dry_run: bool, minutes: float, result: dict
) -> None:
    """Run the steps one after the other; `result` is kept whole and on disk all the time."""
    end = time.monotonic() + 60 * minutes
    out, blocked = Path(values["out"]), None
    for number, (step, record) in enumerate(zip(steps, result["steps"], strict=True)):
        left = end - time.monotonic()
        shares = sum(later.share for later in steps[number:])
        limit_s = left * step.share / shares
        if blocked or limit_s < LEAST_S:
            record["reason"] = blocked or "no time left"
            print(f"[{number + 1}/{len(steps)}] {step.name}: skipped, {record['reason']}")
            continue
        given = values | {"name": step.name, "seconds": f"{limit_s / 2:.0f}"}
        template = step.rehearsal if dry_run else step.command
        record["command"] = [part.format_map(given) for part in shlex.split(template)]
        print(
            f"[{number + 1}/{len(steps)}] {step.name}: {shlex.join(record['command'])}", flush=True
        )
        try:
            run_step(limit_s, out / record["log"], record)
        finally:
            _print_outcome(record)
            save(result, out)
        if step.vital and record["status"] != "ok":
            blocked = f"step {step.name} did not succeed"


def _print_outcome(record: dict) -> None:
    tests = record["tests"] and ", ".join(f"{n} {name}" for name, n in record["tests"].items())
    said = [record["status"], f"{record['seconds']:.0f} s", record["reason"], tests]
    print("    " + ", ".join(part for part in said if part), flush=True)
    if record["status"] != "ok":
        print("\n".join(f"    | {line}" for line in record["tail"][-25:]), flush=True)


def save(result: dict, out: Path) -> None:
    """Write the JSON, wholly or not at all."""
    result["launch_table"] = LAUNCH_TABLE.read_text(encoding="utf-8")
    temporary = out / "gpu-check.json.part"
    temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, out / "gpu-check.json")


def check(args: argparse.Namespace, found: dict) -> int:
    """All steps -> exit status."""
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    records = [
        {"name": step.name, "status": "skipped", "reason": "not reached", "seconds": 0.0}
        | {"limit_s": None, "command": None, "returncode": None, "tests": None}
        | {"log": f"{step.name}.log", "tail": []}
        for step in STEPS
    ]
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    result = {"kind": "gpu-check", "dry_run": args.dry_run, "date": date, "interrupted": None}
    result |= {"seconds": None, "environment": found, "steps": records}
    save(result, out)
    started = time.monotonic()
    values = {"python": sys.executable, "out": str(out)}
    values["device"] = "cpu" if args.dry_run else "cuda"
    try:
        run_steps(STEPS, values, args.dry_run, args.minutes, result)
    except Stopped as stopped:
        result["interrupted"] = str(stopped)
    finally:
        result["seconds"] = round(time.monotonic() - started, 1)
        save(result, out)
    print(" ".join(f"{r['name']}={r['status']}" for r in records), out / "gpu-check.json", sep="\n")
    if result["interrupted"]:
        return 130
    return int(any(record["status"] != "ok" for record in records))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="gpu_check.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--dry-run", action="store_true", help="every step on the CPU, tiny, writing no table")
    add("--out", type=Path, default=Path("bench-output/gpu-check"), metavar="DIR")
    add("--minutes", type=float, default=9.5, help="for everything together (default 9.5)")
    args = parser.parse_args(arguments)
    if not (ROOT / "setup.py").is_file():
        print("gpu_check.py: needs a checkout: it runs the tests", file=sys.stderr)
        return 2
    started = time.monotonic()
    # Handled, not ignored, from here on: then children start with the default and can be told too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        found = environment()
        if not found["gpu"] and not args.dry_run:
            print("gpu_check.py: no GPU that torch can use; --dry-run needs none", file=sys.stderr)
            return 2
        args.minutes -= (time.monotonic() - started) / 60
        return check(args, found)
    except Stopped:
        return 130


if __name__ == "__main__":
    sys.exit(main())
