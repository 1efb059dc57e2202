"""Named inputs: how many texts of how many tokens. Seeded, so that a name always means the same
lengths and the same tokens.
"""

import json
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class Workload:
    """Lengths in tokens of the texts of one call. `pairs` are two texts each, for a reranker: the
    second part of each has token type 1 where the model knows types.
    """

    name: str
    lengths: tuple[int, ...]
    about: str
    pairs: bool = False

    @property
    def tokens(self) -> int:
        """Real tokens: padding is never counted."""
        return sum(self.lengths)

    @property
    def slots(self) -> int:
        """What a padded engine computes: texts times the longest."""
        return len(self.lengths) * max(self.lengths)

    @property
    def counts(self) -> dict[str, int]:
        """For a record."""
        sizes = {"texts": len(self.lengths), "longest": max(self.lengths)}
        return sizes | {"tokens": self.tokens, "slots": self.slots}


@dataclass(frozen=True)
class Inputs:
    """One workload for one model: the same tokens for every engine.

    `ids` and `types` have one tuple a text; `types` is None where the model has none or all are 0.
    `texts` are words that the tokenizer in the model's folder turns into `ids`; None for pairs.
    """

    ids: tuple[tuple[int, ...], ...]
    types: tuple[tuple[int, ...], ...] | None
    texts: tuple[str, ...] | None
    pad_id: int

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        return tuple(map(len, self.ids))

    def _padded(self, rows, fill: int) -> Tensor:
        longest = max(self.lengths)
        return torch.tensor([(*row, *[fill] * (longest - len(row))) for row in rows])

    @cached_property
    def ids_BS(self) -> Tensor:
        """int64, right-padded to the longest text."""
        return self._padded(self.ids, self.pad_id)

    @cached_property
    def mask_BS(self) -> Tensor:
        """int64, 1 for real tokens."""
        return self._padded([(1,) * n for n in self.lengths], 0)

    @cached_property
    def types_BS(self) -> Tensor | None:
        """int64, or None."""
        return None if self.types is None else self._padded(self.types, 0)


def inputs(workload: Workload, folder: Path) -> Inputs:
    """Draw the tokens of `workload` for the model in `folder` (see `models.write`).

    Each text is the tokenizer's first special token, words, and its last special token.
    """
    about = json.loads((folder / "bench.json").read_text(encoding="utf-8"))
    words = about["words"]
    generator = torch.Generator().manual_seed(zlib.crc32(workload.name.encode()))
    ids, types, texts = [], [], []
    for length in workload.lengths:
        drawn = torch.randint(len(words), (length,), generator=generator).tolist()[: length - 2]
        row = [about["first"], *(words[i][0] for i in drawn), about["last"]][:length]
        ids.append(tuple(row))
        texts.append(" ".join(words[i][1] for i in drawn))
        query = max(1, min(length // 2, 12))
        types.append((0,) * query + (1,) * (length - query))
    typed = workload.pairs and about["types"] > 1
    return Inputs(
        ids=tuple(ids),
        types=tuple(types) if typed else None,
        texts=None if workload.pairs else tuple(texts),
        pad_id=about["pad"],
    )


def _uniform(texts: int, longest: int, mean: int) -> tuple[int, ...]:
    """Lengths spread evenly from `2 * mean - longest`, but at least 2, to `longest`, shuffled."""
    shortest = max(2, 2 * mean - longest)
    return _shuffled(torch.linspace(shortest, longest, texts).round().long())


def _normal(texts: int, mean: float, deviation: float, longest: int) -> tuple[int, ...]:
    """The ModernBERT paper's variable-length batches: N(mean, deviation) clamped to 16..longest."""
    drawn = torch.randn(texts, generator=torch.Generator().manual_seed(0)) * deviation + mean
    return tuple(drawn.round().clamp(16, longest).long().tolist())


def _shuffled(lengths: Tensor) -> tuple[int, ...]:
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(0))
    return tuple(lengths[order].tolist())


def _search_log(texts: int, long: int) -> tuple[int, ...]:
    """Mostly 8 to 64 tokens, `long` of them 512: what a search box and its documents send."""
    drawn = torch.randint(8, 65, (texts - long,), generator=torch.Generator().manual_seed(0))
    return _shuffled(torch.cat([drawn, torch.full((long,), 512)]))


def _rerank(pairs: int) -> tuple[int, ...]:
    """A query of a dozen tokens beside passages of 40 to 240."""
    return tuple(12 + n for n in _uniform(pairs, 240, 140))


ALL = (
    Workload("1x32", (32,), "one query"),
    Workload("8x128", (128,) * 8, "eight short passages"),
    Workload("8x512", (512,) * 8, "eight full passages of a BERT"),
    Workload("mixed-512", _uniform(16, 512, 256), "16 texts spread evenly over 2 to 512 tokens"),
    Workload("paper-512", _normal(16, 256, 64, 512), "16 texts, N(256, 64): the ModernBERT paper"),
    Workload("1x2048", (2048,), "one article"),
    Workload("1x8192", (8192,), "one long document"),
    Workload("mixed-8192", _normal(4, 4096, 1024, 8192), "4 texts, N(4096, 1024): the paper"),
    Workload("search-log", _search_log(64, 3), "61 texts of 8 to 64 tokens, 3 of 512"),
    Workload("rerank", _rerank(16), "one query of 12 tokens with 16 passages", pairs=True),
)
WORKLOADS = {workload.name: workload for workload in ALL}
