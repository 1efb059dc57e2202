"""How fast is each engine on this machine?

    python benchmarks/run.py models                        all workloads, bf16, 2 threads
    python benchmarks/run.py models --workloads 8x128 1x2048 --seconds 5
    python benchmarks/run.py memory                        peak memory at 2048, 4096 and 8192 tokens

ModernBERT-base's shape with random weights; the same weights, dtype, threads and inputs for
everyone. A contender is timed only if its output on that very workload passes the accuracy check.
The last line of output is JSON.
"""

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path


def accuracy(outputs: dict, oracle, baseline: str) -> dict[str, str | None]:
    """Why an output is not good enough: error against the baseline's own fp32 run above 3x that of
    the baseline, in the largest or the RMS.
    """
    errors = {name: (x.float() - oracle).abs() for name, x in outputs.items()}
    verdicts = {}
    for name, error in errors.items():
        largest = error.max() / errors[baseline].max()
        rms = error.square().mean().sqrt() / errors[baseline].square().mean().sqrt()
        good = outputs[name].isfinite().all() and largest <= 3 and rms <= 3
        verdicts[name] = None if good else f"error {largest:.1f}x (rms {rms:.1f}x) the baseline's"
    return verdicts


def flops(config, lengths: tuple[int, ...]) -> int:
    """Floating-point operations of the encoder for its real tokens, from the ops' own costs."""
    from encoder_fast.kernels import attention, linear, mlp

    T, W, H, D = sum(lengths), config.hidden_size, config.num_heads, config.head_width
    total = 0
    for layer in config.plan:
        total += linear.cost(T, W, 3 * W, 2).flops + linear.cost(T, W, W, 2).flops
        total += attention.cost(lengths, layer.half_window, H, D, 2).flops
        total += mlp.cost(T, W, config.intermediate_size, config.gated_mlp, 2).flops
    return total


def one_workload(workload, calls: dict, oracle_call, options) -> dict:
    """Check, race and report one workload."""
    from contenders import BASELINE
    from timing import CONTROL_FLOPS, Control, race

    ids, mask = workload.padded(options.config.vocab_size, options.config.pad_token_id)
    real = mask.bool()
    outputs = {name: call(ids, mask)[real] for name, call in calls.items()}
    verdicts = accuracy(outputs, oracle_call(ids, mask)[real], BASELINE)
    del outputs
    timed = {n: (lambda c=c: c(ids, mask)) for n, c in calls.items() if verdicts[n] is None}
    result = race(timed, Control(options.torch_dtype), options.seconds, options.rounds)
    roof = CONTROL_FLOPS / statistics.median(c for controls in result.controls for c in controls)
    print(
        f"\n{workload.name}: {len(workload.lengths)} texts, {workload.tokens} real tokens, "
        f"{ids.numel()} slots; {len(result.steady())} of {len(result.controls)} rounds steady"
    )
    rows = {}
    for name in calls:
        if verdicts[name] is not None:
            print(f"  {name:22s} not timed: {verdicts[name]}")
            continue
        seconds, ratios = result.median_seconds(name), result.ratios(name, BASELINE)
        part = flops(options.config, workload.lengths) / seconds / roof
        rows[name] = {
            "ms": seconds * 1e3,
            "tokens_per_s": workload.tokens / seconds,
            "roof": part,
            "ratio": statistics.median(ratios) if ratios else None,
            "ratios": ratios,
        }
        ratio = "no ratio: no steady round"
        if ratios:
            low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
            ratio = f"{statistics.median(ratios):5.2f}x [{low:.2f} to {high:.2f}]"
        print(
            f"  {name:22s} {seconds * 1e3:9.1f} ms {workload.tokens / seconds:8.0f} tokens/s "
            f"{part:5.0%} of the matmul roof   {ratio}"
        )
    return rows


def known(option: str, given: list[str], allowed: dict) -> None:
    """Exit with one sentence if a name is not known."""
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        sys.exit(f"{option}: got {unknown}, allowed are {list(allowed)}")


def models(options) -> dict:
    """Every workload for every contender that can take part."""
    import torch
    from contenders import BASELINE, CONTENDERS, OURS, modernbert_base_folder
    from workloads import WORKLOADS

    import encoder_fast as ef

    known("--workloads", options.workloads, WORKLOADS)
    known("--contenders", options.contenders, CONTENDERS)
    torch.set_num_threads(options.threads)
    options.torch_dtype = getattr(torch, options.dtype)
    report = {}
    with tempfile.TemporaryDirectory() as scratch, torch.inference_mode():
        folder = modernbert_base_folder(Path(scratch))
        model = ef.load(folder, dtype=options.torch_dtype, backend="torch")
        options.config = model.config
        options.ops = {op: entry["runs"] for op, entry in ef.backends(model).items()}
        del model
        calls = {}
        for name in options.contenders or (OURS, BASELINE):
            reason = CONTENDERS[name].why_not()
            if reason:
                print(f"{name}: not run, {reason}")
            else:
                calls[name] = CONTENDERS[name].build(folder, options.torch_dtype)
        if BASELINE not in calls:
            sys.exit(f"{BASELINE} is what ratios refer to, and it cannot run")
        oracle = CONTENDERS[BASELINE].build(folder, torch.float32)
        for name in options.workloads or WORKLOADS:
            report[name] = one_workload(WORKLOADS[name], calls, oracle, options)
    return report


def memory(options) -> dict:
    """Peak memory by contender and length."""
    import memory as probe
    from contenders import BASELINE, CONTENDERS, OURS, modernbert_base_folder

    known("--contenders", options.contenders, CONTENDERS)
    if probe.why_not():
        sys.exit(f"memory: {probe.why_not()}")
    report = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = modernbert_base_folder(Path(scratch))
        for name in options.contenders or (OURS, BASELINE):
            if CONTENDERS[name].why_not():
                print(f"{name}: not run, {CONTENDERS[name].why_not()}")
                continue
            for tokens in (2048, 4096, 8192):
                found = probe.in_process_of_its_own(name, folder, tokens, options)
                report[f"{name} 1x{tokens}"] = found
                print(
                    f"{name:22s} 1x{tokens:<5d} one forward adds {found['added_mib']:7.0f} MiB, "
                    f"process peak {found['peak_mib']:7.0f} MiB",
                    flush=True,
                )
    return report


def commit() -> str | None:
    """Commit of this tree, with a mark if files differ from it; None outside git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or None


def environment() -> dict:
    """What the numbers were measured on."""
    import torch

    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [x.split(":")[1].strip() for x in cpu.splitlines() if x.startswith("model name")]
    flags = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in cpu.split()]
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers") if find_spec("transformers") else None,
        "flags": flags,
        "cpu": names[0] if names else platform.processor(),
        "machine": platform.machine(),
    }


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    sys.stdout.reconfigure(line_buffering=True)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=("models", "memory"))
    parser.add_argument("--workloads", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--contenders", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20, help="time for each workload")
    parser.add_argument("--rounds", type=int, default=3, help="least rounds of each workload")
    options = parser.parse_args()
    print(environment())
    report = {"models": models, "memory": memory}[options.suite](options)
    settings = {"dtype": options.dtype, "threads": options.threads}
    if options.suite == "models":
        settings["encoder_fast ops"] = options.ops
    print(json.dumps({"environment": environment(), "settings": settings, "results": report}))


if __name__ == "__main__":
    main()
