"""Parameters <-> names in files: the rename tables applied, reading with every mismatch refused."""

import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from encoder_fast.architectures import Architecture, Rename, by_name
from encoder_fast.checkpoint import TensorFiles
from encoder_fast.config import EncoderConfig
from encoder_fast.errors import WeightsError
from encoder_fast.model import Model

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""What a model can be held in."""
DTYPE_NAMES = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)

SAMPLE = 8
"""Names listed in an error text."""


@dataclass(frozen=True)
class Source:
    """Where one parameter lives in files: names stacked along axis 0, and other names of the same
    values.
    """

    names: tuple[str, ...]
    also: tuple[str, ...]


def _per_layer(rename: Rename, config: EncoderConfig, arch: Architecture) -> Iterator[Rename]:
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
    for rename in (r for top in arch.renames for r in _per_layer(top, config, arch)):
        table[f"encoder.{rename.ours}"] = tuple(prefix + t for t in rename.theirs), rename.also
    name = "sequence_classification" if model.head_name == "rerank" else model.head_name
    for rename in arch.heads[name].renames if name in arch.heads else ():
        table[rename.ours] = rename.theirs, rename.also
    found = {}
    for parameter, _ in model.named_parameters():
        module, _, last = parameter.rpartition(".")
        if parameter in table:
            theirs, also = table[parameter]
            # An untied decoder adds its own bias; the head's is then a leftover.
            untied = also and getattr(model.head, "decoder", None) is not None
            found[parameter] = Source(also, theirs) if untied else Source(theirs, also)
        else:
            theirs, also = table[module]
            found[parameter] = Source(tuple(f"{t}.{last}" for t in theirs), also)
    return found


def _clean(name: str) -> str:
    """A file's name without wrapper prefixes and with today's LayerNorm spelling."""
    name = re.sub(r"^((module|_orig_mod)\.)+", "", name).replace("._orig_mod.", ".")
    return re.sub(r"\.beta$", ".bias", re.sub(r"\.gamma$", ".weight", name))


def listing(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - SAMPLE} more" if len(names) > SAMPLE else ""
    return ", ".join(names[:SAMPLE]) + more


class Reader:
    """Fills a model from the tensors of a checkpoint."""

    def __init__(self, files: TensorFiles, arch: Architecture):
        self.files, self.arch = files, arch
        self.by_name = {}
        for name in files.names():
            clean = _clean(name)
            if clean in self.by_name:
                raise WeightsError(
                    f"weights: {name!r} and {self.by_name[clean]!r} are the same parameter"
                )
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
        dtype = self.files.dtype(self.by_name[name])
        if dtype not in DTYPES:
            raise WeightsError(
                f"weights: {name} has dtype {dtype}, one of {DTYPE_NAMES} needed "
                "(dtype=... reads other floating-point weights)"
            )
        return dtype

    def fill(self, model: Model, dtype: torch.dtype, device: torch.device, new_head: bool) -> None:
        """Give every parameter of a model on the meta device its values."""
        table = sources(model, self.prefixed)
        state, missing, used = {}, [], set()
        for parameter, source in table.items():
            names = self._present(source)
            used |= {*source.names, *source.also}
            if names is None:
                missing.append(parameter)
                continue
            rows, *rest = model.get_parameter(parameter).shape
            wanted = (rows // len(names), *rest)
            parts = [self._read(name, wanted) for name in names]
            state[parameter] = torch.cat(parts) if len(parts) > 1 else parts[0]
            state[parameter] = state[parameter].to(device=device, dtype=dtype, copy=len(parts) == 1)
        self._refuse_unexpected(model, used)
        fresh = [p for p in missing if new_head and p.startswith(("head.", "encoder.pooler."))]
        if len(fresh) < len(missing):
            names = [n for p in set(missing) - set(fresh) for n in table[p].names]
            names = [n for n in names if n not in self.by_name]
            in_encoder = any(
                p.startswith("encoder.") and not p.startswith("encoder.pooler.") for p in missing
            )
            hint = "" if in_encoder else "; new_head=True starts them at random values"
            raise WeightsError(f"weights: missing {listing(names)}{hint}")
        model.load_state_dict(state, strict=False, assign=True)
        start_fresh(model, fresh, dtype, device)

    def _read(self, name: str, wanted: tuple[int, ...]) -> torch.Tensor:
        """The tensor called `name`, of the shape that its place needs."""
        part = self.files.read(self.by_name[name])
        if tuple(part.shape) != wanted:
            raise WeightsError(f"weights: {name} has shape {tuple(part.shape)}, {wanted} needed")
        if not part.is_floating_point():
            raise WeightsError(f"weights: {name} has dtype {part.dtype}, floating point needed")
        return part

    def _present(self, source: Source) -> tuple[str, ...] | None:
        for names in (source.names, *((also,) for also in source.also)):
            if all(name in self.by_name for name in names):
                return names
        return None

    def _refuse_unexpected(self, model: Model, used: set[str]) -> None:
        """Refuse names that belong to no part of the family: not to the encoder, nor to any of its
        heads.
        """
        modules = {
            name
            for head in self.arch.heads.values()
            for r in head.renames
            for name in (*r.theirs, *r.also)
        }
        poolers = {name for r in self.arch.renames if r.ours == "pooler" for name in r.theirs}
        modules |= {(self.arch.prefix if self.prefixed else "") + name for name in poolers}
        # A rename names a module, or one parameter of it.
        known = modules | {f"{name}.{last}" for name in modules for last in ("weight", "bias")}
        stray = [re.compile(pattern) for pattern in self.arch.stray]
        unexpected = [
            name
            for name in self.by_name
            if name not in used
            and name not in known
            and not any(pattern.fullmatch(name) for pattern in stray)
        ]
        if unexpected:
            raise WeightsError(
                f"weights: unexpected {listing(unexpected)} in a {self.arch.name} checkpoint"
            )


def start_fresh(model: Model, names: list[str], dtype: torch.dtype, device: torch.device) -> None:
    """Random values for a new head: normal matrices, zero biases, unit norms."""
    if names:
        warnings.warn(f"new head: {listing(names)} start at random values", stacklevel=5)
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
