"""attention: bidirectional attention inside each sequence of a packed batch, global or in a window.

    o_i = sum_j p_ij v_j,   p_i = softmax over visible j of (q_i . k_j / sqrt(D))

`visible` is the one definition of who sees whom. A window of half-width `half` counts *columns*,
the token's index in its own sequence before padding was removed: |column_i - column_j| <= half,
both ends included, so `local_attention = 128` is half 64 and 129 keys. Sequences never meet: each
is attended from its own rows only.

The `torch` backend takes all sequences of one length together (no padding, no mask for global
attention) and cuts a local layer into blocks of queries with the one window of keys that they can
see: O(T x window) time and memory. The `native` backend (`_native_attention`) takes each sequence
as it lies, and so does `triton` (`_triton_attention`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from encoder_fast.kernels import _grouped, _native_attention, _traced, _triton
from encoder_fast.kernels._cost import Cost
from encoder_fast.kernels._layout import Layout, visible
from encoder_fast.kernels._numeric import wide
from encoder_fast.kernels.dispatch import Implementation


def reference(
    qkv_T3HD: Tensor,
    plan: Layout,
    half: int | None,
    dropout_p: float = 0.0,
    with_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Specification.

    Args:
        qkv_T3HD: packed queries, keys, values `(T, 3, H, D)`, any strides.
        plan: from `prepare_reference`.
        half: window half-width in columns, None for global.
        dropout_p: on the probabilities; 0 outside training.
        with_lse: also return the log-sum-exp of the scores.

    Returns:
        `(o, lse)`: `(T, H, D)` in the input dtype, and None or the log-sum-exp of the scores, fp32
        `(T, H)`.
    """
    outputs, lses, start = [], [], 0
    for length in plan.lengths:
        rows = slice(start, start + length)
        start += length
        q_HLD, k_HLD, v_HLD = wide(qkv_T3HD[rows]).permute(1, 2, 0, 3)
        columns = plan.columns_T[rows]
        scores = q_HLD @ k_HLD.mT * q_HLD.shape[-1] ** -0.5
        scores = scores.masked_fill(~visible(columns, columns, half), float("-inf"))
        p = F.dropout(scores.softmax(-1), dropout_p)
        outputs.append((p @ v_HLD).transpose(0, 1))
        lses.append(scores.logsumexp(-1).transpose(0, 1))
    if not outputs:
        outputs, lses = [qkv_T3HD[:, 0].clone()], [wide(qkv_T3HD[:, 0, :, 0]).clone()]
    return torch.cat(outputs).to(qkv_T3HD.dtype), torch.cat(lses) if with_lse else None


def prepare_reference(layout: Layout, halves: tuple[int | None, ...], dtype: torch.dtype) -> Layout:
    """The reference needs nothing but the layout."""
    return layout


def prepare(
    layout: Layout, halves: tuple[int | None, ...], dtype: torch.dtype
) -> _grouped.Plan | _traced.TracedPlan:
    """Groups and masks of one batch, shared by all layers; in a traced graph, the batch's
    tensors.
    """
    if torch.compiler.is_compiling():
        return _traced.TracedPlan(layout.lengths_B, layout.spans_B, layout.columns_T)
    return _grouped.prepare(layout, halves, dtype)


def torch_attention(
    qkv_T3HD: Tensor,
    plan: _grouped.Plan | _traced.TracedPlan,
    half: int | None,
    dropout_p: float = 0.0,
    with_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """As `reference`, with `plan` from `prepare`. SDPA keeps no log-sum-exp: it is computed when
    asked for, outside traced graphs, and otherwise None.
    """
    if isinstance(plan, _traced.TracedPlan):
        return _traced.attend(qkv_T3HD, plan, half, dropout_p), None
    lse_TH = _grouped.log_sum_exp(qkv_T3HD, plan, half) if with_lse else None
    return _grouped.attend(qkv_T3HD, plan, half, dropout_p), lse_TH


def visible_pairs(length: int, half: int | None) -> int:
    """Query-key pairs of one sequence of `length` adjacent columns."""
    if half is None or half >= length - 1:
        return length * length
    return length * (2 * half + 1) - half * (half + 1)


def cost(lengths: tuple[int, ...], half: int | None, H: int, D: int, itemsize: int) -> Cost:
    """Two products over visible pairs; queries, keys, values read and outputs written once."""
    pairs = sum(visible_pairs(length, half) for length in lengths)
    return Cost(4 * pairs * H * D, 4 * sum(lengths) * H * D * itemsize)


IMPLEMENTATIONS = {
    "native": Implementation(
        _native_attention.native_attention, _native_attention.why_not, _native_attention.prepare
    ),
    "reference": Implementation(reference, prepare=prepare_reference),
    "torch": Implementation(torch_attention, prepare=prepare),
    "triton": Implementation(
        _triton.Lazy("_triton_attention", "attention"),
        _triton.why_not_attention,
        prepare=_triton.Lazy("_triton_attention", "prepare"),
        rotates=True,
    ),
}
