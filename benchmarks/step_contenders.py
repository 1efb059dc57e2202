"""Who is compared in training: ours, packed and padded, and transformers, padded.

Also an engine file (worker.py), so that the memory of one contender's step can be measured in a
process of its own.
"""

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn

import encoder_fast as ef
from encoder_fast.benchmarks.contenders._torch import (
    asked_for,
    backend_why_not,
    compiled_why_not,
    installed,
    quiet_transformers,
)
from encoder_fast.benchmarks.engine import CannotRun, Contender, Engine, Task
from encoder_fast.benchmarks.steps import Step, checked, engine_of, packed, padded
from encoder_fast.benchmarks.workloads import Inputs
from encoder_fast.kernels import dispatch

BASELINE = "transformers sdpa"
"""What ratios refer to: what people have."""


@dataclass(frozen=True)
class StepTask(Task):
    """A task that names its contender: what a worker process is told (worker.py)."""

    contender: str


def _ours(backend: str, form: str, arguments: Callable) -> Contender:
    def why_not(task: Task) -> str | None:
        return backend_why_not(task, backend) or _no_dtype(task)

    def build(task: Task) -> Engine:
        options = {"dtype": task.dtype, "device": task.device, "backend": asked_for(backend)}
        model = ef.load(task.folder, head="masked_lm", **options).train()
        names = {name: (name,) for name in checked(task.folder)}
        return engine_of(task, model, model, arguments, names, model.ops.chosen)

    # The padded form is the packed one with packing before it: not worth a quick run's time.
    return Contender(f"encoder_fast {backend} {form}", build, why_not, slow=form == "padded")


def _no_dtype(task: Task) -> str | None:
    if task.dtype not in ("float32", "bfloat16"):
        return "trains in float32 or bfloat16 here: float16 would need loss scaling"
    return None


def _load_theirs(task: Task, attention: str, settings: dict) -> nn.Module:
    from transformers import AutoModelForMaskedLM

    quiet_transformers()
    model = AutoModelForMaskedLM.from_pretrained(
        task.folder,
        dtype=task.torch_dtype,
        attn_implementation=attention,
        local_files_only=True,
        **settings,
    )
    return model.to(task.device).train()


def _theirs(
    name: str,
    attention: str = "sdpa",
    change: Callable[[nn.Module], object] = lambda model: None,
    settings: dict | None = None,
    why: Callable[[Task], str | None] = lambda task: None,
    **more,
) -> Contender:
    """transformers' model for masked words, padded. `change` is applied to it, `settings` to its
    config.
    """

    def why_not(task: Task) -> str | None:
        return installed("transformers") or _no_dtype(task) or why(task)

    def build(task: Task) -> Engine:
        model = _load_theirs(task, attention, settings or {})
        change(model)
        return engine_of(task, model, model, padded, checked(task.folder), f"attention {attention}")

    return Contender(name, build, why_not, **more)


def _checkpoint(model: nn.Module) -> None:
    if not model.supports_gradient_checkpointing:
        raise CannotRun(f"transformers' {type(model).__name__} has no gradient checkpointing")
    with warnings.catch_warnings():
        # The name that 4.57 has too; 5.24 warns that 6 drops it.
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable()


def _build_compiled(task: Task) -> Engine:
    model = _load_theirs(task, "sdpa", {})
    compiled = torch.compile(model, dynamic=False)
    names = checked(task.folder)
    engine = engine_of(task, model, compiled, padded, names, "attention sdpa, inductor")

    def ready(inputs: Inputs) -> Step:
        step = engine.ready(inputs)
        # Compiles, which belongs neither to the time nor to the memory of a step.
        step.answer()
        return step

    return Engine(ready, engine.ran, torch.compiler.reset)


def _no_flash(task: Task) -> str | None:
    if torch.device(task.device).type != "cuda":
        return "runs on CUDA only"
    if task.dtype == "float32":
        return "computes in bfloat16 or float16 only"
    return installed("flash_attn")


def _not_sparse(task: Task) -> str | None:
    kind = json.loads((task.folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    return None if kind == "modernbert" else f"transformers' {kind} has no sparse_prediction"


_SDPA = _theirs(BASELINE, note="a training step: dropout is 0 for everyone")

ALL = (
    *(
        _ours(backend, form, arguments)
        for backend in dispatch.BACKENDS
        if backend != "reference"
        for form, arguments in (("packed", packed), ("padded", padded))
    ),
    _SDPA,
    _theirs("transformers eager", "eager", slow=True),
    _theirs(
        "transformers sdpa checkpointed",
        change=_checkpoint,
        slow=True,
        note="gradient_checkpointing_enable(): computes each layer's forward twice",
    ),
    _theirs(
        "transformers sdpa sparse",
        settings={"sparse_prediction": True},
        why=_not_sparse,
        slow=True,
        note="sparse_prediction=True: scores of labelled tokens only, as encoder_fast",
    ),
    _theirs("transformers flash-attn 2", "flash_attention_2", why=_no_flash),
    Contender(
        "transformers compiled",
        _build_compiled,
        lambda task: _SDPA.why_not(task) or compiled_why_not(task),
        slow=True,
    ),
)
CONTENDERS = {contender.name: contender for contender in ALL}


def build(task: SimpleNamespace) -> Engine:
    """For a worker process, which runs this file: the engine of a `StepTask`'s contender."""
    torch.set_num_threads(task.threads)
    values = dict(vars(task))
    engine = CONTENDERS[values.pop("contender")].build(Task(**values))
    return Engine(lambda given: engine.ready(Inputs(**vars(given))), engine.ran)
