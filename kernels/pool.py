"""pool: one vector per sequence from its packed tokens.

    cls: first token        last: last token        mean: sum / L        max: elementwise maximum
    weighted: sum_i i x_i / sum_i i, i = 1..L        mean_sqrt_len: sum / sqrt(L)

then, if asked, the first `truncate_dim` numbers (Matryoshka) and division by the L2 norm. Sums are
fp32 or wider. An empty sequence gives zeros, with zero gradient. Reads every token once: memory
bound.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from encoder_fast.kernels import _native_linear, _native_rows, _triton
from encoder_fast.kernels._cost import Cost
from encoder_fast.kernels._numeric import wide
from encoder_fast.kernels.dispatch import Implementation

PART = 64
"""Tokens that the torch form adds one by one: of 65,536 added so in fp32 it loses 64 times what
`x.sum(0)` does. In parts, 768 wide, they take 39 ms, in one 311 (`segment_reduce` walks down
columns); 256 texts of 32 tokens take 6.9 and 5.8 ms (2026-12-04, EPYC, 1 thread).
"""

MODES = ("cls", "mean", "max", "weighted", "last", "mean_sqrt_len")


def check_pooling(mode: str, width: int, truncate_dim: int | None) -> None:
    """Raise a `ValueError` for an unknown mode, or a `truncate_dim` outside 1 to `width`."""
    if mode not in MODES:
        raise ValueError(f"pooling: got {mode!r}, allowed are {MODES}")
    if truncate_dim is not None and not 1 <= truncate_dim <= width:
        raise ValueError(f"truncate_dim: got {truncate_dim}, allowed are 1 to {width}")


def _finish(y_BW: Tensor, normalize: bool, truncate_dim: int | None) -> Tensor:
    y_BW = y_BW if truncate_dim is None else y_BW[:, :truncate_dim]
    return F.normalize(y_BW, dim=-1) if normalize else y_BW


def _pool_one(x_LW: Tensor, mode: str) -> Tensor:
    L = x_LW.shape[0]
    if L == 0:
        return x_LW.sum(0)
    if mode == "cls":
        return x_LW[0]
    if mode == "last":
        return x_LW[-1]
    if mode == "max":
        return x_LW.amax(dim=0)
    if mode == "weighted":
        w_L = torch.arange(1, L + 1, device=x_LW.device, dtype=x_LW.dtype)
        return (w_L[:, None] * x_LW).sum(0) / w_L.sum()
    return x_LW.sum(0) / (L if mode == "mean" else L**0.5)


def reference(
    x_TW: Tensor,
    cu_seqlens_B1: Tensor,
    mode: str = "mean",
    normalize: bool = False,
    truncate_dim: int | None = None,
) -> Tensor:
    """Specification.

    Args:
        x_TW: packed tokens `(T, W)`.
        cu_seqlens_B1: int32 `(B+1,)`: sequence b is rows `cu[b]` to `cu[b+1]`.
        mode: one of `MODES`.

    Returns:
        `(B, W or truncate_dim)` in fp32 (fp64 for fp64 input).

    Raises:
        ValueError: unknown mode, or `truncate_dim` outside 1 to W.
    """
    check_pooling(mode, x_TW.shape[-1], truncate_dim)
    ends = cu_seqlens_B1.tolist()
    x_TW = wide(x_TW)
    rows = [_pool_one(x_TW[a:b], mode) for a, b in pairwise(ends)]
    y_BW = torch.stack(rows) if rows else x_TW[:0]
    return _finish(y_BW, normalize, truncate_dim)


def torch_pool(
    x_TW: Tensor,
    cu_seqlens_B1: Tensor,
    mode: str = "mean",
    normalize: bool = False,
    truncate_dim: int | None = None,
) -> Tensor:
    """As `reference`, for all sequences at once and without reading offsets on the host."""
    check_pooling(mode, x_TW.shape[-1], truncate_dim)
    starts_B, ends_B = cu_seqlens_B1[:-1].long(), cu_seqlens_B1[1:].long()
    lengths_B1 = (ends_B - starts_B)[:, None]
    if mode in ("cls", "last"):
        y_BW = _pick(x_TW, starts_B if mode == "cls" else ends_B - 1, lengths_B1)
        return _finish(y_BW, normalize, truncate_dim)
    x_TW = wide(x_TW)
    if mode == "max":
        y_BW = torch.segment_reduce(x_TW, "max", lengths=lengths_B1[:, 0], unsafe=True)
        return _finish(torch.where(lengths_B1 > 0, y_BW, 0.0), normalize, truncate_dim)
    if mode == "weighted":
        rank_T = torch.arange(x_TW.shape[0], device=x_TW.device)
        first_T = torch.repeat_interleave(starts_B, lengths_B1[:, 0], output_size=x_TW.shape[0])
        x_TW = x_TW * (rank_T - first_T + 1).to(x_TW.dtype)[:, None]
    sums_BW = _sums(x_TW, lengths_B1[:, 0])
    y_BW = sums_BW / _divisor(mode, lengths_B1.clamp(min=1).to(sums_BW.dtype))
    return _finish(y_BW.to(x_TW.dtype), normalize, truncate_dim)


def _sums(x_TW: Tensor, lengths_B: Tensor) -> Tensor:
    """The sum of each sequence, fp64 `(B, W)`: of up to `PART` tokens, then of these sums in fp64.

    There are as many parts as these numbers of tokens and sequences can need, without reading
    lengths on the host; those that are left over belong to one more sequence, and are empty.
    """
    (T, _), (B,) = x_TW.shape, lengths_B.shape
    count, device = T // PART + B, x_TW.device
    parts_B = (lengths_B + PART - 1) // PART
    parts_B1 = torch.cat((parts_B, (count - parts_B.sum())[None]))
    owner_P = torch.repeat_interleave(
        torch.arange(B + 1, device=device), parts_B1, output_size=count
    )
    first_B1 = parts_B1.cumsum(0) - parts_B1
    rank_P = torch.arange(count, device=device) - first_B1[owner_P]
    left_P = F.pad(lengths_B, (0, 1))[owner_P] - PART * rank_P
    sums_PW = torch.segment_reduce(x_TW, "sum", lengths=left_P.clamp(0, PART), unsafe=True)
    return torch.segment_reduce(sums_PW.double(), "sum", lengths=parts_B1, unsafe=True)[:B]


def native_pool(
    x_TW: Tensor,
    cu_seqlens_B1: Tensor,
    mode: str = "mean",
    normalize: bool = False,
    truncate_dim: int | None = None,
) -> Tensor:
    """As `reference`, each token read once."""
    if not _native_rows.can_pool(x_TW, cu_seqlens_B1):
        return torch_pool(x_TW, cu_seqlens_B1, mode, normalize, truncate_dim)
    check_pooling(mode, x_TW.shape[-1], truncate_dim)
    return _finish(_native_rows.pool(x_TW, cu_seqlens_B1, mode), normalize, truncate_dim)


def _pick(x_TW: Tensor, rows_B: Tensor, lengths_B1: Tensor) -> Tensor:
    """`x[rows]` in the wide dtype, zeros for empty sequences (whose row may lie outside `x`)."""
    if x_TW.shape[0] == 0:
        return wide(x_TW.new_zeros(rows_B.shape[0], x_TW.shape[-1]) + x_TW.sum())
    y_BW = x_TW.index_select(0, rows_B.clamp(0, x_TW.shape[0] - 1))
    return torch.where(lengths_B1 > 0, wide(y_BW), 0.0)


def _divisor(mode: str, lengths_B1: Tensor) -> Tensor:
    if mode == "mean":
        return lengths_B1
    return lengths_B1.sqrt() if mode == "mean_sqrt_len" else lengths_B1 * (lengths_B1 + 1) / 2


def cost(T: int, B: int, W: int, itemsize: int) -> Cost:
    """Reads every token once, writes one fp32 row per sequence."""
    return Cost(T * W, T * W * itemsize + 4 * B * W)


IMPLEMENTATIONS = {
    "reference": Implementation(reference),
    "torch": Implementation(torch_pool),
    "native": Implementation(native_pool, _native_linear.why_not),
    "triton": Implementation(_triton.Lazy("_triton_pool", "pool"), _triton.why_not),
}
