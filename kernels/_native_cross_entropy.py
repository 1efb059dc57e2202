"""linear_cross_entropy on the native engine.

Scores are computed with words in rows and tokens in lanes, some words at a time, and only their
log-sum-exp is kept; the backward computes them again, group of words by group of words. Where all
scores are few (`kept` below) they are kept instead.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from encoder_fast.kernels import _native
from encoder_fast.kernels._native_linear import needs_gradient, rows
from encoder_fast.kernels._native_weights import DTYPES, address, compute_dtype

TOKENS_TOGETHER = 64


def _strided(x: Tensor) -> tuple[int, ...]:
    """As `rows`, of any strides: the last number is that of columns."""
    return *rows(x), x.stride(1)


def _padded(x_N: Tensor, filler: float) -> Tensor:
    """`x_N` with its length rounded up to whole panels of tokens."""
    N = x_N.shape[0]
    length = -(-N // TOKENS_TOGETHER) * TOKENS_TOGETHER
    padded = x_N.new_full((length,), filler)
    padded[:N] = x_N
    return padded


def _operands(x_NW, weight_VW, bias_V, labels_N, kept, dtype: torch.dtype) -> tuple:
    """What both calls of the engine begin with; the tensors must outlive the call.

    Args:
        dtype: of the products.
    """
    return (
        _strided(weight_VW), address(bias_V), _strided(x_NW), address(labels_N), address(kept),
        DTYPES[x_NW.dtype], compute_dtype(dtype),
    )  # fmt: skip


def _scores(x_NW, weight_VW, bias_V, labels_N, kept, dtype) -> Tensor:
    """Log-sum-exp, sum of scores and score of the label, `(3, N)`; labels are padded."""
    results = x_NW.new_zeros(3, labels_N.shape[0], dtype=torch.float32)
    _native.C.scores_of_words(
        *_operands(x_NW, weight_VW, bias_V, labels_N, kept, dtype),
        [address(row) for row in results], torch.get_num_threads(),
    )  # fmt: skip
    return results[:, : x_NW.shape[0]]


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_NW, weight_VW, bias_V, labels_N, smoothing, z_loss, scale, most_kept, dtype):
        N, V = x_NW.shape[0], weight_VW.shape[0]
        labels_N = _padded(labels_N, -1)
        wide_bias_V = None if bias_V is None else bias_V.float().contiguous()
        keep = any(ctx.needs_input_grad) and 0 < labels_N.shape[0] * V <= most_kept
        kept = x_NW.new_empty(V, labels_N.shape[0], dtype=torch.float32) if keep else None
        lse_N, sum_N, z_N = _scores(x_NW, weight_VW, wide_bias_V, labels_N, kept, dtype)
        loss = (1 - smoothing) * (lse_N - z_N) + z_loss * lse_N.square()
        if smoothing:
            loss = loss + smoothing * (lse_N - sum_N / V)
        ctx.save_for_backward(x_NW, weight_VW, wide_bias_V, labels_N, lse_N.clone(), kept)
        ctx.how = smoothing, z_loss, scale, dtype
        ctx.bias_dtype = None if bias_V is None else bias_V.dtype
        return loss.sum() * scale if N else x_NW.new_zeros((), dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x_NW, weight_VW, bias_V, labels_N, lse_N, kept = ctx.saved_tensors
        smoothing, z_loss, scale, dtype = ctx.how
        needs_x, needs_w, needs_b = ctx.needs_input_grad[:3]
        V = weight_VW.shape[0]
        if not x_NW.shape[0]:
            return *(torch.zeros_like(t) for t in (x_NW, weight_VW)), _zeros(bias_V), *(None,) * 6
        g_N = (grad.float() * scale).expand_as(lse_N)
        by_token = (
            _padded(lse_N, torch.inf),
            _padded((1 + 2 * z_loss * lse_N) * g_N, 0.0),
            _padded(g_N * (-smoothing / V), 0.0),
            _padded(g_N * (smoothing - 1), 0.0),
        )
        dx = torch.empty_like(x_NW, memory_format=torch.contiguous_format) if needs_x else None
        dw = torch.empty_like(weight_VW, memory_format=torch.contiguous_format) if needs_w else None
        db = torch.zeros_like(bias_V) if needs_b else None
        _native.C.gradients_of_words(
            *_operands(x_NW, weight_VW, bias_V, labels_N, kept, dtype),
            [address(t) for t in by_token], [address(t) for t in (dx, dw, db)],
            torch.get_num_threads(),
        )  # fmt: skip
        return dx, dw, None if db is None else db.to(ctx.bias_dtype), *(None,) * 6


def _zeros(x: Tensor | None) -> Tensor | None:
    return None if x is None else torch.zeros_like(x)


def linear_cross_entropy(
    x_NW: Tensor,
    weight_VW: Tensor,
    bias_V: Tensor | None,
    labels_N: Tensor,
    label_smoothing: float,
    z_loss: float,
    scale: float,
    most_kept: int,
) -> Tensor:
    """As `kernels.linear_cross_entropy.reference` for rows that all have a label. Under autocast
    products are in its dtype, and everything else in that of the parameters.

    Args:
        scale: the summed loss is multiplied by it.
        most_kept: scores are kept for the backward up to so many.
    """
    dtype = _native.autocast_dtype() or x_NW.dtype
    x_NW = x_NW.to(weight_VW.dtype)
    arguments = labels_N, label_smoothing, z_loss, scale, most_kept, dtype
    if not needs_gradient(x_NW, weight_VW, bias_V):
        x_NW, weight_VW, bias_V = (
            None if t is None else t.detach() for t in (x_NW, weight_VW, bias_V)
        )
    return _LinearCrossEntropy.apply(x_NW, weight_VW, bias_V, *arguments)
