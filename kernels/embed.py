"""embed: token + position + type vectors, summed, then LayerNorm.

    y = LN(token[ids] + type[types] + position[positions])

A family without positions or types in its embedding (ModernBERT) passes None for them. `embeds_TE`
replaces the token lookup for callers who computed the vectors themselves. Memory bound: reads 3
rows and writes one per token.
"""

import torch.nn.functional as F
from torch import Tensor

from encoder_fast.kernels import _native_linear, _native_rows, _triton
from encoder_fast.kernels._cost import Cost
from encoder_fast.kernels._numeric import fast_layer_norm, layer_norm, wide
from encoder_fast.kernels.dispatch import Implementation


def reference(
    ids_T: Tensor | None,
    embeds_TE: Tensor | None,
    token_VE: Tensor,
    position_PE: Tensor | None,
    positions_T: Tensor | None,
    type_YE: Tensor | None,
    types_T: Tensor | None,
    norm_weight_E: Tensor,
    norm_bias_E: Tensor | None,
    eps: float,
    padding_idx: int | None = None,
    position_padding_idx: int | None = None,
) -> Tensor:
    """Specification.

    Args:
        ids_T: token ids, int64 `(T,)`; None when `embeds_TE` `(T, E)` is given.
        token_VE, position_PE, type_YE: the tables; the last two may be None.
        positions_T, types_T: rows of these tables, int64 `(T,)`.
        padding_idx, position_padding_idx: rows that never get a gradient, as in the checkpoints'
            own code.

    Returns:
        `(T, E)` in the dtype of `token_VE`.
    """
    x_TE = wide(embeds_TE) if ids_T is None else wide(F.embedding(ids_T, token_VE, padding_idx))
    if type_YE is not None:
        x_TE = x_TE + wide(F.embedding(types_T, type_YE))
    if position_PE is not None:
        x_TE = x_TE + wide(F.embedding(positions_T, position_PE, position_padding_idx))
    return layer_norm(x_TE, norm_weight_E, norm_bias_E, eps).to(token_VE.dtype)


def torch_embed(
    ids_T: Tensor | None,
    embeds_TE: Tensor | None,
    token_VE: Tensor,
    position_PE: Tensor | None,
    positions_T: Tensor | None,
    type_YE: Tensor | None,
    types_T: Tensor | None,
    norm_weight_E: Tensor,
    norm_bias_E: Tensor | None,
    eps: float,
    padding_idx: int | None = None,
    position_padding_idx: int | None = None,
) -> Tensor:
    """As `reference`, with the sum kept in the tables' dtype."""
    x_TE = embeds_TE if ids_T is None else F.embedding(ids_T, token_VE, padding_idx)
    if type_YE is not None:
        x_TE = x_TE + F.embedding(types_T, type_YE)
    if position_PE is not None:
        x_TE = x_TE + F.embedding(positions_T, position_PE, position_padding_idx)
    x_TE = x_TE.to(token_VE.dtype)
    return fast_layer_norm(x_TE, norm_weight_E, norm_bias_E, eps)


def native_embed(
    ids_T: Tensor | None,
    embeds_TE: Tensor | None,
    token_VE: Tensor,
    position_PE: Tensor | None,
    positions_T: Tensor | None,
    type_YE: Tensor | None,
    types_T: Tensor | None,
    norm_weight_E: Tensor,
    norm_bias_E: Tensor | None,
    eps: float,
    padding_idx: int | None = None,
    position_padding_idx: int | None = None,
) -> Tensor:
    """As `reference`; the sum is rounded to the tables' dtype before it is normalised."""
    tables = token_VE, position_PE, positions_T, type_YE, types_T
    parts = _native_rows.embed_parts(ids_T, embeds_TE, *tables)
    norm = norm_weight_E, norm_bias_E
    if not _native_rows.can_embed(parts, token_VE.dtype, *norm):
        return torch_embed(ids_T, embeds_TE, *tables, *norm, eps, padding_idx, position_padding_idx)
    paddings = {id(token_VE): padding_idx, id(position_PE): position_padding_idx}
    skipped = [_row(paddings.get(id(matrix)), matrix) for matrix, _ in parts]
    return _native_rows.embed(parts, *norm, eps, skipped)


def _row(padding_idx: int | None, table: Tensor) -> int:
    """The row that `F.embedding` means, which counts negative ones from the end; -1 for none."""
    return -1 if padding_idx is None else padding_idx % len(table)


def cost(T: int, E: int, tables: int, itemsize: int) -> Cost:
    """Gather from `tables` tables, sum, norm, write `(T, E)` of `itemsize` bytes each."""
    return Cost(T * E * (tables + 7), T * E * (tables + 1) * itemsize)


IMPLEMENTATIONS = {
    "reference": Implementation(reference),
    "torch": Implementation(torch_embed),
    "native": Implementation(native_embed, _native_linear.why_not),
    "triton": Implementation(_triton.Lazy("_triton_embed", "embed"), _triton.why_not),
}
