"""Named inputs: how many texts of how many tokens. Seeded, so that a name always means the same
lengths.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Workload:
    """Lengths in tokens of the texts of one call."""

    name: str
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Real tokens: padding is never counted."""
        return sum(self.lengths)

    def padded(self, vocabulary: int, pad_id: int) -> tuple[Tensor, Tensor]:
        """Random ids `(B, S)` and their mask, right-padded to the longest text."""
        generator = torch.Generator().manual_seed(len(self.name))
        shape = len(self.lengths), max(self.lengths)
        ids_BS = torch.randint(5, min(vocabulary, 50_000), shape, generator=generator)
        mask_BS = torch.arange(shape[1]) < torch.tensor(self.lengths)[:, None]
        return ids_BS.masked_fill(~mask_BS, pad_id), mask_BS.long()


def _uniform(texts: int, longest: int, mean: int) -> tuple[int, ...]:
    """Lengths spread evenly from `2 * mean - longest`, but at least 2, to `longest`, shuffled."""
    shortest = max(2, 2 * mean - longest)
    lengths = torch.linspace(shortest, longest, texts).round().long()
    order = torch.randperm(texts, generator=torch.Generator().manual_seed(0))
    return tuple(lengths[order].tolist())


def _normal(texts: int, mean: float, deviation: float, longest: int) -> tuple[int, ...]:
    """The ModernBERT paper's variable-length batches: N(mean, deviation) clamped to 1..longest."""
    drawn = torch.randn(texts, generator=torch.Generator().manual_seed(0)) * deviation + mean
    return tuple(drawn.round().clamp(1, longest).long().tolist())


WORKLOADS = {
    w.name: w
    for w in (
        Workload("1x32", (32,)),
        Workload("8x128", (128,) * 8),
        Workload("8x512", (512,) * 8),
        Workload("mixed-512", _uniform(16, 512, 256)),
        Workload("paper-512", _normal(16, 256, 64, 512)),
        Workload("1x2048", (2048,)),
        Workload("1x8192", (8192,)),
    )
}
"""`mixed-512` is 16 texts of 2 to 512 tokens with mean 257; `paper-512` is N(256, 64)."""
