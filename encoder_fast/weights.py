"""Weights: checkpoint files <-> modules, by the rename tables of `architectures`. The same tables
read and write.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from encoder_fast.architectures import Architecture, architecture_of, by_name
from encoder_fast.checkpoint import TensorFiles, read_json, resolve_folder
from encoder_fast.config import EncoderConfig
from encoder_fast.config_json import Settings
from encoder_fast.files import atomic_path
from encoder_fast.kernels.dispatch import Request, resolve
from encoder_fast.model import Model
from encoder_fast.recipe import read_recipe
from encoder_fast.stored import DTYPE_NAMES, DTYPES, Reader, sources

__all__ = ["from_config", "load", "resolve_folder", "save", "sources"]


def _request(
    config: EncoderConfig, dtype: torch.dtype, device: torch.device, precision: str | None = None
) -> Request:
    return Request(device, dtype, config.head_width, config.hidden_size, precision)


def _with_labels(config: EncoderConfig, head: str | None, num_labels: int | None) -> EncoderConfig:
    if num_labels is None:
        return config
    if head in ("masked_lm", "pretraining", "question_answering", "embedding"):
        raise ValueError(f"num_labels: got {num_labels}, but head {head!r} has no such choice")
    return replace(config, num_labels=num_labels)


def _needs_pooler(arch: Architecture, head: str | None) -> bool:
    spec = arch.heads.get("sequence_classification" if head == "rerank" else head)
    return spec is not None and spec.pooler


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    value = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and (not isinstance(value, torch.dtype) or value not in DTYPES):
        raise ValueError(f"dtype: got {dtype!r}, one of {DTYPE_NAMES} needed")
    return value


def _device(device: torch.device | str | None) -> torch.device:
    """The device, after a try to put something there."""
    try:
        return torch.empty(0, device="cpu" if device is None else device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise ValueError(
            f"device: got {device!r}, a torch device that is here needed ({first_line})"
        ) from error


# Tensors made under inference_mode could never be trained, and count no versions for packed copies.
@torch.inference_mode(False)
def load(
    path: str | Path,
    head: str | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    backend: str = "auto",
    num_labels: int | None = None,
    ignore_config_keys: Iterable[str] = (),
    new_head: bool = False,
    precision: str | None = None,
) -> Model:
    """A model in eval mode with a checkpoint's weights.

    Args:
        path: folder with config.json and safetensors (or weights-only loadable .bin) files, or a
            hub id.
        head: None or one of `model.HEADS`.
        dtype: None keeps the checkpoint's.
        backend: "auto", or a name that must serve every op.
        num_labels: outputs of a classifier; implies `new_head`.
        ignore_config_keys: settings of config.json to accept although nothing here knows them.
        new_head: head weights that the files do not have start at random values, with a warning;
            they are an error otherwise.
        precision: "int8" computes the linear layers in int8, for inference on a CPU; weights stay
            as they are. `encoder-fast verify --precision int8` says how close a checkpoint stays.

    Raises:
        ValueError: a head, dtype or device that there is not, by the argument's name.
        ConfigError: a setting that is unknown or not supported, by name.
        WeightsError: missing, unexpected, misshaped, corrupt or unsafe weights.
        BackendError: the backend cannot serve, with each reason.
    """
    dtype, device = _dtype(dtype), _device(device)
    folder = resolve_folder(path)
    values = read_json(folder / "config.json")
    if head == "rerank":
        values |= _score_options(folder)
    arch = architecture_of(values.get("model_type"))
    settings = Settings(values, ignore_config_keys)
    config = _with_labels(arch.config(settings), head, num_labels)
    settings.finish()
    reader = Reader(TensorFiles(folder), arch)
    dtype = dtype or reader.dtype()
    keep_pooler = head in (None, "embedding") and arch.pooler and _has_pooler(reader)
    options = _embedding_options(folder) if head == "embedding" else None
    with torch.device("meta"):
        ops = resolve(backend, _request(config, dtype, device, precision))
        model = Model(config, ops, head, keep_pooler or _needs_pooler(arch, head), options)
    reader.fill(model, dtype, device, new_head=new_head or num_labels is not None)
    return model.eval()


def _embedding_options(folder: Path) -> dict:
    """Pooling and normalisation of a sentence-transformers folder; mean for a plain one."""
    recipe = read_recipe(folder)
    if len(recipe.pooling) != 1 or len(recipe.after):
        raise ValueError(
            f"head: 'embedding' computes one pooling and a norm; {folder} needs more "
            "(use TextEncoder)"
        )
    return {"pooling": recipe.pooling[0], "normalize": recipe.normalize}


def _score_options(folder: Path) -> dict:
    """Settings of config.json that a cross-encoder keeps in a file of its own since
    sentence-transformers 5.
    """
    file = folder / "config_sentence_transformers.json"
    name = read_json(file).get("activation_fn") if file.is_file() else None
    return {} if name is None else {"sentence_transformers": {"activation_fn": name}}


def _has_pooler(reader: Reader) -> bool:
    theirs = next(r for r in reader.arch.renames if r.ours == "pooler").theirs[0]
    return reader.has(f"{theirs}.weight")


@torch.inference_mode(False)
def from_config(
    values: dict,
    head: str | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    backend: str = "auto",
    num_labels: int | None = None,
    ignore_config_keys: Iterable[str] = (),
) -> Model:
    """A model in eval mode with random weights (normal matrices, zero biases), from a config.json's
    dictionary.

    Raises:
        ConfigError, BackendError: as `load`.
        TypeError: `values` is not a dictionary.
    """
    if not isinstance(values, dict):
        raise TypeError(f"values: got {type(values).__name__}, a config.json's dictionary needed")
    dtype, device = _dtype(dtype) or torch.float32, _device(device)
    arch = architecture_of(values.get("model_type"))
    settings = Settings(values, ignore_config_keys)
    config = _with_labels(arch.config(settings), head, num_labels)
    settings.finish()
    ops = resolve(backend, _request(config, dtype, device))
    with torch.device(device):
        model = Model(
            config, ops, head, _needs_pooler(arch, head) or (head is None and arch.pooler)
        ).to(dtype)
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=config.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model.eval()


def save(model: Model, folder: str | Path) -> None:
    """Write config.json and model.safetensors with the family's own names; each file appears whole
    or not at all.
    """
    folder, arch = Path(folder), by_name(model.config.architecture)
    folder.mkdir(parents=True, exist_ok=True)
    has_head = any(True for _ in model.head.parameters()) if model.head is not None else False
    tensors: dict[str, Tensor] = {}
    for parameter, source in sources(model, prefixed=has_head).items():
        value = model.get_parameter(parameter).detach().cpu()
        for name, part in zip(source.names, value.chunk(len(source.names)), strict=True):
            tensors[name] = part.contiguous()
    with atomic_path(folder / "model.safetensors") as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    text = json.dumps(_config_json(model, arch, has_head), indent=2, sort_keys=True)
    with atomic_path(folder / "config.json") as temporary:
        Path(temporary).write_text(text + "\n", encoding="utf-8")


def _config_json(model: Model, arch: Architecture, has_head: bool) -> dict:
    values = dict(model.config.hf)
    family = arch.model_types[values["model_type"]]
    hf_class = f"{family}Model"
    if has_head:
        spec = arch.heads[
            "sequence_classification" if model.head_name == "rerank" else model.head_name
        ]
        hf_class = family + spec.hf_class[spec.hf_class.index("For") :]
        labels = model.config.id2label
        values |= {"id2label": labels, "label2id": {v: k for k, v in labels.items()}}
        values.pop("num_labels", None)
    values.pop("torch_dtype", None)
    return values | {"architectures": [hf_class], "dtype": str(model.dtype).removeprefix("torch.")}
