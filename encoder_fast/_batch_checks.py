"""What `Batch` accepts, and the sentences that it refuses the rest with."""

from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
import torch
from torch import Tensor

MAX_TOKENS = 2**31 - 1


def flatten_lists(name: str, rows: Sequence[Sequence[int]]) -> tuple[Tensor, tuple[int, ...]]:
    """All rows as one int64 tensor, and their lengths."""
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Sequence):
        raise TypeError(f"{name}: got {type(rows).__name__}, a list of lists of ints needed")
    rows = [row.tolist() if isinstance(row, (Tensor, np.ndarray)) else row for row in rows]
    for b, row in enumerate(rows):
        if isinstance(row, (str, bytes)) or not isinstance(row, Sequence):
            raise TypeError(f"{name}[{b}]: got {type(row).__name__}, a list of ints needed")
    flat = list(chain.from_iterable(rows))
    for value in flat:
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            raise TypeError(f"{name}: got {value!r} ({type(value).__name__}), ints needed")
    if flat and not -(2**63) <= min(flat) <= max(flat) < 2**63:
        raise ValueError(f"{name}: got {max(flat, key=abs)}, which does not fit 64 bits")
    return torch.tensor(flat, dtype=torch.int64), tuple(len(row) for row in rows)


def one_input(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
    """The one of the two that was given."""
    if (input_ids is None) == (inputs_embeds is None):
        both = "both" if input_ids is not None else "neither"
        raise ValueError(f"input_ids, inputs_embeds: got {both}, exactly one needed")
    return inputs_embeds if input_ids is None else input_ids


def _tensor(name: str, x: Tensor, rank: int) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: got {type(x).__name__}, a tensor needed")
    if x.ndim != rank:
        raise ValueError(f"{name}: got shape {tuple(x.shape)}, {rank} dimensions needed")
    if x.numel() > MAX_TOKENS and rank < 3:
        raise ValueError(f"{name}: got {x.numel()} tokens, at most {MAX_TOKENS} fit int32 offsets")


def integers(name: str, x: Tensor, rank: int) -> Tensor:
    """`x` as int64, if it is an integer tensor of `rank` dimensions."""
    _tensor(name, x, rank)
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise TypeError(f"{name}: got dtype {x.dtype}, an integer dtype needed")
    return x.long()


def floats(name: str, x: Tensor, rank: int) -> None:
    """Check that `x` is a floating-point tensor of `rank` dimensions."""
    _tensor(name, x, rank)
    if not x.is_floating_point():
        raise TypeError(f"{name}: got dtype {x.dtype}, a floating-point dtype needed")


def per_token(
    name: str, x: Tensor | None, shape: Sequence[int], device: torch.device
) -> Tensor | None:
    """`x` as int64 of `shape`; one row `(1, S)` is repeated for every sequence."""
    if x is None:
        return None
    x = integers(name, x, len(shape))
    if len(shape) == 2 and x.shape[0] == 1 and x.shape[1] == shape[1]:
        x = x.expand(*shape)
    if tuple(x.shape) != tuple(shape):
        raise ValueError(f"{name}: got shape {tuple(x.shape)}, {tuple(shape)} needed")
    if x.device != device:
        raise ValueError(f"{name}: got device {x.device}, the tokens are on {device}")
    return x


def mask(attention_mask: Tensor | None, shape: Sequence[int], device: torch.device) -> Tensor:
    """The mask as bool `(B, S)`."""
    if attention_mask is None:
        return torch.ones(*shape, dtype=torch.bool, device=device)
    if not isinstance(attention_mask, Tensor):
        raise TypeError(f"attention_mask: got {type(attention_mask).__name__}, a tensor needed")
    if tuple(attention_mask.shape) != tuple(shape):
        raise ValueError(
            f"attention_mask: got shape {tuple(attention_mask.shape)}, {tuple(shape)} needed "
            "(per-query masks of 3 or 4 dimensions are not supported; use packed sequences)"
        )
    if attention_mask.device != device:
        raise ValueError(
            f"attention_mask: got device {attention_mask.device}, the tokens are on {device}"
        )
    real = attention_mask == 1
    odd = ~(real | (attention_mask == 0))
    if odd.any():
        raise ValueError(
            f"attention_mask: got value {attention_mask[odd][0].item()}, 0 or 1 needed"
        )
    return real


def row_extents(real_BS: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lengths (real tokens) and spans (first to last real column) of each row, on the host."""
    B, S = real_BS.shape
    if S == 0:
        return (0,) * B, (0,) * B
    ones = real_BS.to(torch.int8)
    lengths_B = real_BS.sum(1)
    spans_B = S - ones.flip(1).argmax(1) - ones.argmax(1)
    lengths, spans = torch.stack((lengths_B, spans_B)).tolist()
    return tuple(lengths), tuple(s if n else 0 for n, s in zip(lengths, spans, strict=True))


def offsets(cu_seqlens: Tensor, T: int) -> tuple[int, ...]:
    """Sequence lengths from offsets."""
    ends = integers("cu_seqlens", cu_seqlens, 1).tolist()
    if not ends:
        raise ValueError("cu_seqlens: got no offset, at least [0] needed")
    if ends[0] != 0 or ends[-1] != T:
        raise ValueError(
            f"cu_seqlens: got {ends[0]} to {ends[-1]}, 0 to {T} (the number of tokens) needed"
        )
    lengths = tuple(b - a for a, b in pairwise(ends))
    if min(lengths, default=0) < 0:
        b = next(i for i, n in enumerate(lengths) if n < 0)
        raise ValueError(
            f"cu_seqlens: got {ends[b]} before {ends[b + 1]} at index {b}, it must not decrease"
        )
    return lengths


def ranges(
    ids_T: Tensor | None, types_T: Tensor | None, positions_T: Tensor | None, columns_T: Tensor
) -> dict[str, tuple[int, int]]:
    """Smallest and largest value of each, in one transfer to the host."""
    named = {
        "input_ids": ids_T,
        "token_type_ids": types_T,
        "position_ids": positions_T,
        "columns": columns_T,
    }
    present = {name: x for name, x in named.items() if x is not None and x.numel()}
    if not present:
        return {}
    values = torch.stack([v for x in present.values() for v in x.aminmax()]).tolist()
    return {name: (values[2 * i], values[2 * i + 1]) for i, name in enumerate(present)}


def split_sizes(sizes: Sequence[int], B: int) -> list[int]:
    """Numbers of sequences that add up to B."""
    if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Sequence):
        raise TypeError(f"sizes: got {sizes!r}, a list of ints needed")
    for size in sizes:
        if not isinstance(size, (int, np.integer)) or isinstance(size, bool):
            raise TypeError(f"sizes: got {size!r} ({type(size).__name__}), ints needed")
    if sum(sizes) != B or min(sizes, default=0) < 0:
        raise ValueError(f"sizes: got {list(sizes)}, non-negative sizes with sum {B} needed")
    return [int(size) for size in sizes]


def same_kind(batches: Sequence) -> None:
    """Check that the batches can be joined."""
    if not batches:
        raise ValueError("batches: got none, at least one needed")
    for other in batches:
        if type(other) is not type(batches[0]) or not hasattr(other, "ids_T"):
            raise TypeError(f"batches: got {type(other).__name__}, only Batch needed")
    for field in ("ids_T", "explicit_positions_T"):
        if len({getattr(b, field) is None for b in batches}) > 1:
            raise ValueError(f"batches: {field} is given in some and missing in others")
    widths = {b.embeds_TE.shape[-1] for b in batches if b.embeds_TE is not None}
    if len(widths) > 1:
        raise ValueError(f"batches: got inputs_embeds of widths {sorted(widths)}, one width needed")
    devices = {b.device for b in batches}
    if len(devices) > 1:
        raise ValueError(f"batches: got devices {sorted(map(str, devices))}, one device needed")
