"""Checkpoint folders: where they are, what their config says, and their tensors by name. Files are
treated as hostile.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from encoder_fast.errors import ConfigError, WeightsError

HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
READING = (SafetensorError, RuntimeError, OSError, ValueError)
"""What reading a safetensors file raises."""
TEXT_FILES = ["*.json", "*.txt", "*.model", "*/*.json"]


def resolve_folder(path_or_id: str | Path) -> Path:
    """A local folder as it is, or a hub id as a downloaded snapshot.

    Raises:
        TypeError: neither text nor a path.
        WeightsError: neither a folder nor an id that the hub (or its local cache) can serve.
    """
    if not isinstance(path_or_id, (str, Path)):
        raise TypeError(f"path: got {path_or_id!r}, a folder or a hub id needed")
    path = Path(path_or_id).expanduser()
    named = bool(str(path_or_id))
    if named and path.is_dir():
        return path
    if named and path.exists():
        raise WeightsError(
            f"path: got {path_or_id!r}, which is a file; a folder or a hub id needed"
        )
    if not HUB_ID.fullmatch(str(path_or_id)):
        raise WeightsError(
            f"path: got {str(path_or_id)!r}, no such folder, and not a hub id like 'org/name'"
        )
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(str(path_or_id), allow_patterns=[*TEXT_FILES, "*.safetensors"])
        )
        if not any(folder.rglob("*.safetensors")):
            folder = Path(snapshot_download(str(path_or_id), allow_patterns=[*TEXT_FILES, "*.bin"]))
    except (OSError, ValueError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise WeightsError(
            f"path: got {str(path_or_id)!r}, no such folder, and the hub did not serve it "
            f"({first_line})"
        ) from error
    return folder


def read_json(file: Path, error: type[ValueError] = ConfigError) -> dict:
    """A json object from a file; one sentence if it is absent or not json."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{file.name}: not found in {file.parent}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as problem:
        raise error(f"{file}: not valid json ({problem})") from None
    if not isinstance(values, dict):
        raise error(f"{file}: got {type(values).__name__}, a json object needed")
    return values


def _weight_files(folder: Path) -> list[Path]:
    """Every file of the preferred format: one safetensors, shards, one pickle, pickle shards."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            shards = read_json(index, WeightsError).get("weight_map")
            if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
                raise WeightsError(f"{index}: no weight_map of file names")
            names = sorted(set(shards.values()))
            for shard in names:
                if Path(shard).name != shard:
                    raise WeightsError(f"{index}: shard {shard!r} is not a plain file name")
                if not (folder / shard).is_file():
                    raise WeightsError(f"{index}: shard {shard!r} is missing in {folder}")
            return [folder / shard for shard in names]
    raise WeightsError(
        f"weights: {folder} has no model.safetensors, no pytorch_model.bin and no index of shards"
    )


class TensorFiles:
    """Names and lazily read tensors of all files of one checkpoint."""

    def __init__(self, folder: Path):
        self.source: dict[str, tuple[Path, object]] = {}
        for file in _weight_files(folder):
            names, handle = _open(file)
            for name in names:
                if name in self.source:
                    raise WeightsError(f"{file}: {name!r} is also in {self.source[name][0].name}")
                self.source[name] = file, handle

    def names(self) -> Iterator[str]:
        return iter(self.source)

    def read(self, name: str) -> Tensor:
        """One tensor on the CPU."""
        file, handle = self.source[name]
        with _one_sentence(file):
            return handle[name] if isinstance(handle, dict) else handle.get_tensor(name)

    def dtype(self, name: str) -> torch.dtype:
        """The dtype of one tensor, whose values stay in the file."""
        file, handle = self.source[name]
        if isinstance(handle, dict):
            return handle[name].dtype
        with _one_sentence(file):
            shape = handle.get_slice(name).get_shape()
            return (handle.get_slice(name)[:0] if shape else handle.get_tensor(name)).dtype


@contextmanager
def _one_sentence(file: Path, caught: tuple[type[Exception], ...] = READING) -> Iterator[None]:
    try:
        yield
    except caught as error:
        first_line = str(error).strip().split("\n")[0] or type(error).__name__
        raise WeightsError(f"{file}: corrupt, truncated or unsafe ({first_line})") from error


def _open(file: Path) -> tuple[list[str], object]:
    if file.suffix == ".safetensors":
        with _one_sentence(file):
            handle = safe_open(file, framework="pt", device="cpu")
            return list(handle.keys()), handle
    # weights_only refuses every pickled object that is not a tensor: no code of the file runs. A
    # damaged file can make it raise anything.
    with _one_sentence(file, (Exception,)):
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(tensors, dict):
        raise WeightsError(f"{file}: got {type(tensors).__name__}, a dictionary of tensors needed")
    for name, value in tensors.items():
        plain = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
        if not isinstance(name, str) or not plain:
            raise WeightsError(f"{file}: got no plain tensor at {name!r}, only named ones needed")
    return list(tensors), tensors
