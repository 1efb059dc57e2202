"""Weights: checkpoint files <-> modules, by the rename tables of `architectures`. The same tables read and write."""

import json
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from encoder_fast.architectures import Architecture, Rename, architecture_of, by_name
from encoder_fast.checkpoint import TensorFiles, read_json, resolve_folder
from encoder_fast.config import EncoderConfig, Settings
from encoder_fast.errors import WeightsError
from encoder_fast.files import atomic_path
from encoder_fast.kernels.dispatch import Request, resolve
from encoder_fast.model import Model
from encoder_fast.recipe import POOLING_MODES, read_recipe

__all__ = ["from_config", "load", "resolve_folder", "save"]

SAMPLE = 8
"""Names listed in an error text."""


@dataclass(frozen=True)
class Source:
    """Where one parameter lives in files: names stacked along axis 0, and other names of the same values."""

    names: tuple[str, ...]
    also: tuple[str, ...]


def _fill(rename: Rename, config: EncoderConfig, arch: Architecture) -> Iterator[Rename]:
    """A rename without `{w}`: one per layer, or itself."""
    if "{w}" not in rename.ours:
        yield rename
        return
    for w in range(config.num_layer_weights):
        names = {"w": w, **arch.layer_fields(config, w)}
        yield Rename(rename.ours.format(w=w), *(t.format(**names) for t in rename.theirs))


def sources(model: Model, prefixed: bool) -> dict[str, Source]:
    """Parameter name -> where it is stored. `prefixed`: encoder names carry the family's prefix."""
    config, arch = model.config, by_name(model.config.architecture)
    prefix = arch.prefix if prefixed else ""
    table: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for rename in (r for top in arch.renames for r in _fill(top, config, arch)):
        table[f"encoder.{rename.ours}"] = tuple(prefix + t for t in rename.theirs), rename.also
    name = "sequence_classification" if model.head_name == "rerank" else model.head_name
    for rename in arch.heads[name].renames if name in arch.heads else ():
        table[rename.ours] = rename.theirs, rename.also
    found = {}
    for parameter, _ in model.named_parameters():
        module, _, last = parameter.rpartition(".")
        if parameter in table:
            found[parameter] = Source(*table[parameter])
        else:
            theirs, also = table[module]
            found[parameter] = Source(tuple(f"{t}.{last}" for t in theirs), also)
    return found


def _clean(name: str) -> str:
    """A file's name without wrapper prefixes and with today's LayerNorm spelling."""
    name = re.sub(r"^((module|_orig_mod)\.)+", "", name).replace("._orig_mod.", ".")
    return re.sub(r"\.beta$", ".bias", re.sub(r"\.gamma$", ".weight", name))


def _list(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - SAMPLE} more" if len(names) > SAMPLE else ""
    return ", ".join(names[:SAMPLE]) + more


class _Reader:
    """Fills a model from the tensors of a checkpoint."""

    def __init__(self, files: TensorFiles, arch: Architecture):
        self.files, self.arch = files, arch
        self.by_name = {}
        for name in files.names():
            clean = _clean(name)
            if clean in self.by_name:
                raise WeightsError(f"weights: {name!r} and {self.by_name[clean]!r} are the same parameter")
            self.by_name[clean] = name
        self.prefixed = any(name.startswith(arch.prefix) for name in self.by_name)

    def has(self, name: str) -> bool:
        """Is the encoder weight `name` (without prefix) in the files?"""
        return (self.arch.prefix if self.prefixed else "") + name in self.by_name

    def dtype(self) -> torch.dtype:
        """Dtype of the token table."""
        token = next(r for r in self.arch.renames if r.ours == "embeddings.token").theirs[0]
        name = (self.arch.prefix if self.prefixed else "") + f"{token}.weight"
        if name not in self.by_name:
            raise WeightsError(f"weights: missing {name}; is this a {self.arch.name} checkpoint?")
        return self.files.read(self.by_name[name]).dtype

    def fill(self, model: Model, dtype: torch.dtype, device: torch.device, new_head: bool) -> None:
        """Give every parameter of a model on the meta device its values."""
        table = sources(model, self.prefixed)
        state, missing, used = {}, [], set()
        for parameter, source in table.items():
            names = self._present(source)
            if names is None:
                missing.append(parameter)
                continue
            used |= {*source.names, *source.also}
            parts = [self.files.read(self.by_name[name]) for name in names]
            state[parameter] = torch.cat(parts) if len(parts) > 1 else parts[0]
            wanted = model.get_parameter(parameter).shape
            if state[parameter].shape != wanted:
                got = [tuple(p.shape) for p in parts]
                raise WeightsError(f"weights: {_list(names)} has shape {got}, stacked {tuple(wanted)} needed")
            state[parameter] = state[parameter].to(device=device, dtype=dtype, copy=len(parts) == 1)
        self._refuse_unexpected(model, used)
        fresh = [p for p in missing if new_head and p.startswith(("head.", "encoder.pooler."))]
        if len(fresh) < len(missing):
            names = [n for p in set(missing) - set(fresh) for n in table[p].names]
            hint = "" if any(p.startswith("encoder.") for p in missing) else "; num_labels=... starts a new head"
            raise WeightsError(f"weights: missing {_list(names)}{hint}")
        model.load_state_dict(state, strict=False, assign=True)
        _start(model, fresh, dtype, device)

    def _present(self, source: Source) -> tuple[str, ...] | None:
        for names in (source.names, *((also,) for also in source.also)):
            if all(name in self.by_name for name in names):
                return names
        return None

    def _refuse_unexpected(self, model: Model, used: set[str]) -> None:
        """Refuse names that belong to no part of the family: not to the encoder, nor to any of its heads."""
        known = [r.theirs + r.also for head in self.arch.heads.values() for r in head.renames]
        known = tuple(f"{name}." for names in known for name in names)
        prefix = self.arch.prefix if self.prefixed else ""
        known += (f"{prefix}pooler.",)
        exact = {name for head in self.arch.heads.values() for r in head.renames for name in (*r.theirs, *r.also)}
        stray = [re.compile(pattern) for pattern in self.arch.stray]
        unexpected = [
            name
            for name in self.by_name
            if name not in used and name not in exact and not name.startswith(known)
            and not any(pattern.fullmatch(name) for pattern in stray)
        ]
        if unexpected:
            raise WeightsError(f"weights: unexpected {_list(unexpected)} in a {self.arch.name} checkpoint")


def _start(model: Model, names: list[str], dtype: torch.dtype, device: torch.device) -> None:
    """Random values for a new head: normal matrices, zero biases, unit norms."""
    if names:
        warnings.warn(f"new head: {_list(names)} start at random values", stacklevel=4)
    for name in names:
        module, _, last = name.rpartition(".")
        owner, old = model.get_submodule(module), model.get_parameter(name)
        value = torch.zeros(old.shape, dtype=torch.float32)
        if last == "weight":
            if value.ndim == 1:
                value.fill_(1.0)
            else:
                value.normal_(std=model.config.initializer_range)
        setattr(owner, last, nn.Parameter(value.to(device=device, dtype=dtype)))


def _request(config: EncoderConfig, dtype: torch.dtype, device: torch.device) -> Request:
    return Request(device, dtype, config.head_width, config.hidden_size)


def _with_labels(config: EncoderConfig, head: str | None, num_labels: int | None) -> EncoderConfig:
    return config if num_labels is None else replace(config, num_labels=num_labels)


def _needs_pooler(arch: Architecture, head: str | None) -> bool:
    spec = arch.heads.get("sequence_classification" if head == "rerank" else head)
    return spec is not None and spec.pooler


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    value = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if value is not None and not (isinstance(value, torch.dtype) and value.is_floating_point):
        raise ValueError(f"dtype: got {dtype!r}, a floating-point torch dtype needed")
    if isinstance(dtype, str) and value is None:
        raise ValueError(f"dtype: got {dtype!r}, a torch dtype such as 'bfloat16' needed")
    return value


def load(
    path: str | Path,
    head: str | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    backend: str = "auto",
    num_labels: int | None = None,
    ignore_config_keys: Iterable[str] = (),
) -> Model:
    """A model in eval mode with a checkpoint's weights.

    Args:
        path: folder with config.json and safetensors (or weights-only loadable .bin) files, or a hub id.
        head: None or one of `model.HEADS`. Its weights must be in the files, unless `num_labels` asks for a new head.
        dtype: None keeps the checkpoint's.
        backend: "auto", or a name that must serve every op.
        num_labels: outputs of the classifier. Where the files have none, it starts at random values, with a warning.
        ignore_config_keys: settings of config.json to accept although nothing here knows them.

    Raises:
        ConfigError: a setting that is unknown or not supported, by name.
        WeightsError: missing, unexpected, misshaped, corrupt or unsafe weights.
        BackendError: the backend cannot serve, with each reason.
    """
    dtype, device = _dtype(dtype), torch.device(device or "cpu")
    folder = resolve_folder(path)
    values = read_json(folder / "config.json")
    arch = architecture_of(values.get("model_type"))
    settings = Settings(values, ignore_config_keys)
    config = _with_labels(arch.config(settings), head, num_labels)
    settings.finish()
    reader = _Reader(TensorFiles(folder), arch)
    dtype = dtype or reader.dtype()
    keep_pooler = head in (None, "embedding") and arch.pooler and _has_pooler(reader)
    options = _embedding_options(folder) if head == "embedding" else None
    with torch.device("meta"):
        ops = resolve(backend, _request(config, dtype, device))
        model = Model(config, ops, head, keep_pooler or _needs_pooler(arch, head), options)
    reader.fill(model, dtype, device, new_head=num_labels is not None)
    return model.eval()


def _embedding_options(folder: Path) -> dict:
    """Pooling and normalisation of a sentence-transformers folder; mean for a plain one."""
    recipe = read_recipe(folder)
    if len(recipe.pooling) != 1 or len(recipe.after):
        raise ValueError(
            f"head: 'embedding' computes one pooling and a norm; {folder} needs more (use TextEncoder)"
        )
    return {"pooling": POOLING_MODES[recipe.pooling[0]], "normalize": recipe.normalize}


def _has_pooler(reader: _Reader) -> bool:
    theirs = next(r for r in reader.arch.renames if r.ours == "pooler").theirs[0]
    return reader.has(f"{theirs}.weight")


def from_config(
    values: dict,
    head: str | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    backend: str = "auto",
    num_labels: int | None = None,
    ignore_config_keys: Iterable[str] = (),
) -> Model:
    """A model in eval mode with random weights (normal matrices, zero biases), from a config.json's dictionary.

    Raises:
        ConfigError, BackendError: as `load`.
    """
    dtype, device = _dtype(dtype) or torch.float32, torch.device(device or "cpu")
    arch = architecture_of(values.get("model_type"))
    settings = Settings(values, ignore_config_keys)
    config = _with_labels(arch.config(settings), head, num_labels)
    settings.finish()
    ops = resolve(backend, _request(config, dtype, device))
    with torch.device(device):
        model = Model(config, ops, head, _needs_pooler(arch, head) or (head is None and arch.pooler)).to(dtype)
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=config.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model.eval()


def save(model: Model, folder: str | Path) -> None:
    """Write config.json and model.safetensors with the family's own names; each file appears whole or not at all."""
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
        spec = arch.heads["sequence_classification" if model.head_name == "rerank" else model.head_name]
        hf_class = family + spec.hf_class[spec.hf_class.index("For") :]
        labels = model.config.id2label
        values |= {"id2label": labels, "label2id": {v: k for k, v in labels.items()}}
        values.pop("num_labels", None)
    values.pop("torch_dtype", None)
    return values | {"architectures": [hf_class], "dtype": str(model.dtype).removeprefix("torch.")}
