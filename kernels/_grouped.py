"""The torch backend's attention: sequences of one length together, local layers block by block."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from encoder_fast.kernels._launches import Window, arch, window
from encoder_fast.kernels._layout import Layout, visible
from encoder_fast.kernels._numeric import wide

QUERIES_PER_CHUNK = 1024
"""With dropout, torch's SDPA on a CPU holds the probabilities of its queries: take this many
queries at a time."""

SEQUENCES_PER_CALL = 32_768
"""Some CUDA kernels put the batch on a grid axis that ends at 65,535."""


@dataclass(frozen=True)
class Group:
    """Adjacent sequences of one length, attended in one call."""

    start: int
    count: int
    length: int
    masks: dict[int | None, Tensor | None]
    """By half-width: additive, in the input dtype; `(1, 1, L, L)` where sequences are attended
    whole, else `(blocks, 1, queries, keys)`; None where every token sees every other."""


@dataclass(frozen=True)
class Plan:
    """What all layers of one forward share."""

    groups: tuple[Group, ...]
    order_T: Tensor | None
    """Rows in group order, where the batch's own order does not have equal lengths side by side."""
    inverse_T: Tensor | None


def _band_mask(columns_L: Tensor, half: int, dtype: torch.dtype) -> Tensor:
    return _additive(visible(columns_L, columns_L, half), dtype)[None, None]


def _window_mask(columns_L: Tensor, half: int, block: int, dtype: torch.dtype) -> Tensor:
    """Mask `(blocks, 1, queries, keys)` of blocks of `block` queries; key 0 of block b is row
    `b * block - half` of the sequence.
    """
    L = columns_L.shape[0]
    blocks = -(-L // block)
    # Padding rows sit far from every token, and at distance 0 from each other, so that no row is
    # empty.
    far = torch.iinfo(torch.int32).max
    columns = F.pad(columns_L, (half, blocks * block - L + half), value=far)
    query = columns[half : half + blocks * block].view(blocks, block)
    key = columns.unfold(0, block + 2 * half, block)
    return _additive(visible(query, key, half), dtype)[:, None]


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(
        ~seen, float("-inf")
    )


def _masks(
    columns_L: Tensor, span: int, launches: dict[int | None, Window | None], dtype: torch.dtype
) -> dict:
    masks = {}
    for half, launch in launches.items():
        if half is None or span - 1 <= half:
            masks[half] = None
        elif columns_L.shape[0] <= launch.dense:
            masks[half] = _band_mask(columns_L, half, dtype)
        else:
            masks[half] = _window_mask(columns_L, half, launch.queries, dtype)
    return masks


def prepare(
    layout: Layout,
    halves: tuple[int | None, ...],
    dtype: torch.dtype,
    launch: Callable[[str, torch.dtype, int], Window] = window,
) -> Plan:
    """Groups and masks for one batch, on the host and the batch's device, without synchronising.

    `launch(kind of device, dtype, half)` says how local layers are cut into blocks: the table says
    it, except in the search that fills the table.
    """
    kind = arch(layout.columns_T.device)
    launches = {half: None if half is None else launch(kind, dtype, half) for half in halves}
    members: dict[tuple, list[int]] = {}
    reach = min((half for half in halves if half is not None), default=None)
    for b, (length, span) in enumerate(zip(layout.lengths, layout.spans, strict=True)):
        # Holes only matter where a window could tell: such a sequence has a mask of its own.
        holes = span > length and reach is not None and span - 1 > reach
        if length:
            members.setdefault((length, span, b) if holes else (length, length), []).append(b)
    starts = [0, *accumulate(layout.lengths)]
    groups, order, row = [], [], 0
    for (length, span, *_), sequences in members.items():
        first = layout.columns_T[starts[sequences[0]] : starts[sequences[0]] + length]
        masks = _masks(first, span, launches, dtype)
        for i in range(0, len(sequences), SEQUENCES_PER_CALL):
            count = min(SEQUENCES_PER_CALL, len(sequences) - i)
            groups.append(Group(row, count, length, masks))
            row += length * count
        order += sequences
    if order == sorted(order):
        return Plan(tuple(groups), None, None)
    rows = [torch.arange(starts[b], starts[b + 1], device="cpu") for b in order]
    order_T = torch.cat(rows).to(layout.columns_T.device, non_blocking=True)
    return Plan(tuple(groups), order_T, order_T.argsort())


def _dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float) -> Tensor:
    """`(n, H, L, D)` each -> `(n, L, H, D)`."""
    L = q.shape[2]
    if not dropout_p or L <= QUERIES_PER_CHUNK or q.device.type != "cpu":
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout_p)
        return o.transpose(1, 2)
    chunks = q.split(QUERIES_PER_CHUNK, dim=2)
    masks = [None] * len(chunks) if mask is None else mask.split(QUERIES_PER_CHUNK, dim=2)
    parts = [
        checkpoint(_dense, chunk, k, v, m, dropout_p, use_reentrant=False)
        for chunk, m in zip(chunks, masks, strict=True)
    ]
    return torch.cat(parts, dim=1)


def _blocks(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, half: int) -> tuple[Tensor, ...]:
    """One sequence, `(H, L, D)` each -> blocks of queries, `(blocks, H, queries, D)`, and the
    window of keys and values that each can see, `(blocks, H, keys, D)`, as overlapping views.
    """
    H, L, D = q.shape
    blocks, _, block, keys = mask.shape
    tail = blocks * block - L
    q_bHQD = F.pad(q, (0, 0, 0, tail)).view(H, blocks, block, D).transpose(0, 1)
    k_bHKD, v_bHKD = (
        F.pad(x, (0, 0, half, half + tail)).unfold(1, keys, block).permute(1, 0, 3, 2)
        for x in (k, v)
    )
    return q_bHQD, k_bHKD, v_bHKD


def _windows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, half: int, dropout_p: float) -> Tensor:
    """One sequence, `(H, L, D)` each -> `(L, H, D)`, block by block.

    Heads stay SDPA's second axis, so that its output is token-major in memory and needs no copy.
    """
    H, L, D = q.shape
    q, k, v = _blocks(q, k, v, mask, half)
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout_p)
    return o.transpose(1, 2).reshape(-1, H, D)[:L]


def _attend_group(qkv: Tensor, group: Group, half: int | None, dropout_p: float) -> Tensor:
    """One group: its rows `(n * L, 3, H, D)` -> `(n * L, H, D)`."""
    n, L, mask = group.count, group.length, group.masks[half]
    q, k, v = qkv.unflatten(0, (n, L)).permute(2, 0, 3, 1, 4)
    if mask is None or mask.shape[-2] == L:
        return _dense(q, k, v, mask, dropout_p).flatten(0, 1)
    return torch.cat([_windows(*s, mask, half, dropout_p) for s in zip(q, k, v, strict=True)])


def _scores_lse(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """Log-sum-exp over keys of `(..., queries, D)` x `(..., keys, D)`."""
    scores = (q @ k.mT).mul(q.shape[-1] ** -0.5)
    return (scores if mask is None else scores + mask).logsumexp(-1)


def _lse_group(qkv: Tensor, group: Group, half: int | None) -> Tensor:
    """One group: its rows `(n * L, 3, H, D)` -> `(n * L, H)`, in chunks of queries."""
    n, L, mask = group.count, group.length, group.masks[half]
    q, k, _ = wide(qkv).unflatten(0, (n, L)).permute(2, 0, 3, 1, 4)
    if mask is None or mask.shape[-2] == L:
        chunks = q.split(QUERIES_PER_CHUNK, dim=2)
        masks = [None] * len(chunks) if mask is None else mask.split(QUERIES_PER_CHUNK, dim=2)
        parts = [_scores_lse(c, k, m) for c, m in zip(chunks, masks, strict=True)]
        return torch.cat(parts, dim=2).transpose(1, 2).flatten(0, 1)
    parts = []
    for q_HLD, k_HLD in zip(q, k, strict=True):
        q_bHQD, k_bHKD, _ = _blocks(q_HLD, k_HLD, k_HLD, mask, half)
        lse_bHQ = _scores_lse(q_bHQD, k_bHKD, mask)
        parts.append(lse_bHQ.transpose(1, 2).flatten(0, 1)[:L])
    return torch.cat(parts)


def _by_group(qkv_T3HD: Tensor, plan: Plan, run: Callable[[Tensor, Group], Tensor]) -> Tensor:
    """`run` on the rows of each group, the results in the batch's own order."""
    if plan.order_T is not None:
        qkv_T3HD = qkv_T3HD.index_select(0, plan.order_T)
    parts = [run(qkv_T3HD[g.start : g.start + g.count * g.length], g) for g in plan.groups]
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out if plan.inverse_T is None else out.index_select(0, plan.inverse_T)


def attend(qkv_T3HD: Tensor, plan: Plan, half: int | None, dropout_p: float = 0.0) -> Tensor:
    """Attention of one layer, `(T, 3, H, D)` -> `(T, H, D)`."""
    if not plan.groups:
        return qkv_T3HD[:, 0].clone()
    return _by_group(qkv_T3HD, plan, lambda rows, g: _attend_group(rows, g, half, dropout_p))


def log_sum_exp(qkv_T3HD: Tensor, plan: Plan, half: int | None) -> Tensor:
    """Log-sum-exp of the scores of each query, fp32 (fp64 for fp64) `(T, H)`."""
    if not plan.groups:
        return wide(qkv_T3HD[:, 0, :, 0]).clone()
    return _by_group(qkv_T3HD, plan, lambda rows, g: _lse_group(rows, g, half))
