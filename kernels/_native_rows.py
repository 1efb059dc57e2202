"""add_norm, rope, embed and pool on the native engine: one pass over memory, fp32 in between.

Sums over rows, as in the gradients of norms and tables, are made of fixed parts that are added in a
fixed order: same bits whatever the number of threads.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from encoder_fast.kernels import _native
from encoder_fast.kernels._native_linear import in_rows, needs_gradient, rows
from encoder_fast.kernels._native_weights import DTYPES, address

POOL_MODES = {"cls": 0, "mean": 1, "max": 2, "weighted": 3, "last": 4, "mean_sqrt_len": 5}
"""Mode -> `ef::PoolMode`."""


def _ordinary(*tensors: Tensor | None) -> bool:
    """Can the engine see these numbers, and nobody else want to?"""
    if not _native.serves():
        return False
    plain = (Tensor, torch.nn.Parameter)
    return all(x is None or (type(x) in plain and x.device.type == "cpu") for x in tensors)


def _matrices(dtype: torch.dtype, width: int, *tensors: Tensor | None) -> bool:
    """Are these all rows of `width` numbers of one dtype, which the engine has?"""
    return dtype in DTYPES and all(
        x is None or (x.dtype == dtype and x.ndim == 2 and x.shape[1] == width) for x in tensors
    )


def _norm_of(dtype: torch.dtype, width: int, weight: Tensor, bias: Tensor | None) -> bool:
    """Are these a norm's parameters, of this dtype or in fp32?"""
    if weight is None or weight.dtype not in (dtype, torch.float32):
        return False
    return all(
        p is None or (p.shape == (width,) and p.dtype == weight.dtype) for p in (weight, bias)
    )


# ------------------------------------------------------------------------------------------ norms


Part = tuple[Tensor, Tensor | None]
"""Rows to be summed: all of a matrix, or those that an index `(T,)` names."""


def _strided(x_TW: Tensor | None) -> tuple[int, int]:
    """Address and distance of rows."""
    return rows(x_TW)[::3]


def _normalise(
    parts: list[Part], T: int, weight_W, bias_W, eps: float, keep_sum: bool, train: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """LayerNorm of the sum of up to three parts of T rows: `(y, sum, statistics)`; the last two are
    None unless they are to be kept and needed to train.
    """
    parts = [(in_rows(matrix), index) for matrix, index in parts]
    weight_W, bias_W = weight_W.contiguous(), None if bias_W is None else bias_W.contiguous()
    like, W = parts[0][0], weight_W.shape[0]
    y_TW = like.new_empty(T, W)
    s_TW = like.new_empty(T, W) if keep_sum else None
    # Mean and 1 / std of each row.
    statistics_2T = like.new_empty(2, T, dtype=torch.float32) if train else None
    mean, rstd = (0, 0) if statistics_2T is None else map(address, statistics_2T)
    addends = [(*_strided(matrix), address(index), len(matrix)) for matrix, index in parts]
    _native.C.add_norm(
        addends, address(s_TW), address(y_TW), mean, rstd, address(weight_W), address(bias_W), T, W,
        eps, DTYPES[like.dtype], DTYPES[weight_W.dtype], torch.get_num_threads(),
    )  # fmt: skip
    return y_TW, s_TW, statistics_2T


def _normalise_backward(
    d_y_TW: Tensor, d_s_TW: Tensor | None, saved: tuple, needs: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the sum, the weight and the bias, those that are needed.

    Args:
        saved: the sum, the statistics and the weight.
    """
    s_TW, statistics_2T, weight_W = saved
    s_TW, weight_W, d_y_TW = in_rows(s_TW), weight_W.contiguous(), in_rows(d_y_TW)
    T, W = s_TW.shape
    d_s_TW = None if d_s_TW is None else in_rows(d_s_TW)
    d_x_TW = d_y_TW.new_empty(T, W) if needs[0] else None
    d_weight_W, d_bias_W = (weight_W.new_empty(W) if need else None for need in needs[1:])
    _native.C.add_norm_backward(
        _strided(d_y_TW), _strided(d_s_TW), _strided(s_TW), *map(address, statistics_2T),
        address(weight_W), address(d_x_TW), address(d_weight_W), address(d_bias_W), T, W,
        DTYPES[s_TW.dtype], DTYPES[weight_W.dtype], torch.get_num_threads(),
    )  # fmt: skip
    return d_x_TW, d_weight_W, d_bias_W


# --------------------------------------------------------------------------------------- add_norm


def can_add_norm(x_TW, residual_TW, weight_W, bias_W) -> bool:
    """Is this call one for `add_norm`? The torch form serves the others."""
    if not _ordinary(x_TW, residual_TW, weight_W, bias_W) or x_TW.ndim != 2:
        return False
    if residual_TW is not None and residual_TW.shape != x_TW.shape:
        return False
    dtype = _sum_dtype(x_TW, residual_TW)
    return dtype in DTYPES and _norm_of(dtype, x_TW.shape[1], weight_W, bias_W)


def _sum_dtype(x_TW: Tensor, residual_TW: Tensor | None) -> torch.dtype:
    """Under autocast a product gives bf16 and is added to an fp32 residual."""
    return x_TW.dtype if residual_TW is None else torch.promote_types(x_TW.dtype, residual_TW.dtype)


def _add_norm(x_TW, residual_TW, weight_W, bias_W, eps, train):
    parts = [(x_TW, None)] if residual_TW is None else [(x_TW, None), (residual_TW, None)]
    keep_sum = residual_TW is not None
    y_TW, s_TW, statistics = _normalise(parts, len(x_TW), weight_W, bias_W, eps, keep_sum, train)
    return y_TW, s_TW if keep_sum else x_TW, statistics


class _AddNorm(torch.autograd.Function):
    """Returns y, and with a residual the sum: without one it is x itself."""

    @staticmethod
    def forward(ctx, x_TW, residual_TW, weight_W, bias_W, eps):
        ctx.set_materialize_grads(False)
        y_TW, s_TW, statistics = _add_norm(x_TW, residual_TW, weight_W, bias_W, eps, True)
        ctx.save_for_backward(s_TW, statistics, weight_W)
        return y_TW if residual_TW is None else (y_TW, s_TW)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_y_TW, d_s_TW=None):
        if d_y_TW is None:
            return d_s_TW, d_s_TW, None, None, None
        needs = ctx.needs_input_grad
        d_x_TW, *rest = _normalise_backward(
            d_y_TW, d_s_TW, ctx.saved_tensors, (any(needs[:2]), *needs[2:4])
        )
        return d_x_TW if needs[0] else None, d_x_TW if needs[1] else None, *rest, None


def add_norm(x_TW, residual_TW, weight_W, bias_W, eps: float) -> tuple[Tensor, Tensor]:
    """As `kernels.add_norm.reference`; the sum is rounded before it is normalised."""
    if residual_TW is not None:
        dtype = _sum_dtype(x_TW, residual_TW)
        x_TW, residual_TW = x_TW.to(dtype), residual_TW.to(dtype)
    if not needs_gradient(x_TW, residual_TW, weight_W, bias_W):
        return _add_norm(x_TW, residual_TW, weight_W, bias_W, eps, False)[:2]
    if residual_TW is None:
        return _AddNorm.apply(x_TW, None, weight_W, bias_W, eps), x_TW
    return _AddNorm.apply(x_TW, residual_TW, weight_W, bias_W, eps)


# ------------------------------------------------------------------------------------------- rope


def can_rope(qkv_T3HD, cos_TK, sin_TK) -> bool:
    """Is this call one for `rope`? The torch form serves the others."""
    if not _ordinary(qkv_T3HD, cos_TK, sin_TK) or qkv_T3HD.dtype not in DTYPES:
        return False
    if qkv_T3HD.ndim != 4 or qkv_T3HD.shape[1] != 3 or qkv_T3HD.shape[3] % 2:
        return False
    table = qkv_T3HD.shape[0], qkv_T3HD.shape[3] // 2
    return all(x.dtype == torch.float32 and x.shape == table for x in (cos_TK, sin_TK))


def _turn(qkv_T3HD: Tensor, cos_TK: Tensor, sin_TK: Tensor, sign: float) -> Tensor:
    """The rotation by `sign * a`; the native attention reads token-major memory as it comes."""
    T, _, H, D = qkv_T3HD.shape
    qkv_T3HD = qkv_T3HD if qkv_T3HD.stride(3) == 1 else qkv_T3HD.contiguous()
    cos_TK, sin_TK = cos_TK.contiguous(), sin_TK.contiguous()
    out_T3HD = qkv_T3HD.new_empty(T, 3, H, D)
    _native.C.rope(
        address(qkv_T3HD), qkv_T3HD.stride()[:3], address(out_T3HD), address(cos_TK),
        address(sin_TK), T, H, D, sign, DTYPES[qkv_T3HD.dtype], torch.get_num_threads(),
    )  # fmt: skip
    return out_T3HD


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv_T3HD, cos_TK, sin_TK):
        ctx.save_for_backward(cos_TK, sin_TK)
        return _turn(qkv_T3HD, cos_TK, sin_TK, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_T3HD):
        return _turn(grad_T3HD, *ctx.saved_tensors, -1.0), None, None


def rope(qkv_T3HD: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    """As `kernels.rope.reference`, contiguous."""
    if needs_gradient(qkv_T3HD):
        return _Rope.apply(qkv_T3HD, cos_TK, sin_TK)
    return _turn(qkv_T3HD, cos_TK, sin_TK, 1.0)


# ------------------------------------------------------------------------------------------- pool


def can_pool(x_TW, cu_seqlens_B1) -> bool:
    """Is this call one for `pool`? The torch form serves the others."""
    if not _ordinary(x_TW, cu_seqlens_B1) or x_TW.ndim != 2 or cu_seqlens_B1.ndim != 1:
        return False
    return x_TW.dtype in DTYPES and not cu_seqlens_B1.is_floating_point() and len(cu_seqlens_B1) > 0


def _pool_call(x_TW, shape, dtype, cu_seqlens_B1, y_BW, mode) -> tuple:
    """Arguments that forward and backward share; `shape` and `dtype` are those of x."""
    return (
        _strided(x_TW), address(cu_seqlens_B1), address(y_BW), len(cu_seqlens_B1) - 1, *shape,
        POOL_MODES[mode], DTYPES[dtype],
    )  # fmt: skip


def _pool_forward(x_TW: Tensor, cu_seqlens_B1: Tensor, mode: str) -> Tensor:
    y_BW = x_TW.new_empty(len(cu_seqlens_B1) - 1, x_TW.shape[1], dtype=torch.float32)
    call = _pool_call(x_TW, x_TW.shape, x_TW.dtype, cu_seqlens_B1, y_BW, mode)
    _native.C.pool(*call, torch.get_num_threads())
    return y_BW


def _covers(cu_seqlens_B1: Tensor, T: int) -> bool:
    """Is every token in a sequence?"""
    return cu_seqlens_B1[[0, -1]].tolist() == [0, T]


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TW, cu_seqlens_B1, mode):
        y_BW = _pool_forward(x_TW, cu_seqlens_B1, mode)
        # Only the maximum has to look again at who won.
        ctx.save_for_backward(cu_seqlens_B1, *((x_TW, y_BW) if mode == "max" else ()))
        ctx.shape, ctx.dtype, ctx.mode = x_TW.shape, x_TW.dtype, mode
        return y_BW

    @staticmethod
    @once_differentiable
    def backward(ctx, d_y_BW):
        cu_seqlens_B1, *rest = ctx.saved_tensors
        x_TW, y_BW = rest or (None, None)
        d_y_BW = in_rows(d_y_BW)
        # Zeros where a sequence is one token, and for tokens of no sequence.
        every = ctx.mode not in ("cls", "last") and _covers(cu_seqlens_B1, ctx.shape[0])
        make = d_y_BW.new_empty if every else d_y_BW.new_zeros
        d_x_TW = make(ctx.shape, dtype=ctx.dtype)
        call = _pool_call(x_TW, ctx.shape, ctx.dtype, cu_seqlens_B1, y_BW, ctx.mode)
        _native.C.pool_backward(*call, _strided(d_y_BW), address(d_x_TW), torch.get_num_threads())
        return d_x_TW, None, None


def pool(x_TW: Tensor, cu_seqlens_B1: Tensor, mode: str) -> Tensor:
    """As `kernels.pool.reference` before truncation and normalization, fp32 `(B, W)`."""
    x_TW, cu_seqlens_B1 = in_rows(x_TW), cu_seqlens_B1.to(torch.int32).contiguous()
    if needs_gradient(x_TW):
        return _Pool.apply(x_TW, cu_seqlens_B1, mode)
    return _pool_forward(x_TW, cu_seqlens_B1, mode)


# ------------------------------------------------------------------------------------------ embed


def embed_parts(
    ids_T, embeds_TE, token_VE, position_PE, positions_T, type_YE, types_T
) -> list[Part]:
    """What `embed` adds up, in this order."""
    parts = [(token_VE, ids_T) if ids_T is not None else (embeds_TE, None)]
    parts += [] if type_YE is None else [(type_YE, types_T)]
    return parts + ([] if position_PE is None else [(position_PE, positions_T)])


def can_embed(parts: list[Part], dtype: torch.dtype, weight_E, bias_E) -> bool:
    """Is this call one for `embed`? The torch form serves the others."""
    if not _ordinary(weight_E, bias_E, *(x for part in parts for x in part)):
        return False
    (first, index_T), *others = parts
    if first is None or any(index is None for _, index in others) or weight_E is None:
        return False
    T = len(first) if index_T is None else len(index_T)
    indices = [index for _, index in parts if index is not None]
    if any(i.dtype not in (torch.int64, torch.int32) or i.shape != (T,) for i in indices):
        return False
    E = first.shape[-1]
    return _norm_of(dtype, E, weight_E, bias_E) and _matrices(dtype, E, *(m for m, _ in parts))


def _embed(matrices, indices, weight_E, bias_E, eps, train):
    parts = list(zip(matrices, indices, strict=True))
    T = len(matrices[0] if indices[0] is None else indices[0])
    return _normalise(parts, T, weight_E, bias_E, eps, train, train)


def _gradient_of_table(d_TE: Tensor, index_T: Tensor, like: tuple, skipped: int) -> Tensor:
    """Each row of the table gets the sum over the tokens that read it.

    Args:
        like: the table's shape and dtype.
    """
    (V, E), dtype = like
    d_table = d_TE.new_zeros(V, E, dtype=dtype)
    _native.C.gather_backward(
        address(d_TE), address(index_T), address(d_table), len(index_T), V, E, skipped,
        DTYPES[dtype], torch.get_num_threads(),
    )  # fmt: skip
    return d_table


class _Embed(torch.autograd.Function):
    """`indices` and `skipped`, the row without a gradient or -1, belong to `matrices`."""

    @staticmethod
    def forward(ctx, weight_E, bias_E, eps, indices, skipped, *matrices):
        y_TE, s_TE, statistics = _embed(matrices, indices, weight_E, bias_E, eps, True)
        ctx.save_for_backward(s_TE, statistics, weight_E, *indices)
        ctx.skipped, ctx.likes = skipped, [(x.shape, x.dtype) for x in matrices]
        return y_TE

    @staticmethod
    @once_differentiable
    def backward(ctx, d_y_TE):
        *saved, indices = *ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        needs, wanted = ctx.needs_input_grad[:2], ctx.needs_input_grad[5:]
        d_TE, *d_norm = _normalise_backward(d_y_TE, None, tuple(saved), (any(wanted), *needs))
        each = zip(wanted, indices, ctx.likes, ctx.skipped, strict=True)
        d_matrices = [
            None
            if not want
            else d_TE
            if index is None
            else _gradient_of_table(d_TE, index, like, s)
            for want, index, like, s in each
        ]
        return *d_norm, None, None, None, *d_matrices


def embed(parts: list[Part], weight_E, bias_E, eps: float, skipped: list[int]) -> Tensor:
    """As `kernels.embed.reference`; the sum is rounded before it is normalised.

    Args:
        skipped: for each part the row of its table that never gets a gradient, or -1.

    Raises:
        IndexError: an index points outside its table.
    """
    matrices = [matrix for matrix, _ in parts]
    indices = [None if i is None else i.to(torch.int64).contiguous() for _, i in parts]
    if not needs_gradient(weight_E, bias_E, *matrices):
        return _embed(matrices, indices, weight_E, bias_E, eps, False)[0]
    return _Embed.apply(weight_E, bias_E, eps, indices, skipped, *matrices)
