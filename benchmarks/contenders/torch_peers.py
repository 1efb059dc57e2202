"""What people run in torch: transformers with each of its attentions, compiled, and
sentence-transformers.
"""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution

import torch
from torch import Tensor

from encoder_fast.benchmarks.contenders._torch import (
    compiled_now,
    compiled_why_not,
    installed,
    quiet_transformers,
    torch_why_not,
)
from encoder_fast.benchmarks.engine import CannotRun, Contender, Engine, Ready, Task, padded
from encoder_fast.benchmarks.timing import Clock
from encoder_fast.benchmarks.workloads import Inputs

Forward = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def _model(task: Task, attention: str) -> torch.nn.Module:
    from transformers import AutoModel

    quiet_transformers()
    options = {"dtype": task.torch_dtype, "attn_implementation": attention}
    return AutoModel.from_pretrained(task.folder, **options).eval().to(task.device)


def _forward(model: torch.nn.Module) -> Forward:
    """`(ids, mask, types)` -> last hidden state; types only where there are any."""

    @torch.inference_mode()
    def call(ids_BS: Tensor, mask_BS: Tensor, types_BS: Tensor | None) -> Tensor:
        types = {} if types_BS is None else {"token_type_ids": types_BS}
        return model(ids_BS, attention_mask=mask_BS, **types).last_hidden_state

    return call


def _transformers(attention: str) -> Callable[[Task], Engine]:
    def build(task: Task) -> Engine:
        call = _forward(_model(task, attention))
        return Engine(lambda inputs: padded(call, inputs, task.device), {"attention": attention})

    return build


def _flex(task: Task) -> Engine:
    """transformers compiles FlexAttention and its masks itself, for each new shape."""
    call = _forward(_model(task, "flex_attention"))
    return Engine(
        lambda inputs: compiled_now(padded(call, inputs, task.device)),
        {"attention": "flex_attention, compiled"},
    )


def _needs_transformers(task: Task) -> str | None:
    return installed("transformers") or torch_why_not(task)


FLASH = (
    (2, "flash-attn", "pip install flash-attn", 8),
    (3, "flash-attn-3", "the folder hopper of flash-attention's repository", 8),
    (4, "flash-attn-4", "pip install flash-attn-4", 9),
)
"""Version, name of the distribution (two of them share an import name), where it is, and the
smallest major number of a GPU's compute capability that transformers lets it run on.
"""


def _flash_why_not(package: str, source: str, major: int) -> Callable[[Task], str | None]:
    """A GPU, 16-bit floats, and the package."""

    def why_not(task: Task) -> str | None:
        if torch.device(task.device).type != "cuda":
            return "runs on a GPU only"
        if task.dtype not in ("bfloat16", "float16"):
            return "computes in bfloat16 and float16 only"
        try:
            distribution(package)
        except PackageNotFoundError:
            return f"not installed: {package} ({source})"
        if reason := _needs_transformers(task):
            return reason
        if torch.cuda.get_device_capability(task.device)[0] < major:
            return f"needs a GPU of compute capability {major}.0"
        return None

    return why_not


def _compiled(task: Task) -> Engine:
    """One graph for each shape. On a CPU it is frozen: weights become constants, packed once.

    Each shape has a model of its own, because freezing may take the weights out of it; torch drops
    the graph with the model.
    """
    on_cpu = torch.device(task.device).type == "cpu"
    mode = None if on_cpu else "reduce-overhead"

    def ready(inputs: Inputs) -> Ready:
        model = torch.compile(_model(task, "sdpa"), fullgraph=True, dynamic=False, mode=mode)
        one = padded(_forward(model), inputs, task.device)
        # CUDA graphs: one call compiles, one warms up, one records.
        return compiled_now(one, calls=3, freezing=on_cpu)

    return Engine(ready, "torch.compile, " + ("frozen" if on_cpu else "CUDA graphs"))


def _compiled_why_not(task: Task) -> str | None:
    return installed("transformers") or compiled_why_not(task)


def _sentence_transformers(task: Task) -> Engine:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    quiet_transformers()
    transformer = Transformer(str(task.folder), model_kwargs={"dtype": task.torch_dtype})
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")
    model = SentenceTransformer(modules=[transformer, pooling], device=task.device)

    def ready(inputs: Inputs) -> Ready:
        if inputs.texts is None:
            raise CannotRun("takes single texts here, not pairs")
        # The folder's limit may be lower. Never lowered here, for inputs that are ready already.
        model.max_seq_length = max(model.max_seq_length or 0, *inputs.lengths)
        texts = list(inputs.texts)
        options = {"batch_size": 32, "convert_to_tensor": True, "show_progress_bar": False}
        return Ready(
            lambda: model.encode(texts, **options),
            lambda vectors_BW: vectors_BW.cpu().float(),
            Clock(task.device),
            pooled=True,
        )

    return Engine(ready, "transformers sdpa, batches of 32 sorted by length")


CONTENDERS = (
    Contender("transformers sdpa", _transformers("sdpa"), _needs_transformers),
    Contender("transformers eager", _transformers("eager"), _needs_transformers, slow=True),
    Contender("transformers flex", _flex, _compiled_why_not, slow=True),
    *(
        Contender(
            f"transformers flash-attn {version}",
            _transformers(f"flash_attention_{version}"),
            _flash_why_not(*needs),
        )
        for version, *needs in FLASH
    ),
    Contender("transformers compiled", _compiled, _compiled_why_not, slow=True),
    Contender(
        "sentence-transformers",
        _sentence_transformers,
        lambda task: installed("sentence_transformers") or torch_why_not(task),
        note="from text, tokenizer included",
        from_text=True,
    ),
)
