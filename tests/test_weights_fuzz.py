"""Weight files with random damage: each loads, or is refused in one `WeightsError`; and what is
read of them.
"""

import random
import shutil
import warnings

import pytest
import tiny
import torch
from safetensors.torch import load_file
from tiny import one_thread  # noqa: F401

import encoder_fast as ef
from encoder_fast.architectures import by_name
from encoder_fast.checkpoint import TensorFiles
from encoder_fast.stored import Reader

FILES = ("model.safetensors", "pytorch_model.bin")
ROUNDS = 200


def write(folder, file: str, tensors=None):
    """A tiny BERT's folder whose weights are in `file`."""
    source = tiny.saved("BE")
    shutil.copy(source / "config.json", folder)
    tensors = load_file(source / "model.safetensors") if tensors is None else tensors
    if file.endswith(".bin"):
        torch.save(tensors, folder / file)
    else:
        shutil.copy(source / "model.safetensors", folder)
    return folder / file


def damage(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, cut out, doubled or cut off; mostly where the structure is."""
    data = bytearray(data)
    ends = (len(data), min(len(data), 2000))
    for _ in range(rng.randint(1, 4)):
        i = rng.randrange(rng.choice(ends)) if rng.random() < 0.7 else -rng.randint(1, 2000)
        i %= len(data)
        kind = rng.randrange(4)
        if kind == 0:
            data[i] = rng.randrange(256)
        elif kind == 1:
            data[i] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del data[i : i + rng.randint(1, 8)]
        else:
            data[i:i] = data[i : i + rng.randint(1, 8)]
    return bytes(data)


@pytest.mark.parametrize("file", FILES)
def test_C64_random_damage_loads_or_is_one_error(file, tmp_path):
    path = write(tmp_path, file)
    whole, refused = path.read_bytes(), 0
    for seed in range(ROUNDS):
        path.write_bytes(damage(whole, random.Random(seed)))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ef.load(tmp_path)
        except ef.WeightsError as error:
            refused += 1
            assert "\n" not in str(error), f"seed {seed}"
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    assert refused > ROUNDS // 4, "the damage hits nothing"
    path.write_bytes(whole)
    assert ef.load(tmp_path).config.num_layers == 2


ODD = {
    "a number for a name": lambda t: t | {3: torch.ones(2)},
    "a list of tensors": lambda t: list(t.values()),
    "a number for a tensor": lambda t: t | {"pooler.dense.bias": 3.0},
    "a meta tensor": lambda t: t | {"pooler.dense.bias": torch.ones(32, device="meta")},
    "a sparse tensor": lambda t: t | {"pooler.dense.weight": torch.eye(32).to_sparse()},
}


@pytest.mark.parametrize("case", ODD)
def test_C64_a_pickle_holds_plain_tensors_by_name(case, tmp_path):
    tensors = load_file(tiny.saved("BE") / "model.safetensors")
    write(tmp_path, "pytorch_model.bin", ODD[case](tensors))
    with pytest.raises(ef.WeightsError, match=r"pytorch_model\.bin: .* needed$"):
        ef.load(tmp_path)


@pytest.mark.parametrize(
    "raised", [KeyError("x"), IndexError("x"), MemoryError(), AssertionError()]
)
def test_C64_whatever_unpickling_raises_is_one_error(raised, tmp_path, monkeypatch):
    write(tmp_path, "pytorch_model.bin")

    def fail(*_, **__):
        raise raised

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(ef.WeightsError, match=r"pytorch_model\.bin: corrupt"):
        ef.load(tmp_path)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_dtype_is_found_without_reading_the_table(file, dtype, tmp_path, monkeypatch):
    model = tiny.our_model("BE", dtype=dtype)
    model.save_pretrained(tmp_path)
    if file.endswith(".bin"):
        torch.save(load_file(tmp_path / FILES[0]), tmp_path / file)
        (tmp_path / FILES[0]).unlink()
    reader = Reader(TensorFiles(tmp_path), by_name("bert"))
    read = []
    monkeypatch.setattr(TensorFiles, "read", lambda self, name: read.append(name))
    assert reader.dtype() == dtype
    assert not read
    monkeypatch.undo()
    assert ef.load(tmp_path).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.int64, torch.float8_e4m3fn], ids=str)
def test_a_table_of_a_dtype_that_is_not_computed_in_is_named(dtype, tmp_path):
    tensors = load_file(tiny.saved("BE") / "model.safetensors")
    name = "embeddings.word_embeddings.weight"
    write(tmp_path, "pytorch_model.bin", tensors | {name: tensors[name].to(dtype)})
    with pytest.raises(
        ef.WeightsError, match=rf"word_embeddings\.weight has dtype {dtype}.*needed"
    ):
        ef.load(tmp_path)
