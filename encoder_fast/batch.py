"""Batch: texts as packed tokens. The only file that knows padding.

Every input form becomes the same thing: tokens of all sequences one after the other, `cu_seqlens`
that says where each starts, and what must travel with each token (its column before padding was
removed, type, explicit position). All numbers that the encoder needs on the host are read here,
once; nothing in the encoder waits for a device (checking labels does).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from encoder_fast import _batch_checks as check
from encoder_fast import _batch_parts as parts


@dataclass(frozen=True, eq=False)
class Batch:
    """Packed sequences. Build with `from_lists`, `from_padded` or `from_packed`."""

    cu_seqlens: Tensor
    """int32 `(B+1,)` on the batch's device: sequence b is rows `cu[b]` to `cu[b+1]`."""
    columns_T: Tensor
    """int64 `(T,)`: index of each token in its sequence, before padding and holes were removed."""
    ids_T: Tensor | None
    embeds_TE: Tensor | None
    types_T: Tensor | None
    explicit_positions_T: Tensor | None
    """Positions that the caller gave; None means the architecture's own rule."""
    lengths: tuple[int, ...]
    spans: tuple[int, ...]
    """Last column - first column + 1 of each sequence; its length unless the mask had holes."""
    padded_length: int
    """S: columns that `to_padded` writes."""
    source_ids_R: Tensor | None
    """Ids of all slots, padding included, row after row: RoBERTa's positions are defined on them.
    None: `ids_T`.
    """
    source_rows_T: Tensor | None
    source_lengths: tuple[int, ...]
    ranges: dict[str, tuple[int, int]]
    """Smallest and largest of `input_ids`, `token_type_ids`, `position_ids`, `columns`, where
    present.
    """

    lengths_B: Tensor = field(init=False)
    """`lengths` as an int64 tensor on the host; it and the next two serve compiled graphs, which
    must not bake lengths in."""
    spans_B: Tensor = field(init=False)
    source_lengths_B: Tensor = field(init=False)

    def __post_init__(self):
        for name in ("lengths", "spans", "source_lengths"):
            values = torch.tensor(getattr(self, name), dtype=torch.int64, device="cpu")
            object.__setattr__(self, f"{name}_B", values)

    @property
    def B(self) -> int:
        """Number of sequences."""
        return self.cu_seqlens.shape[0] - 1

    @property
    def T(self) -> int:
        """Number of packed tokens."""
        return self.columns_T.shape[0]

    @property
    def device(self) -> torch.device:
        return self.columns_T.device

    @cached_property
    def max_length(self) -> int:
        """Tokens of the longest sequence; 0 for an empty batch."""
        return max(self.lengths, default=0)

    @cached_property
    def padded_rows_T(self) -> Tensor:
        """Row of each token in the flattened padded form: `sequence * S + column`."""
        sequence_T = parts.repeat(torch.arange(self.B, device=self.device), self.lengths)
        return sequence_T * self.padded_length + self.columns_T

    @classmethod
    def from_lists(
        cls,
        input_ids: Sequence[Sequence[int]],
        token_type_ids: Sequence[Sequence[int]] | None = None,
        position_ids: Sequence[Sequence[int]] | None = None,
        device: torch.device | str | None = None,
    ) -> "Batch":
        """Sequences as lists (or 1-D arrays) of ints; empty sequences and an empty list are legal.

        Raises:
            TypeError: an id that is not an integer.
            ValueError: types or positions whose lengths differ from those of the ids.
        """
        ids_T, lengths = check.flatten_lists("input_ids", input_ids)
        extra = {}
        for name, value in (("token_type_ids", token_type_ids), ("position_ids", position_ids)):
            if value is None:
                extra[name] = None
                continue
            extra[name], other = check.flatten_lists(name, value)
            if other != lengths:
                raise ValueError(f"{name}: got lengths {other[:8]}, input_ids have {lengths[:8]}")
            extra[name] = extra[name].to(device)
        return cls._packed(
            ids_T.to(device), None, lengths, extra["token_type_ids"], extra["position_ids"]
        )

    @classmethod
    def from_packed(
        cls,
        input_ids: Tensor | None,
        cu_seqlens: Tensor,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        max_seqlen: int | None = None,
    ) -> "Batch":
        """Packed ids `(T,)` (or embeddings `(T, E)`) with offsets `(B+1,)`, any integer dtype.

        Positions only change positions; who sees whom is decided by `cu_seqlens` alone.

        Raises:
            TypeError, ValueError: wrong rank, dtype or length; offsets that do not start at 0, that
                decrease or that do not end at T; `max_seqlen` smaller than a sequence.
        """
        tokens = check.one_input(input_ids, inputs_embeds)
        if input_ids is not None:
            input_ids = check.integers("input_ids", input_ids, 1)
        else:
            check.floats("inputs_embeds", inputs_embeds, 2)
        T = tokens.shape[0]
        lengths = check.offsets(cu_seqlens, T)
        if max_seqlen is not None and max_seqlen < max(lengths, default=0):
            raise ValueError(
                f"max_seqlen: got {max_seqlen}, the longest sequence has {max(lengths)}"
            )
        types_T = check.per_token("token_type_ids", token_type_ids, (T,), tokens.device)
        positions_T = check.per_token("position_ids", position_ids, (T,), tokens.device)
        return cls._packed(input_ids, inputs_embeds, lengths, types_T, positions_T)

    @classmethod
    def from_padded(
        cls,
        input_ids: Tensor | None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> "Batch":
        """Padded ids `(B, S)` (or embeddings `(B, S, E)`) with a 0/1 mask `(B, S)` of any dtype; 1
        is a real token.

        The mask may have holes, padding on either side and empty rows. Masked slots are never read,
        except that RoBERTa's positions count the ids in them, as its own code does.

        Raises:
            TypeError, ValueError: wrong rank, shape, dtype or device; mask values other than 0 and
                1.
        """
        tokens = check.one_input(input_ids, inputs_embeds)
        if input_ids is not None:
            input_ids = check.integers("input_ids", input_ids, 2)
        else:
            check.floats("inputs_embeds", inputs_embeds, 3)
        shape, device = tokens.shape[:2], tokens.device
        types_BS = check.per_token("token_type_ids", token_type_ids, shape, device)
        positions_BS = check.per_token("position_ids", position_ids, shape, device)
        real_BS = check.mask(attention_mask, shape, device)
        (B, S), E = shape, tokens.shape[2:]
        rows_T = real_BS.reshape(-1).nonzero()[:, 0]

        def pack(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.reshape(B * S, *x.shape[2:]).index_select(0, rows_T)

        lengths, spans = check.row_extents(real_BS)
        columns_T = rows_T % max(S, 1)
        ids_T, types_T, positions_T = pack(input_ids), pack(types_BS), pack(positions_BS)
        return cls(
            cu_seqlens=parts.cu_seqlens(lengths, device),
            columns_T=columns_T,
            ids_T=ids_T,
            embeds_TE=pack(inputs_embeds) if E else None,
            types_T=types_T,
            explicit_positions_T=positions_T,
            lengths=lengths,
            spans=spans,
            padded_length=S,
            source_ids_R=None if input_ids is None else input_ids.reshape(-1),
            source_rows_T=None if input_ids is None else rows_T,
            source_lengths=(S,) * B,
            ranges=check.ranges(ids_T, types_T, positions_T, columns_T),
        )

    @classmethod
    def _packed(cls, ids_T, embeds_TE, lengths, types_T, positions_T) -> "Batch":
        """A batch whose columns are 0 to length - 1; arguments already checked."""
        device = (ids_T if embeds_TE is None else embeds_TE).device
        cu_seqlens = parts.cu_seqlens(lengths, device)
        T = sum(lengths)
        columns_T = torch.arange(T, device=device) - parts.repeat(cu_seqlens[:-1].long(), lengths)
        return cls(
            cu_seqlens=cu_seqlens,
            columns_T=columns_T,
            ids_T=ids_T,
            embeds_TE=embeds_TE,
            types_T=types_T,
            explicit_positions_T=positions_T,
            lengths=lengths,
            spans=lengths,
            padded_length=max(lengths, default=0),
            source_ids_R=None,
            source_rows_T=None,
            source_lengths=lengths,
            ranges=check.ranges(ids_T, types_T, positions_T, columns_T),
        )

    def to_padded(self, x_T: Tensor, fill: float = 0.0) -> Tensor:
        """Per-token values `(T, ...)` -> `(B, S, ...)`, `fill` in every slot that holds no token.

        Raises:
            ValueError: `x_T` does not have one row per token.
        """
        if x_T.shape[:1] != (self.T,):
            raise ValueError(
                f"x_T: got shape {tuple(x_T.shape)}, one row for each of {self.T} tokens needed"
            )
        out = x_T.new_full((self.B * self.padded_length, *x_T.shape[1:]), fill)
        out = out.index_copy(0, self.padded_rows_T, x_T)
        return out.view(self.B, self.padded_length, *x_T.shape[1:])

    def pack(self, x_BS: Tensor) -> Tensor:
        """Padded values `(B, S, ...)` -> the real tokens' `(T, ...)`.

        Raises:
            ValueError: `x_BS` does not have the batch's padded shape.
        """
        if x_BS.shape[:2] != (self.B, self.padded_length):
            raise ValueError(
                f"x_BS: got shape {tuple(x_BS.shape)}, it must begin with "
                f"{(self.B, self.padded_length)}"
            )
        return x_BS.flatten(0, 1).index_select(0, self.padded_rows_T.to(x_BS.device))

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        tensors = {name: v.to(device) for name, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **tensors)

    def split(self, sizes: Sequence[int]) -> tuple["Batch", ...]:
        """Batches of `sizes` sequences each, in order.

        Raises:
            ValueError: the sizes do not add up to B, or one is negative.
        """
        return parts.split(self, sizes)

    @staticmethod
    def concat(batches: Sequence["Batch"]) -> "Batch":
        """All sequences of several batches as one.

        Raises:
            ValueError: no batch; ids in some and embeddings in others; positions in some only;
                several devices.
        """
        return parts.concat(batches)
