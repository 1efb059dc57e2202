"""The demo's two comparisons with transformers: are the vectors equal, and which engine is faster.

transformers is imported inside the functions: the package itself never needs it.
"""

import dataclasses
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from encoder_fast.text import TextEncoder
from encoder_fast.tokens import Tokens

# A block counts only where the same matmul took about the same time before and after it.
STEADY = 1.5
BATCH_TEXTS = 32


class Peer:
    """The mean-pooled, normalised AutoModel of model cards, with SDPA attention, in float32."""

    def __init__(self, folder: Path, max_length: int):
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        options = {"attn_implementation": "sdpa", "dtype": torch.float32}
        self.model = AutoModel.from_pretrained(str(folder), **options).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(str(folder))
        self.max_length = max_length

    def encode(self, texts: list[str]) -> np.ndarray:
        """N texts -> (N, W) float32 numpy array."""
        options = {"truncation": True, "max_length": self.max_length}
        return self.encode_ids(self.tokenizer(list(texts), **options)["input_ids"]).numpy()

    @torch.inference_mode()
    def encode_ids(self, ids: list[list[int]]) -> Tensor:
        """N lists of token ids -> (N, W) float32 tensor; batches of texts of similar length."""
        order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
        y_NW = torch.empty(len(ids), self.model.config.hidden_size)
        for start in range(0, len(order), BATCH_TEXTS):
            rows = order[start : start + BATCH_TEXTS]
            y_NW[torch.tensor(rows)] = self._vectors([ids[row] for row in rows])
        return y_NW

    def computed_tokens(self, ids: list[list[int]]) -> int:
        """Tokens that `encode_ids` computes, padding included."""
        lengths = sorted(map(len, ids), reverse=True)
        batches = [lengths[i : i + BATCH_TEXTS] for i in range(0, len(lengths), BATCH_TEXTS)]
        return sum(max(batch) * len(batch) for batch in batches)

    def _vectors(self, ids: list[list[int]]) -> Tensor:
        padded_BS = torch.zeros(len(ids), max(map(len, ids)), dtype=torch.long)
        mask_BS = torch.zeros_like(padded_BS)
        for row, one in enumerate(ids):
            padded_BS[row, : len(one)] = torch.tensor(one)
            mask_BS[row, : len(one)] = 1
        x_BSW = self.model(input_ids=padded_BS, attention_mask=mask_BS).last_hidden_state
        weights_BS1 = mask_BS[:, :, None].to(x_BSW.dtype)
        mean_BW = (x_BSW * weights_BS1).sum(1) / weights_BS1.sum(1)
        return torch.nn.functional.normalize(mean_BW, dim=-1)


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far two (N, W) arrays of unit vectors are apart."""

    texts: int
    largest: float
    smallest_cosine: float


def difference(a_NW: np.ndarray, b_NW: np.ndarray) -> Difference:
    """Largest absolute difference of any number, and smallest cosine of any row, in float64."""
    a_NW, b_NW = (np.asarray(x, dtype=np.float64) for x in (a_NW, b_NW))
    lengths_N = np.linalg.norm(a_NW, axis=1) * np.linalg.norm(b_NW, axis=1)
    cosines_N = (a_NW * b_NW).sum(1) / lengths_N
    return Difference(len(a_NW), float(np.abs(a_NW - b_NW).max()), float(cosines_N.min()))


@dataclasses.dataclass(frozen=True)
class Round:
    """One block of each engine, one after the other. Seconds; controls are four matmul times."""

    ours: float
    theirs: float
    controls: tuple[float, ...]

    @property
    def steady(self) -> bool:
        return max(self.controls) / min(self.controls) <= STEADY

    @property
    def ratio(self) -> float:
        return self.theirs / self.ours


def race(encoder: TextEncoder, peer: Peer, tokens: Tokens, rounds: int) -> Iterator[Round]:
    """Yields `Round`s of both engines over the same token ids; who begins alternates.

    One untimed pass each comes first. Tokenising is left out on both sides; sorting, batching,
    padding, the model, pooling and normalising are in.
    """
    engines = {
        "ours": lambda: encoder.encode_tokens(tokens),
        "theirs": lambda: peer.encode_ids(tokens.ids),
    }
    for run in engines.values():
        run()
    for number in range(rounds):
        names = list(engines) if number % 2 == 0 else list(engines)[::-1]
        seconds, controls = {}, []
        for name in names:
            controls.append(_control())
            start = time.perf_counter()
            engines[name]()
            seconds[name] = time.perf_counter() - start
            controls.append(_control())
        yield Round(seconds["ours"], seconds["theirs"], tuple(controls))


def median_ratio(rounds: list[Round]) -> float | None:
    """Median of the steady rounds' ratios, or None where no round was steady."""
    ratios = [one.ratio for one in rounds if one.steady]
    return statistics.median(ratios) if ratios else None


def _control() -> float:
    """Seconds of a fixed matmul: says whether the machine itself has changed speed. The middle
    one of a few, since any one can be interrupted."""
    a = torch.ones(512, 512)
    times = []
    for _ in range(8):
        start = time.perf_counter()
        torch.mm(a, a)
        times.append(time.perf_counter() - start)
    return statistics.median(times)
