"""Made-up benchmark records for tests of the report and of the page."""

BASELINE = "transformers sdpa"
ENGINES = {
    "encoder_fast torch": 1.25,
    "encoder_fast compiled": 1.31,
    "encoder_fast text": 1.1,
    BASELINE: 1.0,
    "transformers eager": 0.7,
    "transformers flex": 0.5,
    "transformers compiled": 1.15,
    "sentence-transformers": 0.97,
    "onnxruntime": 0.8,
    "openvino": 1.4,
    "ctranslate2": 0.9,
    "vllm": 0.6,
}
"""Twelve contenders and how many times faster than the baseline they are."""
SHAPES = {"1x32": (1, 32, 32), "8x128": (8, 128, 1024), "search-log": (8, 512, 1000)}
"""Workload -> texts, longest, real tokens."""
ENVIRONMENT = {
    "kind": "environment",
    "date": "2026-12-01T00:10:00+00:00",
    "commit": "a1b2c3d",
    "command": "run.py models --quick",
    "cpu": "Sample CPU <fast> & quiet",
    "cores": 2,
    "flags": ["avx2"],
    "memory_gib": 7.5,
    "gpu": None,
    "python": "3.11.2",
    "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
    "threads": 2,
    "device": "cpu",
}
END = {"kind": "end", "status": "done", "seconds": 12.0}


def timed(contender: str, workload: str, ratio: float = 1.0, **more) -> dict:
    """A record of a contender that ran; `more` wins."""
    texts, longest, tokens = SHAPES[workload]
    seconds = texts * longest / 4000 / ratio
    base = untimed("ok", contender, workload, None)
    return (
        base
        | {
            "texts": texts,
            "longest": longest,
            "tokens": tokens,
            "slots": texts * longest,
            "ms": seconds * 1e3,
            "tokens_per_s": tokens / seconds,
            "slots_per_s": texts * longest / seconds,
            "baseline": BASELINE,
            "ratio": ratio,
            "ratio_low": ratio * 0.97,
            "ratio_high": ratio * 1.04,
            "ratios": [ratio],
            "rounds": 5,
            "steady": 4,
            "roof": 0.5 * ratio,
            "error_largest": 1.1,
            "error_rms": 1.0,
            "cosine": 0.9999,
            "ran": {"attention": "torch", "mlp": "torch"},
            "note": "",
        }
        | more
    )


def unsteady(contender: str, workload: str) -> dict:
    """Timed, but in no steady round."""
    nothing = dict.fromkeys(("ratio", "ratio_low", "ratio_high"))
    return timed(contender, workload, 0.8) | nothing | {"ratios": [], "steady": 0}


def untimed(status: str, contender: str | None, workload: str | None, reason: str | None) -> dict:
    """What any record has: all of one that was refused, failed or skipped."""
    return {
        "kind": "model",
        "model": "modernbert-base",
        "real_weights": False,
        "workload": workload,
        "dtype": "bfloat16",
        "contender": contender,
        "status": status,
        "reason": reason,
    }


def memory(contender: str, workload: str, added: float) -> dict:
    texts, longest, tokens = SHAPES[workload]
    return {
        "kind": "memory",
        "model": "modernbert-base",
        "workload": workload,
        "dtype": "bfloat16",
        "contender": contender,
        "status": "ok",
        "reason": None,
        "added_mib": added,
        "peak_mib": 800 + added,
        "texts": texts,
        "longest": longest,
        "tokens": tokens,
        "slots": texts * longest,
    }


def op(name: str, backend: str, intensity: float, rate: float, **more) -> dict:
    """`intensity` in flops a byte, `rate` in flops per second."""
    return {
        "kind": "op",
        "op": name,
        "backend": backend,
        "dtype": "bfloat16",
        "shape": "8x512 H12 D64 global",
        "pass": "forward",
        "ms": 1e12 / rate,
        "ms_low": 0.98e12 / rate,
        "ms_high": 1.1e12 / rate,
        "flops": 1e9,
        "bytes": 1e9 / intensity,
        "flops_per_s": rate,
        "bytes_per_s": rate / intensity,
        "roof": 0.6,
        "control_s": 0.004,
        "control_before_s": 0.004,
        "control_after_s": 0.004,
        "status": "ok",
        "reason": None,
    } | more


def models(engines: dict[str, float] = ENGINES, workloads=tuple(SHAPES)) -> list[dict]:
    """Everyone on every workload, with memory."""
    found = []
    for workload in workloads:
        for name, ratio in engines.items():
            found.append(timed(name, workload, ratio))
            found.append(memory(name, workload, SHAPES[workload][2] / 50 / ratio))
    return found


def steps() -> list[dict]:
    more = {"kind": "step", "peak_mib": 3000.0, "added_mib": 2200.0}
    slower = more | {"added_mib": 2500.0}
    ours = timed("encoder_fast torch packed", "8x128", 1.3, **more)
    return [timed(BASELINE, "8x128", **slower), ours]


def ops() -> list[dict]:
    roof = {"kind": "roof", "dtype": "bfloat16", "device": "cpu"}
    return [
        roof | {"flops_per_s": 4e11, "bytes_per_s": 3e10},
        op("attention", "torch", 60, 2e11),
        op("attention", "reference", 60, 0.6e11),
        op("attention", "peer sdpa", 60, 2.2e11, control_after_s=0.006),
        op("add_norm", "torch", 1.2, 1.8e10, shape="8x512 W768"),
        {
            "kind": "op",
            "op": "mlp",
            "backend": "peer liger",
            **dict.fromkeys(("dtype", "shape", "pass")),
            "status": "skipped",
            "reason": "runs on cuda, not on cpu",
        },
    ]


def whole() -> list[dict]:
    """A run that has everything: wins, losses, refusals, failures, skips, an unsteady one."""
    return [
        ENVIRONMENT,
        *models(),
        unsteady("onnxruntime int8", "1x32"),
        untimed("refused", "onnxruntime int8", "8x128", "cosine 0.91 < 0.99 & <b>too low</b>"),
        untimed("failed", "onnxruntime int8", "search-log", "RuntimeError: <script>alert(1)"),
        untimed("skipped", "transformers flash-attn 2", None, "runs on cuda, not on cpu"),
        untimed("skipped", None, "1x8192", "modernbert-base takes 512 tokens at most"),
        *steps(),
        *ops(),
        END,
    ]
