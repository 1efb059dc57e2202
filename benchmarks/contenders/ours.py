"""encoder_fast: one contender a backend, compiled, and from text.

Where a backend has not all ops, torch runs the others: `ran` says which.
"""

from collections.abc import Callable

import torch
from torch import Tensor

import encoder_fast as ef
from encoder_fast.benchmarks import models
from encoder_fast.benchmarks.contenders._torch import (
    asked_for,
    backend_why_not,
    compiled_now,
    compiled_why_not,
    torch_why_not,
)
from encoder_fast.benchmarks.engine import CannotRun, Contender, Engine, Ready, Task, padded
from encoder_fast.benchmarks.timing import Clock
from encoder_fast.benchmarks.workloads import Inputs
from encoder_fast.checkpoint import read_json
from encoder_fast.hardware import fastest_dtype
from encoder_fast.kernels.dispatch import BACKENDS, BackendError, Request, resolve


def _load(task: Task, backend: str) -> ef.Model:
    options = {"device": task.device, "backend": asked_for(backend)}
    return ef.load(task.folder, dtype=task.torch_dtype, **options)


def _ran(model: ef.Model) -> dict[str, str]:
    return {op: entry["runs"] for op, entry in ef.backends(model).items()}


def _why_not(backend: str) -> Callable[[Task], str | None]:
    def why_not(task: Task) -> str | None:
        return torch_why_not(task) or backend_why_not(task, backend)

    return why_not


def _padded_call(backend: str) -> Callable[[Task], Engine]:
    """The drop-in call: padded in, padded out, packing inside the timed part."""

    def build(task: Task) -> Engine:
        model = _load(task, backend)

        @torch.inference_mode()
        def call(ids_BS: Tensor, mask_BS: Tensor, types_BS: Tensor | None) -> Tensor:
            return model(ids_BS, mask_BS, types_BS).last_hidden_state

        return Engine(lambda inputs: padded(call, inputs, task.device), _ran(model))

    return build


def _int8_dtype(task: Task) -> torch.dtype:
    """Of what int8 leaves out: the fastest here."""
    return getattr(torch, fastest_dtype(task.device)[0])


def _int8_why_not(task: Task) -> str | None:
    if task.dtype != "int8":
        return "computes in int8 only"
    if torch.device(task.device).type != "cpu":
        return f"runs on a CPU only, not on {task.device}"
    config = models.config_of(read_json(task.folder / "config.json"))
    device, width = torch.device(task.device), config.hidden_size
    try:
        resolve("auto", Request(device, _int8_dtype(task), config.head_width, width, "int8"))
    except BackendError as error:
        return str(error)
    return None


def _int8(task: Task) -> Engine:
    options = {"device": task.device, "precision": "int8"}
    model = ef.load(task.folder, dtype=_int8_dtype(task), **options)

    @torch.inference_mode()
    def call(ids_BS: Tensor, mask_BS: Tensor, types_BS: Tensor | None) -> Tensor:
        return model(ids_BS, mask_BS, types_BS).last_hidden_state.float()

    ran = _ran(model) | {"linear": "native int8"}
    return Engine(lambda inputs: padded(call, inputs, task.device), ran)


def _compiled(task: Task) -> Engine:
    """One graph for all shapes: who compiles a model for texts of many lengths wants no other."""
    model = _load(task, "torch")
    compiled = torch.compile(model, fullgraph=True, dynamic=True)

    def ready(inputs: Inputs) -> Ready:
        ids = [list(row) for row in inputs.ids]
        types = None if inputs.types is None else [list(row) for row in inputs.types]

        @torch.inference_mode()
        def call() -> Tensor:
            batch = ef.Batch.from_lists(ids, types, device=task.device)
            return compiled(batch).last_hidden_state

        return compiled_now(Ready(call, lambda x_TW: x_TW.cpu().float(), Clock(task.device)))

    return Engine(ready, _ran(model) | {"graph": "torch.compile"})


def _text(task: Task) -> Engine:
    encoder = ef.TextEncoder(task.folder, dtype=task.torch_dtype, device=task.device)
    # The folder may say less than its position table holds: no engine may cut a text.
    encoder.max_length = encoder.model.config.max_length

    def ready(inputs: Inputs) -> Ready:
        if inputs.texts is None:
            raise CannotRun("takes single texts here, not pairs")
        texts = list(inputs.texts)
        return Ready(
            lambda: encoder.encode(texts, pooling="mean", normalize=False, progress=False),
            lambda vectors_BW: torch.as_tensor(vectors_BW).float(),
            Clock(task.device),
            pooled=True,
        )

    return Engine(ready, _ran(encoder.model))


CONTENDERS = (
    *(
        Contender(
            f"encoder_fast {backend}",
            _padded_call(backend),
            _why_not(backend),
            slow=backend == "reference",
        )
        for backend in BACKENDS
    ),
    Contender(
        "encoder_fast native int8",
        _int8,
        _int8_why_not,
        note="int8 linears but the second of the feed-forward block, one scale a token",
    ),
    Contender("encoder_fast torch compiled", _compiled, compiled_why_not, slow=True),
    Contender(
        "encoder_fast text",
        _text,
        torch_why_not,
        note="from text, tokenizer included",
        from_text=True,
    ),
)
