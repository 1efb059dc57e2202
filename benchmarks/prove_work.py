"""The calls whose kernels are proven: every op with a `triton` implementation, both directions, at
the widths that checkpoints have. Lengths are short: kernels depend on widths, dtypes and features.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

import encoder_fast as ef
from encoder_fast.kernels import dispatch
from encoder_fast.kernels.rope import rope_tables

LENGTHS = (160, 64, 32)
T = sum(LENGTHS)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Work:
    """One call. `run()` makes its launches; `op` is whose they are."""

    op: str
    name: str
    run: Callable[[], None]


def _numbers(*shape: int, dtype: torch.dtype, training: bool) -> Tensor:
    return torch.zeros(shape, dtype=dtype, requires_grad=training)


def _backward(*results: Tensor) -> None:
    torch.autograd.backward(results, [torch.zeros_like(y) for y in results])


def _call(op: str, arguments: dict, training: bool) -> None:
    with torch.set_grad_enabled(training):
        result = dispatch.op_tables()[op]["triton"].run(**arguments)
    results = [y for y in (result if isinstance(result, tuple) else (result,)) if y is not None]
    if training:
        _backward(*(y for y in results if y.requires_grad))


def _mlp(W: int, F: int, gated: bool, activation: str, bias: bool, p: float = 0.0) -> Callable:
    def arguments(make):
        rows = 2 * F if gated else F
        biases = (make(rows), make(W)) if bias else (None, None)
        names = "x_TW", "up_weight", "up_bias", "down_weight_WF", "down_bias_W"
        values = make(T, W), make(rows, W), biases[0], make(W, F), biases[1]
        how = {"activation": activation, "gated": gated, "dropout_p": p}
        return dict(zip(names, values, strict=True)) | how

    return arguments


def _add_norm(W: int, bias: bool, residual: bool) -> Callable:
    return lambda make: {
        "x_TW": make(T, W),
        "residual_TW": make(T, W) if residual else None,
        "weight_W": make(W),
        "bias_W": make(W) if bias else None,
        "eps": 1e-5,
    }


def _rope(H: int, D: int) -> Callable:
    def arguments(make):
        cos_TK, sin_TK = rope_tables(torch.arange(T), 10000.0, D)
        return {"qkv_T3HD": make(T, 3, H, D), "cos_TK": cos_TK, "sin_TK": sin_TK}

    return arguments


def _embed(W: int, tables: bool, bias: bool) -> Callable:
    def arguments(make):
        rows = torch.arange(T) % 64
        return {
            "ids_T": rows,
            "embeds_TE": None,
            "token_VE": make(1024, W),
            "position_PE": make(64, W) if tables else None,
            "positions_T": rows if tables else None,
            "type_YE": make(2, W) if tables else None,
            "types_T": rows % 2 if tables else None,
            "norm_weight_E": make(W),
            "norm_bias_E": make(W) if bias else None,
            "eps": 1e-5,
        }

    return arguments


def _pool(W: int, mode: str) -> Callable:
    offsets = torch.tensor([0, *accumulate(LENGTHS)], dtype=torch.int32)
    return lambda make: {"x_TW": make(T, W), "cu_seqlens_B1": offsets, "mode": mode}


def _cross_entropy(W: int, V: int) -> Callable:
    return lambda make: {
        "x_NW": make(T, W),
        "weight_VW": make(V, W),
        "bias_V": make(V),
        "labels_N": torch.arange(T) % V,
    }


def _attention(H: int, D: int, half: int | None, rotates: bool, p: float = 0.0) -> Callable:
    def arguments(make):
        qkv_T3HD = make(T, 3, H, D)
        batch = ef.Batch.from_lists([[1] * n for n in LENGTHS])
        prepare = dispatch.op_tables()["attention"]["triton"].prepare
        tables = rope_tables(torch.arange(T), 10000.0, D) if rotates else None
        return {
            "qkv_T3HD": qkv_T3HD,
            "plan": prepare(batch, (half,), qkv_T3HD.dtype),
            "half": half,
            "dropout_p": p,
            "rotation": tables,
        }

    return arguments


CALLS = {
    "mlp": {
        "modernbert-base": _mlp(768, 1152, True, "gelu", bias=False),
        "modernbert-large": _mlp(1024, 2624, True, "gelu", bias=False),
        "bert-base": _mlp(768, 3072, False, "gelu", bias=True),
        "tanh form": _mlp(768, 3072, False, "gelu_new", bias=True),
        "dropout": _mlp(768, 1152, True, "gelu", bias=False, p=0.1),
    },
    "add_norm": {
        f"W{W}{' bias' if bias else ''}{' residual' if residual else ''}": _add_norm(
            W, bias, residual
        )
        for W in (384, 768, 1024)
        for bias, residual in ((False, True), (True, True), (False, False))
    },
    "rope": {f"H{H}-D{D}": _rope(H, D) for H, D in ((12, 64), (16, 64), (8, 128))},
    "embed": {"bert-base": _embed(768, True, True), "modernbert-base": _embed(768, False, False)},
    "pool": {mode: _pool(768, mode) for mode in ("cls", "mean", "max")},
    "linear_cross_entropy": {f"V{V}": _cross_entropy(64, V) for V in (30522, 50368)},
    "attention": {
        f"D{D}{' half' + str(half) if half else ''}{' rope' if rope else ''}"
        f"{' dropout' if p else ''}": _attention(4, D, half, rope, p)
        for D, half, rope, p in (
            *((64, half, rope, 0.0) for half in (None, 64) for rope in (False, True)),
            *((D, half, False, 0.0) for D in (32, 96, 128) for half in (None, 64)),
            *((64, half, False, 0.1) for half in (None, 64)),
            (64, 256, True, 0.0),
        )
    },
}  # fmt: skip
"""Op -> name -> arguments of a call, given a function that makes tensors."""


def all_work(ops: tuple[str, ...] | None = None) -> Iterator[Work]:
    """Every call of every op, in every dtype, with and without gradients."""
    tables = dispatch.op_tables()
    for op, calls in CALLS.items():
        if "triton" not in tables[op] or (ops is not None and op not in ops):
            continue
        for name, arguments in calls.items():
            for dtype in DTYPES:
                for training in (True, False):
                    yield _work(op, name, arguments, dtype, training)


def _work(op: str, name: str, arguments: Callable, dtype: torch.dtype, training: bool) -> Work:
    def run() -> None:
        def make(*shape: int) -> Tensor:
            return _numbers(*shape, dtype=dtype, training=training)

        _call(op, arguments(make), training)

    kind = str(dtype).removeprefix("torch.")
    return Work(op, f"{name} {kind} {'training' if training else 'inference'}", run)
