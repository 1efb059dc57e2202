"""Inputs of the ops as real models give them: one `OpShape` for each op, model and workload.

To give a new op inputs: write a function like those below and name it in `BUILDERS`.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from encoder_fast.batch import Batch
from encoder_fast.benchmarks import models
from encoder_fast.benchmarks.workloads import Workload
from encoder_fast.config import EncoderConfig
from encoder_fast.kernels import (
    add_norm,
    attention,
    embed,
    linear,
    linear_cross_entropy,
    mlp,
    pool,
    rope,
)
from encoder_fast.kernels._cost import Cost

MODELS = ("modernbert-base", "bert-base")
WORKLOADS = ("1x32", "8x128", "8x512", "mixed-512", "1x2048", "1x8192")
SELECTED = 0.3
"""Share of the tokens that a masked-LM loss is taken of."""
CHECKED_TOKENS = 1024
"""The references of attention and linear_cross_entropy hold all scores: at most this many tokens a
text, or a batch, are checked."""


@dataclass(frozen=True)
class Part:
    """One use of an op in a model. `draw(normal)` makes its arguments, floats in fp32;
    `cost(itemsize)` is the forward's; `total` says how many forwards a forward and backward cost:
    3 for products (a gradient for each factor), 2 where only memory counts.
    """

    label: str
    draw: Callable[[Callable[..., Tensor]], dict]
    cost: Callable[[int], Cost]
    total: int
    differentiable: tuple[str, ...]


@dataclass(frozen=True)
class OpShape:
    """A named input of one op. `checked` is a smaller input of the same use of the op, where the
    reference of this one does not fit into memory.
    """

    op: str
    name: str
    part: Part
    tokens: int
    longest: int
    width: int
    head_width: int
    checked: "OpShape | None" = None

    def make(self, dtype: torch.dtype, device: str = "cpu") -> dict:
        """The arguments by name; tensors that get a gradient are leaves that ask for it."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.op} {self.name}".encode()))
        arguments = self.part.draw(lambda *shape: torch.randn(*shape, generator=generator))
        for name, x in arguments.items():
            if isinstance(x, Tensor):
                x = x.to(dtype) if name in self.part.differentiable else x
                x = x.to(device).requires_grad_(name in self.part.differentiable)
                arguments[name] = x
            elif isinstance(x, Batch):
                arguments[name] = x.to(device)
        return arguments

    def cost(self, dtype: torch.dtype, passes: str) -> Cost:
        """What is needed at least."""
        one = self.part.cost(dtype.itemsize)
        times = self.part.total if passes == "forward+backward" else 1
        return Cost(one.flops * times, one.bytes * times)


def _embed(c: EncoderConfig, lengths: tuple[int, ...]) -> Iterator[Part]:
    T, E = sum(lengths), c.embedding_size
    tables = 1 + (c.position_rows is not None) + (c.type_rows > 0)

    def draw(normal):
        columns_T = torch.cat([torch.arange(n) for n in lengths])
        return {
            "ids_T": (torch.arange(T) * 7919) % c.vocab_size,
            "embeds_TE": None,
            "token_VE": normal(c.vocab_size, E),
            "position_PE": normal(c.position_rows, E) if c.position_rows else None,
            "positions_T": columns_T if c.position_rows else None,
            "type_YE": normal(c.type_rows, E) if c.type_rows else None,
            "types_T": torch.zeros(T, dtype=torch.int64) if c.type_rows else None,
            "norm_weight_E": 1 + normal(E) / 4,
            "norm_bias_E": normal(E) if c.norm_bias else None,
            "eps": c.norm_eps,
        }

    floats = ("token_VE", "position_PE", "type_YE", "norm_weight_E", "norm_bias_E")
    label = f"E{E} V{c.vocab_size} {tables} table{'s' * (tables > 1)}"
    yield Part(label, draw, lambda size: embed.cost(T, E, tables, size), 2, floats)


def _linear(c: EncoderConfig, lengths: tuple[int, ...]) -> Iterator[Part]:
    T, W = sum(lengths), c.hidden_size
    for use, rows in (("qkv", 3 * W), ("out", W)):

        def draw(normal, rows=rows):
            weight_OW = normal(rows, W) * W**-0.5
            bias_O = normal(rows) if c.attention_bias else None
            return {"x_TW": normal(T, W), "weight_OW": weight_OW, "bias_O": bias_O}

        label = f"{use} W{W} O{rows}{' bias' * c.attention_bias}"
        floats = ("x_TW", "weight_OW", "bias_O")
        yield Part(label, draw, lambda size, rows=rows: linear.cost(T, W, rows, size), 3, floats)


def _add_norm(c: EncoderConfig, lengths: tuple[int, ...]) -> Iterator[Part]:
    T, W = sum(lengths), c.hidden_size

    def draw(normal):
        return {
            "x_TW": normal(T, W),
            "residual_TW": 2 * normal(T, W),
            "weight_W": 1 + normal(W) / 4,
            "bias_W": normal(W) if c.norm_bias else None,
            "eps": c.norm_eps,
        }

    floats = ("x_TW", "residual_TW", "weight_W", "bias_W")
    label = f"W{W}{' bias' * c.norm_bias}"
    yield Part(label, draw, lambda size: add_norm.cost(T, W, size), 2, floats)


def _rope(c: EncoderConfig, lengths: tuple[int, ...]) -> Iterator[Part]:
    T, H, D = sum(lengths), c.num_heads, c.head_width
    theta = next((layer.rope_theta for layer in c.plan if layer.rope_theta is not None), None)
    if theta is None:
        return

    def draw(normal):
        columns_T = torch.cat([torch.arange(n) for n in lengths])
        cos_TK, sin_TK = rope.rope_tables(columns_T, theta, D)
        return {"qkv_T3HD": normal(T, 3, H, D), "cos_TK": cos_TK, "sin_TK": sin_TK}

    yield Part(f"H{H} D{D}", draw, lambda size: rope.cost(T, H, D, size), 2, ("qkv_T3HD",))


def _attention(c: EncoderConfig, lengths: tuple[int, ...]) -> Iterator[Part]:
    H, D = c.num_heads, c.head_width
    for half in c.half_windows:
        # A window that sees the whole text is global attention, which is there already.
        if half is not None and max(lengths) - 1 <= half:
            continue

        def draw(normal, half=half):
            layout = Batch.from_lists([[0] * n for n in lengths])
            return {"qkv_T3HD": normal(sum(lengths), 3, H, D), "layout": layout, "half": half}

        label = f"H{H} D{D} {'global' if half is None else f'window {half}'}"

        def cost(size, half=half):
            return attention.cost(lengths, half, H, D, size)

        yield Part(label, draw, cost, 3, ("qkv_T3HD",))


def _mlp(c: EncoderConfig, lengths: tuple[int, ...]) -> Iterator[Part]:
    T, W, F, gated = sum(lengths), c.hidden_size, c.intermediate_size, c.gated_mlp

    def draw(normal):
        up_rows = 2 * F if gated else F
        return {
            "x_TW": normal(T, W),
            "up_weight": normal(up_rows, W) * W**-0.5,
            "up_bias": normal(up_rows) if c.mlp_bias else None,
            "down_weight_WF": normal(W, F) * F**-0.5,
            "down_bias_W": normal(W) if c.mlp_bias else None,
            "activation": c.activation,
            "gated": gated,
        }

    floats = ("x_TW", "up_weight", "up_bias", "down_weight_WF", "down_bias_W")
    kind = f"gated {c.activation}" if gated else c.activation
    label = f"W{W} F{F} {kind}{' bias' * c.mlp_bias}"
    yield Part(label, draw, lambda size: mlp.cost(T, W, F, gated, size), 3, floats)


def _pool(c: EncoderConfig, lengths: tuple[int, ...]) -> Iterator[Part]:
    T, W, B = sum(lengths), c.hidden_size, len(lengths)

    def draw(normal):
        ends_B1 = torch.tensor((0, *lengths)).cumsum(0).to(torch.int32)
        return {"x_TW": normal(T, W), "cu_seqlens_B1": ends_B1, "mode": "mean", "normalize": True}

    yield Part(f"W{W} mean", draw, lambda size: pool.cost(T, B, W, size), 2, ("x_TW",))


def _linear_cross_entropy(c: EncoderConfig, lengths: tuple[int, ...]) -> Iterator[Part]:
    N, W, V = max(1, round(SELECTED * sum(lengths))), c.embedding_size, c.vocab_size

    def draw(normal):
        labels_N = (torch.arange(N) * 7919) % V
        weight_VW = normal(V, W) * W**-0.5
        return {"x_NW": normal(N, W), "weight_VW": weight_VW, "bias_V": normal(V)} | {
            "labels_N": labels_N
        }

    def cost(size):
        return linear_cross_entropy.cost(N, W, V, size)

    label = f"W{W} V{V} {SELECTED:.0%} selected"
    yield Part(label, draw, cost, 3, ("x_NW", "weight_VW", "bias_V"))


BUILDERS: dict[str, Callable[[EncoderConfig, tuple[int, ...]], Iterable[Part]]] = {
    "embed": _embed,
    "linear": _linear,
    "add_norm": _add_norm,
    "rope": _rope,
    "attention": _attention,
    "mlp": _mlp,
    "pool": _pool,
    "linear_cross_entropy": _linear_cross_entropy,
}


def config_of(model: str) -> EncoderConfig:
    """Of a name in `models.CONFIGS`."""
    return models.config_of(models.CONFIGS[model])


def shapes(op: str, config: EncoderConfig, workload: Workload) -> list[OpShape]:
    """Inputs of `op` in a model of `config` for one workload; none where the model has no such op
    or does not take such long texts.
    """
    if max(workload.lengths) > (config.max_length or config.hf["max_position_embeddings"]):
        return []
    small = _checked_lengths(op, workload.lengths)
    parts = BUILDERS[op](config, workload.lengths)
    if small == workload.lengths:
        return [_shape(op, workload.name, part, config, small) for part in parts]
    name = f"{sum(small)} tokens of {workload.name}"
    checked = [_shape(op, name, part, config, small) for part in BUILDERS[op](config, small)]
    return [
        _shape(op, workload.name, part, config, workload.lengths, less)
        for part, less in zip(parts, checked, strict=True)
    ]


def _shape(op, name, part, config, lengths, checked=None) -> OpShape:
    return OpShape(
        op,
        f"{name} {part.label}",
        part,
        sum(lengths),
        max(lengths),
        config.hidden_size,
        config.head_width,
        checked,
    )


def _checked_lengths(op: str, lengths: tuple[int, ...]) -> tuple[int, ...]:
    if op == "attention":
        return tuple(min(n, CHECKED_TOKENS) for n in lengths)
    if op == "linear_cross_entropy":
        return _first_tokens(lengths, CHECKED_TOKENS)
    return lengths


def _first_tokens(lengths: tuple[int, ...], limit: int) -> tuple[int, ...]:
    kept, left = [], limit
    for n in lengths:
        if left > 0:
            kept.append(min(n, left))
            left -= n
    return tuple(kept)
