"""vLLM's pooling runner, in a worker with its own environment (envs.py)."""

import json
from pathlib import Path

from encoder_fast.benchmarks import envs
from encoder_fast.benchmarks.engine import Contender, Engine, Task
from encoder_fast.benchmarks.remote import remote_engine

MODEL_TYPES = ("modernbert", "bert", "roberta")
"""Of the harness's models, those in vLLM's registry of models."""


def why_not(task: Task) -> str | None:
    """Why vLLM cannot take part."""
    if task.dtype == "int8":
        return "computes in float32, bfloat16 or float16 here"
    config = json.loads((task.folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] not in MODEL_TYPES:
        return f"has no {config['model_type']}"
    place = envs.find("vllm")
    if place is None:
        return "not installed: make bench-envs builds its environment"
    wanted = "cpu" if task.device == "cpu" else "cuda"
    if envs.device_of(place) != wanted:
        return f"its environment is not for {wanted}: make bench-envs builds it for what it sees"
    return None


def build(task: Task) -> Engine:
    """Start a worker and load the model there; compiles for about a minute the first time."""
    place = envs.find("vllm")
    cache = place / "cache"
    # vLLM leaves a file behind for each engine, in TMPDIR.
    leftovers = task.scratch / "vllm"
    leftovers.mkdir(exist_ok=True)
    env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # The engine in the worker itself, not in a child of it.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # GiB. Encoders keep no keys and values, but vLLM would take most of the memory for them.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": str(task.threads),
        # 0.32.0 cannot read its own cache of models compiled for a CPU; inductor's works.
        "VLLM_USE_AOT_COMPILE": "0" if task.device == "cpu" else "1",
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TMPDIR": str(leftovers),
    }
    engine = Path(__file__).with_name("vllm_engine.py")
    return remote_engine([str(envs.python_of(place)), "-I"], engine, task, env)


CONTENDERS = (
    Contender(
        "vllm",
        build,
        why_not,
        # Compiles for a minute a model, and again alone for its memory.
        slow=True,
        note="in a process of its own, timed there; LLM.encode with its scheduler",
    ),
)
