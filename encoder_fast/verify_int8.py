"""How close a checkpoint stays to itself in int8: the cosine of its vectors with those of fp32."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from encoder_fast.model import Model
from encoder_fast.verify_cases import Texts
from encoder_fast.verify_checks import Result
from encoder_fast.weights import load

LEAST = 0.99
"""Mean cosine below which int8 is refused, for vectors of texts and for those of tokens."""


def _vectors(model: Model, texts: Texts) -> Tensor:
    """Hidden states of all tokens of the texts that `verify` takes of every length, `(T, W)`."""
    case = texts.packed(texts.lengths())
    with torch.inference_mode():
        return torch.cat(case.run(model)).double()


def check(folder: Path, dtypes: list[str], device: torch.device) -> Iterator[Result]:
    """Mean cosine of tokens and of mean-pooled texts with the fp32 reference, for int8 beside each
    of `dtypes`. `error` is 1 - cosine.

    Raises:
        BackendError: int8 cannot run here, with the reason.
    """
    exact = load(folder, dtype="float32", device=device, backend="reference")
    texts = Texts(exact.config)
    wanted_TW = _vectors(exact, texts)
    lengths = [len(row) for row in texts.packed(texts.lengths()).rows]
    for dtype in dtypes:
        got_TW = _vectors(load(folder, dtype=dtype, device=device, precision="int8"), texts)
        pairs = {
            "tokens": (got_TW, wanted_TW),
            "texts": tuple(
                torch.stack([x.mean(0) for x in vectors.split(lengths)])
                for vectors in (got_TW, wanted_TW)
            ),
        }
        for name, (got, wanted) in pairs.items():
            cosines = torch.cosine_similarity(got, wanted, dim=-1)
            where = f"mean cosine of {name} {cosines.mean():.4f}, smallest {cosines.min():.4f}"
            error = 1 - cosines.mean().item()
            yield Result(f"int8 {name}", "native", f"int8 + {dtype}", error, 1 - LEAST, where)
