"""CTranslate2 on the CPU, in float32 and int8: a peer that leaves padding out of matrix products.

It has no ModernBERT, and of BERT's relatives RoBERTa only. Its bfloat16 on a CPU is float32.
"""

from pathlib import Path

import numpy as np
import torch

from encoder_fast.benchmarks.contenders import exporting
from encoder_fast.benchmarks.contenders._torch import quiet_transformers
from encoder_fast.benchmarks.engine import Contender, Engine, Ready, Task
from encoder_fast.benchmarks.workloads import Inputs

MODELS = ("bert", "roberta")
COMPUTE = {"float32": "float32", "int8": "int8_float32"}


def _why_not(task: Task, dtype: str) -> str | None:
    found = exporting.why_not(task, ("ctranslate2", "transformers"), (dtype,))
    kind = exporting.settings(task)["model_type"]
    if found is None and kind not in MODELS:
        return f"CTranslate2 has no {kind}; it runs {' and '.join(MODELS)}"
    return found


def _convert(task: Task, folder: Path, compute: str) -> None:
    from ctranslate2.converters import TransformersConverter

    quiet_transformers()

    class Converter(TransformersConverter):
        """Still asks for a setting that transformers 5 has dropped: absolute is all it has."""

        def load_model(self, *args, **options):
            model = super().load_model(*args, **options)
            model.config.position_embedding_type = "absolute"
            return model

    with exporting.quiet():
        Converter(str(task.folder)).convert(str(folder), quantization=compute, force=True)


def _build(name: str, task: Task) -> Engine:
    import ctranslate2

    compute = COMPUTE[task.dtype]

    def make(folder: Path) -> None:
        _convert(task, folder, compute)

    folder = exporting.kept(task.scratch / f"{name}-{task.model}-{task.dtype}", make)
    encoder = ctranslate2.Encoder(
        str(folder),
        device="cpu",
        compute_type=compute,
        inter_threads=1,
        intra_threads=task.threads,
    )

    def ready(inputs: Inputs) -> Ready:
        ids = [list(row) for row in inputs.ids]
        given = {} if inputs.types is None else {"token_type_ids": [list(r) for r in inputs.types]}
        real_BS = inputs.mask_BS.bool()
        return Ready(
            lambda: encoder.forward_batch(ids, **given).last_hidden_state,
            lambda hidden_BSW: torch.from_numpy(np.array(hidden_BSW))[real_BS],
        )

    return Engine(ready, ran=f"CTranslate2 computing in {encoder.compute_type}")


def _contender(name: str, dtype: str) -> Contender:
    return Contender(name, lambda task: _build(name, task), lambda task: _why_not(task, dtype))


FLOAT = _contender("ctranslate2", "float32")
INT8 = _contender("ctranslate2 int8", "int8")
