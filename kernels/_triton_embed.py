"""embed on the triton backend: tables gathered, added and normalised in one pass; the gradients of
tables by sorted segments, without atomics.
"""

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from encoder_fast.kernels import _triton
from encoder_fast.kernels._triton_add_norm import ADD_NORM_BACKWARD, in_rows, tile_of
from encoder_fast.kernels._triton_embed_kernels import embed_kernel
from encoder_fast.kernels._triton_segments import reduced


def _results(first: Tensor, ids: Tensor | None, weight: Tensor, dtype, wide: bool, keep: bool):
    """y, and for a backward the sum, mean and 1 / std; not yet filled."""
    T, W = (first if ids is None else ids).shape[0], first.shape[1]
    y = weight.new_empty((T, W), dtype=torch.float32 if wide else dtype)
    s = weight.new_empty((T if keep else 0, W), dtype=dtype)
    return y, s, *(weight.new_empty(T if keep else 0, dtype=torch.float32) for _ in range(2))


def _embed(
    first: Tensor,
    ids: Tensor | None,
    kind: Tensor | None,
    kinds: Tensor | None,
    position: Tensor | None,
    positions: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    dtype: torch.dtype,
    wide: bool,
    keep: bool,
) -> tuple[Tensor, ...]:
    results = _results(first, ids, weight, dtype, wide, keep)
    T, W = results[0].shape
    if not results[0].numel():
        return results
    tables = [None if table is None else in_rows(table) for table in (first, kind, position)]
    indices = [None if rows is None else rows.contiguous() for rows in (ids, kinds, positions)]
    lengths = [0 if table is None else len(table) for table in tables]
    strides = [0 if table is None else table.stride(0) for table in tables]
    pairs = [x for pair in zip(tables, indices, strict=True) for x in pair]
    tile = tile_of(W)
    embed_kernel[(triton.cdiv(T, tile["ROWS"]),)](
        *pairs, weight, bias, *results, T, W, *lengths, *strides, eps,
        HAS_IDS=ids is not None, HAS_TYPES=kind is not None, HAS_POSITIONS=position is not None,
        HAS_BIAS=bias is not None, KEEPS=keep, **tile,
    )  # fmt: skip
    return results


def _table_gradient(dx: Tensor, rows: Tensor, length: int, skip: int, dtype: torch.dtype) -> Tensor:
    """`(length, W)`: row v is the sum of dx over the tokens that read row v of the table, in the
    order of the tokens; zeros for row `skip`.
    """
    # 32-bit keys take half the passes of a radix sort.
    rows, order = rows.to(torch.int32).sort(stable=True)
    edges = torch.arange(length + 1, dtype=torch.int32, device=dx.device)
    cu = torch.searchsorted(rows, edges, out_int32=True)
    return reduced(dx, cu, "sum", dtype, order_T=order, skip=skip)


EMBED = _triton.Operator(
    "triton_embed(Tensor first, Tensor? ids, Tensor? kind, Tensor? kinds, Tensor? position,"
    " Tensor? positions, Tensor weight, Tensor? bias, float eps, ScalarType dtype, bool wide,"
    " bool keep) -> (Tensor, Tensor, Tensor, Tensor)",
    _embed,
    lambda first, ids, kind, kinds, position, positions, weight, bias, eps, *how: _results(
        first, ids, weight, *how
    ),
)
TABLE_GRADIENT = _triton.Operator(
    "triton_table_gradient(Tensor dx, Tensor rows, SymInt length, int skip, ScalarType dtype)"
    " -> Tensor",
    _table_gradient,
    lambda dx, rows, length, skip, dtype: dx.new_empty((length, dx.shape[1]), dtype=dtype),
)


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, first, ids_T, kind, kinds_T, position, positions_T, weight_E, bias_E, eps, dtype,
        wide, skips,
    ):  # fmt: skip
        tables, indices = (first, kind, position), (ids_T, kinds_T, positions_T)
        pairs = [x for pair in zip(tables, indices, strict=True) for x in pair]
        y_TE, *kept = EMBED(*pairs, weight_E, bias_E, eps, dtype, wide, True)
        ctx.save_for_backward(*kept, weight_E, *indices)
        ctx.tables = [None if table is None else (table.shape[0], table.dtype) for table in tables]
        ctx.bias_dtype = None if bias_E is None else bias_E.dtype
        ctx.skips = skips
        return y_TE

    @staticmethod
    @once_differentiable
    def backward(ctx, dy_TE):
        s_TE, mean_T, rstd_T, weight_E, *indices = ctx.saved_tensors
        needs = ctx.needs_input_grad
        dx_TE, d_weight, d_bias = ADD_NORM_BACKWARD(
            dy_TE, None, s_TE, mean_T, rstd_T, weight_E, needs[6], needs[7]
        )
        grads = [None] * 12
        for i, (table, rows_T) in enumerate(zip(ctx.tables, indices, strict=True)):
            if not needs[2 * i]:
                continue
            length, dtype = table
            if rows_T is None:
                grads[2 * i] = dx_TE.to(dtype)
            else:
                grads[2 * i] = TABLE_GRADIENT(dx_TE, rows_T, length, ctx.skips[i], dtype)
        grads[6] = d_weight if needs[6] else None
        grads[7] = d_bias.to(ctx.bias_dtype) if needs[7] else None
        return tuple(grads)


def _row(padding_idx: int | None, table: Tensor | None) -> int:
    """The row that `F.embedding` means, which counts negative ones from the end; -1 for none."""
    return -1 if padding_idx is None or table is None else padding_idx % table.shape[0]


def embed(
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
    """As `kernels.embed.reference`; the sum is rounded to the tables' dtype before it is
    normalised, except in fp16. Under autocast the norm is fp32, as torch's is. An index outside its
    table gives a row of NaN.
    """
    first = embeds_TE if ids_T is None else token_VE
    tables = first, ids_T, type_YE, types_T, position_PE, positions_T
    norm = norm_weight_E, norm_bias_E, eps
    wide = torch.is_autocast_enabled(first.device.type)
    floats = first, type_YE, position_PE, norm_weight_E, norm_bias_E
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in floats):
        skips = _row(padding_idx, token_VE), -1, _row(position_padding_idx, position_PE)
        return _Embed.apply(*tables, *norm, token_VE.dtype, wide, skips)
    return EMBED(*tables, *norm, token_VE.dtype, wide, False)[0]
