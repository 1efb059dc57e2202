"""Packed token vectors -> one vector per text, and vectors -> scores."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def read_out(
    pool: Callable, x_TW: Tensor, cu_B1: Tensor, modes: tuple[str, ...], skip_tokens: int = 0
) -> Tensor:
    """Pooled vectors of all modes, side by side.

    pool         the model's `pool` op
    x_TW         packed tokens (T, W); cu_B1 int32 offsets (B+1,)
    skip_tokens  leading tokens of each text (a prompt) that take no part

    Returns (B, len(modes) * W) float32.
    """
    if skip_tokens:
        x_TW, cu_B1 = _drop_front(x_TW, cu_B1, skip_tokens)
    pooled = [pool(x_TW, cu_B1, mode=mode) for mode in modes]
    if skip_tokens and "weighted" in modes:
        index = modes.index("weighted")
        pooled[index] = _weighted_after_prompt(pool, x_TW, cu_B1, pooled[index], skip_tokens)
    return torch.cat(pooled, dim=-1).float()


def similarity(measure: str, a_NW: Tensor, b_MW: Tensor) -> Tensor:
    """(N, M) scores, larger is closer: "cosine", "dot", or minus the "euclidean" or "manhattan"
    distance."""
    if measure == "cosine":
        a_NW, b_MW = F.normalize(a_NW, dim=-1), F.normalize(b_MW, dim=-1)
    if measure in ("cosine", "dot"):
        return a_NW @ b_MW.T
    return -torch.cdist(a_NW, b_MW, p=1 if measure == "manhattan" else 2)


def _drop_front(x_TW: Tensor, cu_B1: Tensor, count: int) -> tuple[Tensor, Tensor]:
    lengths_B = (cu_B1[1:] - cu_B1[:-1]).long()
    starts_T = torch.repeat_interleave(cu_B1[:-1].long(), lengths_B, output_size=len(x_TW))
    keep_T = torch.arange(len(x_TW), device=x_TW.device) - starts_T >= count
    kept_B1 = torch.zeros_like(cu_B1)
    kept_B1[1:] = (lengths_B - count).clamp(min=0).cumsum(0)
    return x_TW[keep_T], kept_B1


def _weighted_after_prompt(
    pool: Callable, x_TW: Tensor, cu_B1: Tensor, weighted_BW: Tensor, skipped: int
) -> Tensor:
    """The tokens keep the weights that they have in the whole text, s+1, s+2, ...: the sum of
    (s + i) x_i is s times the plain sum plus the sum of i x_i."""
    count_B1 = (cu_B1[1:] - cu_B1[:-1])[:, None].to(weighted_BW.dtype)
    plain_B1, ranked_B1 = skipped * count_B1, count_B1 * (count_B1 + 1) / 2
    mean_BW = pool(x_TW, cu_B1, mode="mean")
    return (plain_B1 * mean_BW + ranked_B1 * weighted_BW) / (plain_B1 + ranked_B1).clamp(min=1)
