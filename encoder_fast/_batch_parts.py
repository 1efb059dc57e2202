"""Batches taken apart and put together. `Batch.split` and `Batch.concat` are the public names."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from encoder_fast import _batch_checks as check

if TYPE_CHECKING:
    from encoder_fast.batch import Batch


def cu_seqlens(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """int32 offsets `(B+1,)` of sequences with these lengths."""
    ends = torch.tensor((0, *lengths), dtype=torch.int64).cumsum(0)
    return ends.to(torch.int32).to(device, non_blocking=True)


def repeat(values_B: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Each sequence's value, once per token; the host lengths spare a synchronisation."""
    counts = torch.tensor(lengths, dtype=torch.int64).to(values_B.device, non_blocking=True)
    return torch.repeat_interleave(values_B, counts, output_size=sum(lengths))


def split(batch: "Batch", sizes: Sequence[int]) -> tuple["Batch", ...]:
    """See `Batch.split`."""
    ends = list(accumulate(check.split_sizes(sizes, batch.B), initial=0))
    tokens = list(accumulate(batch.lengths, initial=0))
    slots = list(accumulate(batch.source_lengths, initial=0))
    return tuple(
        _slice(batch, (b0, b1), (tokens[b0], tokens[b1]), (slots[b0], slots[b1]))
        for b0, b1 in pairwise(ends)
    )


def _slice(
    batch: "Batch", texts: tuple[int, int], tokens: tuple[int, int], slots: tuple[int, int]
) -> "Batch":
    """Sequences b0 to b1, which are the tokens t0 to t1 and the source slots r0 to r1."""
    (b0, b1), (t0, t1), (r0, r1) = texts, tokens, slots

    def rows(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[t0:t1]

    ids_T, types_T = rows(batch.ids_T), rows(batch.types_T)
    positions_T, columns_T = rows(batch.explicit_positions_T), rows(batch.columns_T)
    lengths, source = batch.lengths[b0:b1], batch.source_ids_R
    return replace(
        batch,
        cu_seqlens=cu_seqlens(lengths, batch.device),
        columns_T=columns_T,
        ids_T=ids_T,
        embeds_TE=rows(batch.embeds_TE),
        types_T=types_T,
        explicit_positions_T=positions_T,
        lengths=lengths,
        spans=batch.spans[b0:b1],
        source_ids_R=None if source is None else source[r0:r1],
        source_rows_T=None if source is None else batch.source_rows_T[t0:t1] - r0,
        source_lengths=batch.source_lengths[b0:b1],
        ranges=check.ranges(ids_T, types_T, positions_T, columns_T),
    )


def _cat(tensors: list[Tensor | None]) -> Tensor | None:
    return None if tensors[0] is None else torch.cat(tensors)


def _sources(batches: Sequence["Batch"]) -> tuple[Tensor | None, Tensor | None]:
    """Ids of all slots of all batches, and the slot of each token."""
    if batches[0].ids_T is None:
        return None, None
    ids, rows, offset = [], [], 0
    for b in batches:
        packed = b.source_ids_R is None
        rows.append((torch.arange(b.T, device=b.device) if packed else b.source_rows_T) + offset)
        ids.append(b.ids_T if packed else b.source_ids_R)
        offset += sum(b.source_lengths)
    return torch.cat(ids), torch.cat(rows)


def concat(batches: Sequence["Batch"]) -> "Batch":
    """See `Batch.concat`."""
    check.same_kind(batches)
    lengths = tuple(chain.from_iterable(b.lengths for b in batches))
    types_T = None
    if any(b.types_T is not None for b in batches):
        zeros = torch.zeros_like
        types_T = torch.cat(
            [zeros(b.columns_T) if b.types_T is None else b.types_T for b in batches]
        )
    ids_T, columns_T = _cat([b.ids_T for b in batches]), _cat([b.columns_T for b in batches])
    positions_T = _cat([b.explicit_positions_T for b in batches])
    source_ids_R, source_rows_T = _sources(batches)
    return replace(
        batches[0],
        cu_seqlens=cu_seqlens(lengths, batches[0].device),
        columns_T=columns_T,
        ids_T=ids_T,
        embeds_TE=_cat([b.embeds_TE for b in batches]),
        types_T=types_T,
        explicit_positions_T=positions_T,
        lengths=lengths,
        spans=tuple(chain.from_iterable(b.spans for b in batches)),
        padded_length=max(b.padded_length for b in batches),
        source_ids_R=source_ids_R,
        source_rows_T=source_rows_T,
        source_lengths=tuple(chain.from_iterable(b.source_lengths for b in batches)),
        ranges=check.ranges(ids_T, types_T, positions_T, columns_T),
    )
