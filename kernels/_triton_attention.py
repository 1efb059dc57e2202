"""attention on the triton backend: the plan of a batch, and the launches of a layer.

The plan is a list of tiles, made on the device from the lengths without waiting for it, and shared
by all layers in both directions. Global layers, and windows wider than a tile, rotate queries and
keys once into a buffer, which the backward makes again; small windows rotate inside.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from encoder_fast.kernels import _launches, _triton
from encoder_fast.kernels._layout import Layout
from encoder_fast.kernels._triton_attention_backward_kernels import (
    dkv_kernel,
    dq_kernel,
    local_dkv_kernel,
    local_dq_kernel,
)
from encoder_fast.kernels._triton_attention_kernels import forward_kernel, local_forward_kernel
from encoder_fast.kernels._triton_attention_launch import (
    COARSE,
    LOCAL,
    Launch,
    grid,
    launch,
    padded_width,
    takes_whole_window,
)
from encoder_fast.kernels._triton_rope import rotated

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
PRODUCTS = {"highest": "ieee", "high": "tf32x3", "medium": "tf32"}
"""torch's float32 matmul precision -> Triton's, for fp32."""


@dataclass(frozen=True)
class TritonPlan:
    """What all layers of one forward share."""

    fine_N3: Tensor
    """int32, see `tile_map`: tiles of `LOCAL` rows."""
    coarse_N3: Tensor
    """The same for `COARSE` rows."""
    columns_T: Tensor | None
    """int32; None where no sequence has a hole."""
    holes: Tensor | None
    """bool `()` on the host, in a traced graph: has some sequence a hole?"""


def most_tiles(T: int, B: int, rows: int) -> int:
    """Tiles of B sequences of T tokens at most."""
    return T // rows + B


def tile_map(lengths_B: Tensor, rows: int, count: int) -> Tensor:
    """int32 `(count, 3)`: for each tile its sequence's first row in the batch, that sequence's
    length, and the tile's first row in it. Tiles of long sequences come first. `count` may be more
    than there are: the rest have length 0.
    """
    longest_first = torch.argsort(lengths_B, descending=True, stable=True)
    begins = (lengths_B.cumsum(0) - lengths_B)[longest_first]
    lengths = lengths_B[longest_first]
    tiles = (lengths + rows - 1) // rows
    ends = tiles.cumsum(0)
    tile = torch.arange(count, device=lengths_B.device)
    rank = torch.searchsorted(ends, tile, right=True)
    used = rank < lengths.shape[0]
    rank = torch.where(used, rank, 0)
    first = (tile - ends[rank] + tiles[rank]) * rows
    return torch.stack((begins[rank], lengths[rank] * used, first), 1).to(torch.int32)


def prepare(layout: Layout, halves: tuple[int | None, ...], dtype: torch.dtype) -> TritonPlan:
    """See `attention.prepare`."""
    T, device = layout.columns_T.shape[0], layout.columns_T.device
    if torch.compiler.is_compiling():
        lengths_B = layout.lengths_B.to(device, non_blocking=True)
        counts = [most_tiles(T, lengths_B.shape[0], rows) for rows in (LOCAL, COARSE)]
        maps = [tile_map(lengths_B, *of) for of in zip((LOCAL, COARSE), counts, strict=True)]
        holes = (layout.lengths_B != layout.spans_B).any()
        return TritonPlan(*maps, layout.columns_T.to(torch.int32), holes)
    lengths_B = torch.tensor(layout.lengths, dtype=torch.int64, device="cpu")
    if device.type == "cuda":
        # From pinned memory a copy waits for nothing.
        lengths_B = lengths_B.pin_memory().to(device, non_blocking=True)
    counts = [sum(-(-n // rows) for n in layout.lengths) for rows in (LOCAL, COARSE)]
    maps = [tile_map(lengths_B, *of) for of in zip((LOCAL, COARSE), counts, strict=True)]
    holes = tuple(layout.lengths) != tuple(layout.spans)
    return TritonPlan(*maps, layout.columns_T.to(torch.int32) if holes else None, None)


class _Call(NamedTuple):
    """Everything of one call but its large tensors, in the order of the operators' arguments."""

    cos: Tensor | None
    sin: Tensor | None
    fine: Tensor
    coarse: Tensor
    columns: Tensor | None
    holes: Tensor | None
    seed: Tensor | None
    half: int
    """-1: global."""
    p: float

    @property
    def has_holes(self) -> bool:
        return self.columns is not None and (self.holes is None or bool(self.holes))

    def is_local(self, qkv: Tensor) -> bool:
        half = None if self.half < 0 else self.half
        return takes_whole_window(half, self.has_holes, self.p, qkv.dtype, qkv.shape[-1])

    def tiles(self, run: Launch) -> Tensor:
        return self.coarse if run.map_rows == COARSE else self.fine

    def inputs(self, qkv: Tensor, local: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys, values; those that kernels of small windows do not rotate, rotated."""
        q, k, v = qkv.unbind(1)
        if self.cos is not None and not local:
            q, k = rotated(qkv, self.cos, self.sin, 1.0, 2).unbind(1)
        return q, k, v

    def numbers(self, local: bool) -> tuple:
        """The window, where it is no constant, and dropout."""
        return () if local else (self.half, self.p, 1.0 / (1.0 - self.p) if self.p < 1 else 0.0)

    def constants(self, qkv: Tensor, run: Launch, local: bool) -> dict:
        _, _, H, D = qkv.shape
        fp32 = PRODUCTS[torch.get_float32_matmul_precision()]
        shared = {
            "H": H,
            "D": D,
            "WIDTH": padded_width(D),
            "PRECISION": fp32 if qkv.dtype == torch.float32 else "ieee",
            "num_warps": run.warps,
            "num_stages": run.stages,
        }
        if local:
            return shared | {"N": run.rows, "HALF": self.half, "ROTATES": self.cos is not None}
        return shared | {
            "ROWS": run.rows,
            "MAP_ROWS": run.map_rows,
            "BLOCK": run.block,
            "DROPS": self.p > 0,
            "WINDOW": self.half >= 0,
            "HOLES": self.half >= 0 and self.has_holes,
        }


def _rows(x: Tensor) -> Tensor:
    """`x` with the numbers of a head side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _launch_of(kernel: str, qkv: Tensor, local: bool, call: _Call) -> Launch:
    name, heavy = f"local_{kernel}" if local else kernel, call.half >= 0 or call.p > 0
    return launch(name, _launches.arch(qkv.device), qkv.dtype, qkv.shape[-1], heavy)


def _results(qkv: Tensor, keeps: bool) -> tuple[Tensor, Tensor]:
    """Output `(T, H, D)`, and each row's largest score (times log2 e) and 1 / sum, fp32
    `(2, H, T)`.
    """
    T, _, H, D = qkv.shape
    stats = qkv.new_empty((2, H, T) if keeps else (2, H, 0), dtype=torch.float32)
    return qkv.new_empty(T, H, D), stats


def _forward(qkv: Tensor, *tail) -> tuple[Tensor, Tensor]:
    call, keeps = _contiguous(_Call(*tail[:-1])), tail[-1]
    qkv = _rows(qkv)
    o, stats = _results(qkv, keeps)
    if not o.numel():
        return o, stats
    T, _, H, D = qkv.shape
    local = call.is_local(qkv)
    run = _launch_of("forward", qkv, local, call)
    q, k, v = call.inputs(qkv, local)
    tiles = call.tiles(run)
    tables = (call.cos, call.sin) if local else (call.columns, call.seed)
    kernel = local_forward_kernel if local else forward_kernel
    kernel[grid(tiles.shape[0], run, H)](
        q, k, v, o, stats, tiles, *tables, T, *q.stride()[:2], *v.stride()[:2],
        D**-0.5 * LOG2_E, *call.numbers(local), KEEPS=keeps, **call.constants(qkv, run, local),
    )  # fmt: skip
    return o, stats


def _contiguous(call: _Call) -> _Call:
    if call.cos is None:
        return call
    return call._replace(cos=call.cos.contiguous(), sin=call.sin.contiguous())


def _backward(grad: Tensor, qkv: Tensor, o: Tensor, stats: Tensor, *tail) -> Tensor:
    call, qkv, grad = _contiguous(_Call(*tail)), _rows(qkv), _rows(grad)
    d = qkv.new_empty(qkv.shape)
    if not d.numel():
        return d
    T, _, H, D = qkv.shape
    local = call.is_local(qkv)
    q, k, v = call.inputs(qkv, local)
    dq, dk, dv = d.unbind(1)
    delta = torch.empty_like(stats[0])
    tables = (call.cos, call.sin) if local else (call.columns, call.cos, call.sin, call.seed)
    strides = *q.stride()[:2], *v.stride()[:2], *grad.stride()[:2]
    scale = D**-0.5
    shared = T, *strides, scale * LOG2_E, scale, *call.numbers(local)
    for name, kernel, tensors in (
        ("dq", local_dq_kernel if local else dq_kernel, (q, k, v, o, grad, dq)),
        ("dkv", local_dkv_kernel if local else dkv_kernel, (q, k, v, grad, dk, dv)),
    ):
        run = _launch_of(name, qkv, local, call)
        tiles = call.tiles(run)
        constants = call.constants(qkv, run, local) | {"ROTATES": call.cos is not None}
        kernel[grid(tiles.shape[0], run, H)](
            *tensors, stats, delta, tiles, *tables, *shared, **constants
        )
    return d


_TAIL = (
    "Tensor? cos, Tensor? sin, Tensor fine, Tensor coarse, Tensor? columns, Tensor? holes, "
    "Tensor? seed, int half, float p"
)
ATTEND = _triton.Operator(
    f"triton_attention(Tensor qkv, {_TAIL}, bool keeps) -> (Tensor, Tensor)",
    _forward,
    lambda qkv, *tail: _results(qkv, tail[-1]),
)
ATTEND_BACKWARD = _triton.Operator(
    "triton_attention_backward(Tensor grad, Tensor qkv, Tensor o, Tensor stats, "
    f"{_TAIL}) -> Tensor",
    _backward,
    lambda grad, qkv, *rest: qkv.new_empty(qkv.shape),
)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv_T3HD, *tail):
        o_THD, stats_2HT = ATTEND(qkv_T3HD, *tail, True)
        *tensors, half, p = tail
        ctx.save_for_backward(qkv_T3HD, o_THD, stats_2HT, *tensors)
        ctx.numbers = half, p
        ctx.mark_non_differentiable(stats_2HT)
        return o_THD, stats_2HT

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_THD, _):
        return ATTEND_BACKWARD(grad_THD, *ctx.saved_tensors, *ctx.numbers), *[None] * 9


def attention(
    qkv_T3HD: Tensor,
    plan: TritonPlan,
    half: int | None,
    dropout_p: float = 0.0,
    with_lse: bool = False,
    rotation: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `attention.reference`, with `plan` from `prepare`, after rotation of queries and keys by
    `rotation`: cos and sin, fp32 `(T, D/2)`.
    """
    [qkv_T3HD] = _triton.autocast(qkv_T3HD)
    # On the device and not read here: a recorded CUDA graph draws anew in each replay.
    seed = torch.randint(2**62, (1,), device=qkv_T3HD.device) if dropout_p else None
    maps = plan.fine_N3, plan.coarse_N3, plan.columns_T, plan.holes
    tail = *(rotation or (None, None)), *maps, seed, -1 if half is None else half, dropout_p
    if torch.is_grad_enabled() and qkv_T3HD.requires_grad:
        o_THD, stats_2HT = _Attention.apply(qkv_T3HD, *tail)
    else:
        o_THD, stats_2HT = ATTEND(qkv_T3HD, *tail, with_lse)
    if not with_lse:
        return o_THD, None
    return o_THD, ((stats_2HT[0] - stats_2HT[1].log2()) * LN_2).t()
