"""What attention knows of a batch, and who sees whom."""

from typing import Protocol

import torch
from torch import Tensor


class Layout(Protocol):
    """What attention reads of a batch."""

    lengths: tuple[int, ...]
    """Tokens of each sequence."""
    spans: tuple[int, ...]
    """Last column - first column + 1 of each sequence: equal to its length when the mask had no
    hole.
    """
    columns_T: Tensor


def visible(query_columns: Tensor, key_columns: Tensor, half: int | None) -> Tensor:
    """Bool `(..., queries, keys)`: may a query see a key of the same sequence?

    Args:
        query_columns, key_columns: integers `(..., queries)` and `(..., keys)`.
        half: largest visible distance in columns, or None for global attention.
    """
    distance = (query_columns[..., :, None] - key_columns[..., None, :]).abs()
    return torch.ones_like(distance, dtype=torch.bool) if half is None else distance <= half
