"""What tests of Triton kernels share."""

import numpy as np
import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton")

DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"
if DEVICE == "cuda" and not torch.cuda.is_available():
    pytest.skip("neither a GPU nor Triton's interpreter", allow_module_level=True)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def each_dtype(function):
    names = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
    return pytest.mark.parametrize("dtype", DTYPES, ids=names)(function)


def philox(seed: int, *counter) -> np.ndarray:
    """First word of Philox4x32-10 (Salmon et al. 2011), from its definition."""
    words = [np.asarray(c, np.uint64) for c in np.broadcast_arrays(*counter)]
    words += [np.zeros_like(words[0])] * (4 - len(words))
    low, key = np.uint64(0xFFFFFFFF), [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a = np.uint64(0xD2511F53) * words[0]
        b = np.uint64(0xCD9E8D57) * words[2]
        words = [
            (b >> np.uint64(32)) ^ words[1] ^ np.uint64(key[0]),
            b & low,
            (a >> np.uint64(32)) ^ words[3] ^ np.uint64(key[1]),
            a & low,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return words[0].astype(np.uint32)


def kept(seed: int, p: float, place, row, part=0) -> Tensor:
    """Bool: what dropout keeps at these coordinates, as `_triton_jit.uniform` says."""
    uniform = (philox(seed, place, row, part) >> 8).astype(np.float32) / np.float32(2**24)
    return torch.from_numpy(uniform >= np.float32(p))


@pytest.fixture
def poisoned(monkeypatch):
    """Memory that kernels get for their results holds NaN, so that what they leave out shows."""

    def filled(make):
        def fill(*arguments, **options):
            x = make(*arguments, **options)
            return x.fill_(float("nan")) if x.is_floating_point() else x

        return fill

    for owner, name in ((Tensor, "new_empty"), (torch, "empty"), (torch, "empty_like")):
        monkeypatch.setattr(owner, name, filled(getattr(owner, name)))
