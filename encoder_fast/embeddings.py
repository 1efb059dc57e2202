"""Batch -> the vectors that enter the first layer."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoder_fast.batch import Batch
from encoder_fast.config import EncoderConfig
from encoder_fast.kernels.dispatch import Ops


class Linear(nn.Linear):
    """Parameters of a linear layer `(width, out)`; the ops compute it on `(T, width)`."""

    def __init__(self, ops: Ops, width: int, out: int, bias: bool = True):
        super().__init__(width, out, bias=bias)
        self.ops = ops

    def forward(self, x_TW: Tensor) -> Tensor:
        return self.ops.linear(x_TW, self.weight, self.bias)


class Norm(nn.Module):
    """Parameters of a LayerNorm of `width`; the ops compute it on `(T, width)`."""

    def __init__(self, ops: Ops, width: int, eps: float, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.ops, self.eps = ops, eps

    def parts(self) -> tuple[Tensor, Tensor | None, float]:
        """weight, bias, eps: the tail of the arguments of `add_norm` and `embed`."""
        return self.weight, self.bias, self.eps

    def forward(self, x_TW: Tensor) -> Tensor:
        return self.ops.add_norm(x_TW, None, *self.parts())[0]


def token_positions(batch: Batch, config: EncoderConfig) -> Tensor:
    """Row of the position table (or rotary position) of each token, int64 `(T,)`, by the family's
    own rule.

    Columns for BERT, ALBERT, ELECTRA and ModernBERT. RoBERTa counts, over the slots of a row, ids
    that are not the pad id, from pad id + 1; its own code reads them before padding is removed and
    gives pad ids the row of the pad id. With embeddings in place of ids it counts columns.
    """
    if batch.explicit_positions_T is not None:
        return batch.explicit_positions_T
    pad = config.position_offset
    if pad is None:
        return batch.columns_T
    if batch.ids_T is None:
        return batch.columns_T + (pad + 1)
    source_R = batch.ids_T if batch.source_ids_R is None else batch.source_ids_R
    counts_R = (source_R != pad).cumsum(0)
    lengths = batch.source_lengths_B.to(source_R.device, non_blocking=True)
    starts = lengths.cumsum(0) - lengths
    before = F.pad(counts_R, (1, 0))[starts]
    counts_R = counts_R - torch.repeat_interleave(before, lengths, output_size=source_R.shape[0])
    positions_R = torch.where(source_R != pad, counts_R + pad, pad)
    return positions_R if batch.source_rows_T is None else positions_R[batch.source_rows_T]


def check_range(name: str, low_high: tuple[int, int] | None, rows: int, what: str) -> None:
    """Raise a `ValueError` unless both ends lie in 0 to rows - 1."""
    if low_high is not None and not 0 <= low_high[0] <= low_high[1] < rows:
        bad = low_high[0] if low_high[0] < 0 else low_high[1]
        raise ValueError(f"{name}: got {bad}, allowed are 0 to {rows - 1} ({what})")


class Embeddings(nn.Module):
    """Token, position and type tables, norm, and the map to the model width where the family has
    one.
    """

    def __init__(self, config: EncoderConfig, ops: Ops):
        super().__init__()
        self.config, self.ops = config, ops
        E = config.embedding_size
        self.token = nn.Embedding(config.vocab_size, E)
        self.position = (
            None if config.position_rows is None else nn.Embedding(config.position_rows, E)
        )
        self.token_type = nn.Embedding(config.type_rows, E) if config.type_rows else None
        self.norm = Norm(ops, E, config.norm_eps, config.norm_bias)
        self.project = Linear(ops, E, config.hidden_size) if config.project_embeddings else None

    def check(self, batch: Batch) -> None:
        """Raise a `ValueError` naming the argument if a table would be read outside its rows."""
        c = self.config
        check_range(
            "input_ids", batch.ranges.get("input_ids"), c.vocab_size, "vocab_size of the checkpoint"
        )
        check_range(
            "token_type_ids",
            batch.ranges.get("token_type_ids"),
            max(c.type_rows, 1),
            "type_vocab_size of the checkpoint",
        )
        if batch.embeds_TE is not None and batch.embeds_TE.shape[-1] != c.embedding_size:
            raise ValueError(
                f"inputs_embeds: got width {batch.embeds_TE.shape[-1]}, {c.embedding_size} needed"
            )
        if batch.device != self.token.weight.device:
            raise ValueError(
                f"input_ids: got device {batch.device}, the model is on {self.token.weight.device}"
            )
        if c.position_rows is None:
            positions = batch.ranges.get("position_ids", (0, 0))
            if positions[0] < 0:
                raise ValueError(f"position_ids: got {positions[0]}, allowed are 0 and above")
        else:
            self._check_positions(batch)

    def _check_positions(self, batch: Batch) -> None:
        c = self.config
        if batch.explicit_positions_T is not None:
            check_range(
                "position_ids",
                batch.ranges.get("position_ids"),
                c.position_rows,
                "rows of the position table",
            )
            return
        length = batch.ranges.get("columns", (0, -1))[1] + 1
        if length <= c.max_length:
            return
        # Columns only bound RoBERTa's positions: pad ids in front of a text do not count. Look at
        # the ids themselves.
        if c.position_offset is not None and batch.ids_T is not None:
            last = int(token_positions(batch, c).max())
            length = last - c.position_offset
        if length > c.max_length:
            raise ValueError(
                f"input_ids: got a text of {length} tokens, allowed are {c.max_length} "
                f"({c.position_rows} rows in the position table)"
            )

    def forward(self, batch: Batch, positions_T: Tensor) -> Tensor:
        """`(T, W)`."""
        c = self.config
        types_T = None
        if self.token_type is not None:
            types_T = torch.zeros_like(batch.columns_T) if batch.types_T is None else batch.types_T
        x_TE = self.ops.embed(
            batch.ids_T,
            batch.embeds_TE,
            self.token.weight,
            None if self.position is None else self.position.weight,
            positions_T,
            None if self.token_type is None else self.token_type.weight,
            types_T,
            *self.norm.parts(),
            padding_idx=c.pad_token_id,
            position_padding_idx=c.position_offset,
        )
        x_TE = F.dropout(x_TE, c.embedding_dropout, self.training)
        return x_TE if self.project is None else self.project(x_TE)
