"""What can be tuned. A new kernel adds a `Target` to `TARGETS`, its rows to `_launch_table.py`, and
a function that looks them up to `_launches.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import encoder_fast as ef
from encoder_fast.kernels import _grouped, _launches, attention
from encoder_fast.kernels._layout import visible

Key = tuple
"""(kind of device, dtype, ...): strings and whole numbers, as in the table."""
Launch = tuple
"""A named tuple of whole numbers."""


@dataclass(frozen=True)
class Target:
    """One entry of the table and how to search for better ones.

    `name` is the entry's. `keys(kind)` are the keys to
    tune on a kind of device. `present(key)` is the launch in use now, `candidates(key)` are those
    to try. `build(key, device)` makes inputs and returns `launch -> call`, the call returning the
    op's output. `check(key, device)` returns `output -> why it is wrong, or None`, for those
    inputs.
    """

    name: str
    keys: Callable[[str], tuple[Key, ...]]
    present: Callable[[Key], Launch]
    candidates: Callable[[Key], tuple[Launch, ...]]
    build: Callable[[Key, str], Callable[[Launch], Callable[[], Tensor]]]
    check: Callable[[Key, str], Callable[[Tensor], str | None]]


HALVES = (64,)
"""Half-widths that checkpoints have: ModernBERT's."""
DTYPES = {"cpu": ("bfloat16", "float32"), "cuda": ("bfloat16", "float16", "float32")}
LENGTHS = {
    "cpu": (1024, 512, 384, 256, 256, 192, 192, 130),
    "cuda": (4096, 2048, *4 * (1024,), *8 * (512,), *8 * (384,), *16 * (256,), *16 * (192,)),
}
"""Tokens of the sequences of one call: long ones for the block, short ones for the length up to
which a sequence is attended whole."""
HEADS, HEAD_WIDTH = 12, 64
FACTOR, ULPS = 2.0, 4.0
"""The accuracy law of an op: error <= 2x plain torch's + 4 units in the last place."""


def _window_keys(kind: str) -> tuple[Key, ...]:
    dtypes = DTYPES["cpu" if kind == "cpu" else "cuda"]
    return tuple((kind, dtype, half) for dtype in dtypes for half in HALVES)


def _window_present(key: Key) -> _launches.Window:
    kind, dtype, half = key
    return _launches.window(kind, getattr(torch, dtype), half)


def _window_candidates(key: Key) -> tuple[_launches.Window, ...]:
    half, found = key[2], {}
    for queries in (32, 64, 96, 128, 192, 256):
        for dense in (queries, queries + 2 * half, 384, 512, 1024):
            if dense >= queries:
                found[_launches.Window(queries, dense)] = None
    return tuple(found)


def _window_inputs(key: Key, device: str) -> tuple[Tensor, ef.Batch]:
    lengths = LENGTHS[torch.device(device).type]
    batch = ef.Batch.from_lists([[0] * n for n in lengths]).to(device)
    shape = (batch.T, 3, HEADS, HEAD_WIDTH)
    qkv_T3HD = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return qkv_T3HD.to(device, getattr(torch, key[1])), batch


def _window_build(key: Key, device: str) -> Callable:
    half = key[2]
    qkv_T3HD, batch = _window_inputs(key, device)

    def start(launch: _launches.Window) -> Callable[[], Tensor]:
        plan = _grouped.prepare(batch, (half,), qkv_T3HD.dtype, lambda *key: launch)
        return lambda: _grouped.attend(qkv_T3HD, plan, half)

    return start


def _plain(qkv_T3HD: Tensor, batch: ef.Batch, half: int) -> Tensor:
    """Plain torch: SDPA under a whole mask, sequence by sequence."""
    parts = []
    for rows, columns in zip(
        qkv_T3HD.split(batch.lengths), batch.columns_T.split(batch.lengths), strict=True
    ):
        q, k, v = rows.permute(1, 2, 0, 3)[:, None]
        mask = visible(columns, columns, half)
        parts.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].transpose(0, 1))
    return torch.cat(parts)


def _window_check(key: Key, device: str) -> Callable[[Tensor], str | None]:
    qkv_T3HD, batch = _window_inputs(key, device)
    exact = attention.reference(qkv_T3HD.double(), batch, key[2])[0]
    return law(exact, _plain(qkv_T3HD, batch, key[2]))


def law(exact: Tensor, plain: Tensor) -> Callable[[Tensor], str | None]:
    """The accuracy law, with the fp64 result and plain torch's in the dtype under test."""
    floor = ULPS * torch.finfo(plain.dtype).eps * exact.abs().max().item()
    allowed = FACTOR * (plain.double() - exact).abs().max().item() + floor

    def wrong(output: Tensor) -> str | None:
        if output.shape != plain.shape or output.dtype != plain.dtype:
            return f"returns {output.dtype} {tuple(output.shape)}"
        error = (output.double() - exact).abs().max().item()
        return None if error <= allowed else f"error {error:.2e}, {allowed:.2e} allowed"

    return wrong


TARGETS = (
    Target(
        "window", _window_keys, _window_present, _window_candidates, _window_build, _window_check
    ),
)
