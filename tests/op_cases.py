"""Named inputs of every op: each case in `CASES[op]` makes the op's arguments in a dtype.

Values are drawn in fp64 from a generator seeded by the case's name and rounded to the dtype, so
that an oracle in fp64 starts from the very numbers that the op got.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from op_harness import Layout, layout, layout_of, offsets
from torch import Tensor

EPS = 1e-5
RAGGED = (4, 1, 6, 17, 6)
EMPTIES = (0, 3, 0, 0, 5, 0)
LENGTHS = {
    "one-token": (1,),
    "ragged": RAGGED,
    "empties": EMPTIES,
    "no-token": (0, 0),
    "nothing": (),
}
GRAD = ("x_TW", "x_NW", "residual_TW", "weight_W", "bias_W", "qkv_T3HD", "embeds_TE", "token_VE")
GRAD += ("position_PE", "type_YE", "norm_weight_E", "norm_bias_E", "up_weight", "up_bias")
GRAD += ("down_weight_WF", "down_bias_W", "weight_VW", "bias_V", "weight_OW", "bias_O")
"""Arguments that get a gradient, where they are floats."""


def plain(x: Tensor) -> Tensor:
    return x


def wider_rows(x: Tensor) -> Tensor:
    """`x` as the left part of a buffer with longer rows, as a slice of a fused projection is."""
    buffer = x.new_full((*x.shape[:-1], x.shape[-1] + 3), float("nan"))
    buffer[..., :-3] = x
    return buffer[..., :-3]


def head_major(x: Tensor) -> Tensor:
    """`x` as rope leaves it: `(T, 3, H, D)` with all tokens of a head side by side."""
    return x.permute(1, 2, 0, 3).contiguous().permute(2, 0, 1, 3)


def reversed_axes(x: Tensor) -> Tensor:
    """`x` with its axes in the opposite order in memory, as after a transpose."""
    axes = tuple(reversed(range(x.ndim)))
    return x.permute(axes).contiguous().permute(axes)


@dataclass(frozen=True)
class Case:
    """`draw(normal)` returns the arguments; `normal(*shape)` draws fp64 numbers."""

    op: str
    name: str
    draw: Callable[[Callable[..., Tensor]], dict]
    memory: Callable[[Tensor], Tensor] = plain
    """How each tensor lies in memory."""

    def __str__(self) -> str:
        return self.name

    def make(self, dtype: torch.dtype) -> dict:
        """The arguments by name, on the default device; those in `GRAD` as leaves."""
        device, host = torch.get_default_device(), {"dtype": torch.float64, "device": "cpu"}
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.op}/{self.name}".encode()))

        arguments = self.draw(lambda *n: torch.randn(n, generator=generator, **host).to(device))
        for name, x in arguments.items():
            if isinstance(x, Tensor) and x.dtype == torch.float64:
                arguments[name] = self.memory(x.to(dtype)).detach().requires_grad_(name in GRAD)
            elif isinstance(x, Layout):
                arguments[name] = replace(x, columns_T=x.columns_T.to(device))
        return arguments

    def like(self, memory: Callable[[Tensor], Tensor], suffix: str) -> "Case":
        return replace(self, name=f"{self.name}-{suffix}", memory=memory)


def strided(cases: list[Case], *names: str) -> list[Case]:
    """`cases`, and the named ones again in two other memory orders."""
    chosen = [case for case in cases if case.name in names]
    assert len(chosen) == len(names), names
    return (
        cases
        + [case.like(wider_rows, "wider_rows") for case in chosen]
        + [case.like(reversed_axes, "reversed_axes") for case in chosen]
    )


def _embed(T, W, positions=True, types=True, embeds=False, bias=True, padding=None) -> Callable:
    def draw(normal):
        t = torch.arange(T)
        return {
            "ids_T": None if embeds else (7 * t * t + 11 * t) % 13,
            "embeds_TE": normal(T, W) if embeds else None,
            "token_VE": normal(13, W),
            "position_PE": normal(9, W) if positions else None,
            "positions_T": (5 * t + 1) % 9 if positions else None,
            "type_YE": normal(2, W) if types else None,
            "types_T": t % 2 if types else None,
            "norm_weight_E": normal(W),
            "norm_bias_E": normal(W) if bias else None,
            "eps": 1e-12,
            "padding_idx": padding,
            "position_padding_idx": padding,
        }

    return draw


def _embed_cases() -> list[Case]:
    draws = {f"T{T}-W{W}": _embed(T, W) for T, W in ((1, 32), (34, 96), (9, 768), (0, 32))}
    draws["tokens-only"] = _embed(34, 32, positions=False, types=False, bias=False)
    draws["no-types"] = _embed(34, 32, types=False)
    draws["given-vectors"] = _embed(34, 32, embeds=True)
    draws["padding-rows"] = _embed(34, 32, padding=1)
    cases = [Case("embed", name, draw) for name, draw in draws.items()]
    return strided(cases, "T34-W96", "given-vectors")


def _add_norm(T, W, residual=True, bias=True) -> Callable:
    def draw(normal):
        return {
            "x_TW": normal(T, W),
            "residual_TW": 2 * normal(T, W) if residual else None,
            "weight_W": 1 + normal(W) / 4,
            "bias_W": normal(W) if bias else None,
            "eps": EPS,
        }

    return draw


def _add_norm_cases() -> list[Case]:
    shapes = ((1, 32), (34, 96), (17, 768), (3, 5), (0, 32))
    draws = {f"T{T}-W{W}": _add_norm(T, W) for T, W in shapes}
    draws["no-residual"] = _add_norm(34, 96, residual=False)
    draws["no-bias"] = _add_norm(34, 96, bias=False)
    return strided([Case("add_norm", name, draw) for name, draw in draws.items()], "T34-W96")


def _rope(positions: list[int], H: int, D: int) -> Callable:
    def draw(normal):
        from encoder_fast.kernels.rope import rope_tables

        cos_TK, sin_TK = rope_tables(torch.tensor(positions, dtype=torch.int64), 10000.0, D)
        qkv_T3HD = normal(len(positions), 3, H, D)
        return {"qkv_T3HD": qkv_T3HD, "cos_TK": cos_TK, "sin_TK": sin_TK}

    return draw


def _rope_cases() -> list[Case]:
    ragged = [t for n in RAGGED for t in range(n)]
    draws = {f"D{D}": _rope(ragged, 3, D) for D in (2, 6, 8, 40, 64, 72, 96, 128)}
    draws["one-token"] = _rope([5], 2, 8)
    draws["no-token"] = _rope([], 2, 8)
    draws["far"] = _rope([0, 1, 511, 8191], 2, 64)
    draws["over-two-blocks"] = _rope(list(range(1025)), 1, 8)
    return strided([Case("rope", name, draw) for name, draw in draws.items()], "D8", "D64")


def _attention(where: Layout, half: int | None, H: int, D: int) -> Callable:
    def draw(normal):
        qkv_T3HD = normal(sum(where.lengths), 3, H, D)
        return {"qkv_T3HD": qkv_T3HD, "layout": where, "half": half}

    return draw


def _attention_cases() -> list[Case]:
    draws = {}
    for name, lengths in LENGTHS.items():
        draws[f"global-{name}"] = _attention(layout(*lengths), None, 2, 8)
        draws[f"half4-{name}"] = _attention(layout(*lengths), 4, 2, 8)
    for D in (5, 6, 40, 64, 72, 96, 128):
        draws[f"global-D{D}"] = _attention(layout(9, 5), None, 2, D)
        draws[f"half4-D{D}"] = _attention(layout(9, 80, 5), 4, 2, D)
    draws["half64-blocks"] = _attention(layout(300, 40, 193), 64, 2, 8)
    holes = layout_of([[0, 1, 2, 3, 8, 9, 10, 11], [3, 4, 20], [], list(range(0, 200, 2))])
    draws["global-holes"] = _attention(holes, None, 2, 8)
    draws["half4-holes"] = _attention(holes, 4, 2, 8)
    cases = [Case("attention", name, draw) for name, draw in draws.items()]
    cases += [case.like(head_major, "head_major") for case in cases if case.name == "half64-blocks"]
    return strided(cases, "global-ragged", "half4-ragged", "half64-blocks")


def _mlp(T, W, F, activation="gelu", gated=False, bias=True) -> Callable:
    def draw(normal):
        rows = 2 * F if gated else F
        return {
            "x_TW": normal(T, W),
            "up_weight": normal(rows, W) * W**-0.5,
            "up_bias": normal(rows) if bias else None,
            "down_weight_WF": normal(W, F) * F**-0.5,
            "down_bias_W": normal(W) if bias else None,
            "activation": activation,
            "gated": gated,
        }

    return draw


def _mlp_cases() -> list[Case]:
    draws = {
        f"T{T}-W{W}-F{F}": _mlp(T, W, F) for T, W, F in ((1, 32, 48), (34, 96, 131), (0, 32, 48))
    }
    draws["T9-W768-F512"] = _mlp(9, 768, 512)
    draws["gated"] = _mlp(34, 96, 131, gated=True)
    draws["gated-no-bias"] = _mlp(34, 32, 48, gated=True, bias=False)
    draws["no-bias"] = _mlp(34, 32, 48, bias=False)
    for activation in ("gelu_new", "relu", "silu", "tanh"):
        draws[activation] = _mlp(34, 32, 48, activation)
    return strided(
        [Case("mlp", name, draw) for name, draw in draws.items()], "T34-W96-F131", "gated"
    )


def _linear(T, W, rows, bias=True) -> Callable:
    def draw(normal):
        return {
            "x_TW": normal(T, W),
            "weight_OW": normal(rows, W) * W**-0.5,
            "bias_O": normal(rows) if bias else None,
        }

    return draw


def _linear_cases() -> list[Case]:
    shapes = ((1, 32, 96), (34, 96, 131), (9, 768, 100), (0, 32, 48))
    draws = {f"T{T}-W{W}-O{rows}": _linear(T, W, rows) for T, W, rows in shapes}
    draws["no-bias"] = _linear(34, 32, 48, bias=False)
    return strided([Case("linear", name, draw) for name, draw in draws.items()], "T34-W96-O131")


def _pool(lengths, W, **how) -> Callable:
    def draw(normal):
        return {"x_TW": normal(sum(lengths), W), "cu_seqlens_B1": offsets(lengths), **how}

    return draw


def _pool_cases() -> list[Case]:
    draws = {}
    for mode in ("cls", "mean", "max", "weighted", "last", "mean_sqrt_len"):
        for name, lengths in LENGTHS.items():
            draws[f"{mode}-{name}"] = _pool(lengths, 32, mode=mode)
        draws[f"{mode}-unit-length"] = _pool(EMPTIES, 96, mode=mode, normalize=True)
    draws["mean-truncated"] = _pool(RAGGED, 768, mode="mean", normalize=True, truncate_dim=64)
    cases = [Case("pool", name, draw) for name, draw in draws.items()]
    return strided(cases, "cls-ragged", "mean-ragged", "max-ragged", "weighted-empties")


def _cross_entropy(N, W, V, bias=True, ignored=False, **how) -> Callable:
    def draw(normal):
        labels_N = (torch.arange(N) * 37 + V - 1) % V
        if ignored:
            labels_N[1::3] = -100
        return {
            "x_NW": normal(N, W),
            "weight_VW": normal(V, W) * W**-0.5,
            "bias_V": normal(V) if bias else None,
            "labels_N": labels_N,
            **how,
        }

    return draw


def _cross_entropy_cases() -> list[Case]:
    shapes = ((1, 32, 97), (34, 96, 130), (5, 768, 1000), (9, 32, 30522), (0, 32, 97))
    draws = {f"N{N}-W{W}-V{V}": _cross_entropy(N, W, V) for N, W, V in shapes}
    draws["no-bias"] = _cross_entropy(34, 32, 97, bias=False)
    draws["ignored-rows"] = _cross_entropy(34, 32, 97, ignored=True)
    draws["sum"] = _cross_entropy(34, 32, 97, reduction="sum", ignored=True)
    draws["smoothed"] = _cross_entropy(34, 32, 97, label_smoothing=0.1)
    draws["z-loss"] = _cross_entropy(34, 32, 97, z_loss=0.01)
    draws["everything"] = _cross_entropy(
        34, 32, 97, ignored=True, label_smoothing=0.1, z_loss=0.01, num_items=30
    )
    cases = [Case("linear_cross_entropy", name, draw) for name, draw in draws.items()]
    return strided(cases, "N34-W96-V130", "everything")


CASES = {
    "embed": _embed_cases(),
    "add_norm": _add_norm_cases(),
    "rope": _rope_cases(),
    "attention": _attention_cases(),
    "linear": _linear_cases(),
    "mlp": _mlp_cases(),
    "pool": _pool_cases(),
    "linear_cross_entropy": _cross_entropy_cases(),
}
