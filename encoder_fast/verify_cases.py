"""The inputs of `verify`: texts, how they are laid out, and what each of their tokens must be told.

Columns and positions are worked out here from the rows, in plain Python and apart from `Batch`, so
that a fault in unpadding cannot be in both sides of a comparison.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from encoder_fast.batch import Batch
from encoder_fast.config import EncoderConfig
from encoder_fast.model import Model

LENGTHS = (1, 64, 65, 129, 130)
"""Around the tile edges of kernels and the published window of ModernBERT."""
ROW = 130
"""Columns of the padded batches, where the position table has that many."""


@dataclass(frozen=True)
class Text:
    """The real tokens of one text, and the column and position of each."""

    ids: tuple[int, ...]
    columns: tuple[int, ...]
    positions: tuple[int, ...]
    types: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Case:
    """Texts laid out for one call: rows of ids with a mask, padded, or packed (all ones)."""

    rows: tuple[tuple[int, ...], ...]
    masks: tuple[tuple[int, ...], ...]
    types: tuple[tuple[int, ...], ...] | None = None
    positions: tuple[tuple[int, ...], ...] | None = None
    packed: bool = False
    as_embeddings: bool = False
    """Embeddings in place of ids, NaN in masked slots."""

    def texts(self, config: EncoderConfig) -> list[Text]:
        """What each text is when it is alone."""
        texts = []
        for b, (row, mask) in enumerate(zip(self.rows, self.masks, strict=True)):
            position = position_rule(config, row) if self.positions is None else self.positions[b]
            kept = [i for i, real in enumerate(mask) if real]
            columns = tuple(range(len(kept))) if self.packed else tuple(kept)
            types = None if self.types is None else tuple(self.types[b][i] for i in kept)
            ids, positions = (tuple(values[i] for i in kept) for values in (row, position))
            texts.append(Text(ids, columns, positions, types))
        return texts

    def run(self, model: Model) -> list[Tensor]:
        """Last hidden state of each text's tokens, `(L, W)`; NaN if padding is not all zeros."""
        if self.packed:
            rows = [list(row) for row in self.rows]
            extra = {"token_type_ids": self.types, "position_ids": self.positions}
            batch = Batch.from_lists(rows, **extra, device=model.device)
            return list(model(batch).last_hidden_state.split(batch.lengths))
        ids, mask = self.tensor(self.rows, model), self.tensor(self.masks, model)
        options = {
            name: self.tensor(values, model)
            for name, values in (("token_type_ids", self.types), ("position_ids", self.positions))
            if values is not None
        }
        if self.as_embeddings:
            embeds = model.encoder.embeddings.token(ids)
            embeds = embeds.masked_fill(mask[..., None] == 0, float("nan"))
            out = model(None, mask, inputs_embeds=embeds, **options).last_hidden_state
        else:
            out = model(ids, mask, **options).last_hidden_state
        keep = float("nan") if out[mask == 0].any() else 1.0
        return [keep * row[real == 1] for row, real in zip(out, mask, strict=True)]

    @staticmethod
    def tensor(values: tuple, model: Model) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=model.device)


def position_rule(config: EncoderConfig, row: tuple[int, ...]) -> tuple[int, ...]:
    """Position of each slot: its column; RoBERTa counts ids other than pad, from pad + 1."""
    pad = config.position_offset
    if pad is None:
        return tuple(range(len(row)))
    positions, count = [], 0
    for token in row:
        count += token != pad
        positions.append(pad + count if token != pad else pad)
    return tuple(positions)


class Texts:
    """Deterministic ids for a model, and the cases built of them.

    Args:
        config: whose vocabulary, windows and position table decide what is possible.
    """

    def __init__(self, config: EncoderConfig):
        self.config = config
        self.pad = config.pad_token_id or 0
        self.longest = ROW if config.max_length is None else min(ROW, config.max_length)

    def ids(self, length: int, seed: int) -> tuple[int, ...]:
        """`length` ids that are not the pad id."""
        count = self.config.vocab_size
        ids = ((3 + 7 * seed + 5 * t * t + 11 * t) % count for t in range(length))
        return tuple((i + 1) % count if i == self.pad else i for i in ids)

    def lengths(self) -> list[int]:
        """`LENGTHS`, and those around each half window: half + 2 is the first that loses a key."""
        halves = [half for half in self.config.half_windows if half is not None]
        wanted = {*LENGTHS, *(half + step for half in halves for step in (-1, 0, 1, 2))}
        limit = self.config.max_length
        clipped = {n if limit is None else min(n, limit) for n in wanted}
        return sorted(n for n in clipped if n > 0)

    def few(self) -> list[int]:
        """Lengths of a padded batch: full, half, one token."""
        return sorted({self.longest, max(self.longest // 2, 1), 1}, reverse=True)

    def packed(self, lengths: list[int]) -> Case:
        """One packed batch. A length has one text, so that its alone run serves every case."""
        rows = tuple(self.ids(n, n) for n in lengths)
        return Case(rows, tuple((1,) * n for n in lengths), packed=True)

    def padded(self, lengths: list[int], left: bool = False) -> Case:
        """One padded batch."""
        S, rows, masks = max(lengths), [], []
        for n in lengths:
            text, fill = self.ids(n, n), (self.pad,) * (S - n)
            rows.append(fill + text if left else text + fill)
            masks.append((0,) * (S - n) + (1,) * n if left else (1,) * n + (0,) * (S - n))
        return Case(tuple(rows), tuple(masks))

    def holes(self) -> Case:
        """A gap in the middle, a masked first column, and every third column masked."""
        S = self.longest
        rules: list[Callable[[int], bool]] = [
            lambda i: not S // 3 <= i < S // 3 + S // 4 + 1,
            lambda i: i > 0 and i != S - 2,
            lambda i: i % 3 != 1,
        ]
        masks = tuple(tuple(int(rule(i)) for i in range(S)) for rule in rules)
        return Case(tuple(self.ids(S, b) for b in range(len(rules))), masks)

    def other_hole_contents(self, case: Case) -> Case:
        """The same case with other ids (never the pad id, which RoBERTa counts) in masked slots."""
        other = self.ids(max(map(len, case.rows)), 99)
        rows = tuple(
            tuple(i if real else o for i, real, o in zip(row, mask, other, strict=False))
            for row, mask in zip(case.rows, case.masks, strict=True)
        )
        return replace(case, rows=rows)

    def other_neighbour(self, case: Case) -> Case:
        """The same case with other ids in its first text."""
        return replace(case, rows=(self.ids(len(case.rows[0]), 77), *case.rows[1:]))

    def positioned(self) -> Case:
        """Explicit positions that no rule would give: backwards, with gaps, inside the table."""
        case = self.packed([max(self.longest // 2, 1), max(self.longest // 4, 1)])
        rows = self.config.position_rows or 4 * ROW
        longest = tuple((rows - 1 - 3 * i) % rows for i in range(self.longest))
        return replace(case, positions=tuple(longest[: len(row)] for row in case.rows))

    def typed(self) -> Case:
        """Pairs: the second part of each text has the last type."""
        case = self.packed([max(self.longest // 2, 1), max(self.longest // 4, 1)])
        last = self.config.type_rows - 1
        types = (tuple(last * (3 * i > len(row)) for i in range(len(row))) for row in case.rows)
        return replace(case, types=tuple(types))

    def with_empty_rows(self, packed: bool) -> Case:
        """Texts between empty ones."""
        lengths = [0, max(self.longest // 3, 1), 0, 0, 1, 0]
        return self.packed(lengths) if packed else self.padded(lengths)
