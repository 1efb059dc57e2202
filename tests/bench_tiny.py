"""Small models and inputs for the tests of the harness."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from encoder_fast.benchmarks import models
from encoder_fast.benchmarks.engine import Task
from encoder_fast.benchmarks.models import write
from encoder_fast.benchmarks.workloads import Workload

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
"""Keys that make a config of `models.CONFIGS` small; keep its own positions for RoBERTa."""
MIXED = Workload("mixed", (40, 7, 90, 3), "four texts")
PAIRS = Workload("pairs", (20, 33), "two pairs", pairs=True)


def written(name: str, scratch: Path) -> models.Written:
    """Model `name` of the harness, small, with random weights."""
    config = models.CONFIGS[name] | SMALL
    config["pad_token_id"] = min(config["pad_token_id"], 3)
    if "embedding_size" in config:
        config["embedding_size"] = 32
    return write(name, scratch, config)


def writer(scratch: Path) -> Callable[[str], models.Written]:
    """`written` into `scratch`, each model once."""
    return cache(lambda name: written(name, scratch))


def task(model: models.Written, scratch: Path, dtype: str = "float32", threads: int = 1) -> Task:
    """What a contender is built for in a test."""
    return Task(model.name, model.folder, dtype, "cpu", threads, scratch)
