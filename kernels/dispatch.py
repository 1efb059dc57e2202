"""Which backend runs which op. Decided once, when a model is built; a forward never asks.

`auto` takes, op by op, the first backend in `BACKENDS` that has no reason to refuse. A named
backend must serve every op, else one error lists each reason: an explicit choice never falls back
silently.

To add a backend: name it in `BACKENDS` and give op files an `Implementation` under that name.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from encoder_fast.kernels import _native, _native_encoder, _triton

BACKENDS = ("native", "triton", "torch", "reference")
"""In order of preference for `auto`."""


LAYER_OPS = ("linear", "add_norm", "rope", "attention", "mlp")
"""What `Ops.layers` does in one call."""


class BackendError(ValueError):
    """No backend, or not the one asked for, can run an op."""


@dataclass(frozen=True)
class Request:
    """What a model asks of its ops: enough for a backend to say why it cannot serve."""

    device: torch.device
    dtype: torch.dtype
    head_width: int
    width: int
    precision: str | None = None
    """"int8": linear layers compute in int8 (inference only); None: in `dtype`."""


PRECISIONS = (None, "int8")


def serves_always(request: Request) -> None:
    """`why_not` of implementations without limits."""


@dataclass(frozen=True)
class Implementation:
    """One backend's version of one op. `why_not(request)` is None, or the reason for refusing."""

    run: Callable
    why_not: Callable[[Request], str | None] = serves_always
    prepare: Callable | None = None
    """Attention only: builds what all layers of one forward share (groups, masks, tile maps)."""
    rotates: bool = False
    """Attention only: `run` takes `rotation` and applies it itself."""
    recomputed: Callable | None = None
    """mlp only: `run` that keeps nothing of the size of F for its backward; None: `recomputing`
    makes one.
    """


def recomputing(run: Callable) -> Callable:
    """`run`, keeping only its arguments for the backward, which calls it again with the same random
    numbers and the same autocast.
    """
    return partial(checkpoint, run, use_reentrant=False)


@dataclass(frozen=True)
class Ops:
    """One function per op: what a model calls. `chosen` maps each op to its backend."""

    embed: Callable
    linear: Callable
    add_norm: Callable
    rope: Callable
    prepare_attention: Callable
    attention: Callable
    """As `attention.reference`, and `rotation`: cos and sin `(T, D/2)` each, by which queries and
    keys are turned first, or None."""
    mlp: Callable
    mlp_recomputed: Callable
    """`mlp`, keeping nothing of the size of F for its backward."""
    pool: Callable
    linear_cross_entropy: Callable
    layers: Callable | None
    """All layers in one call, as `_native_encoder.run_layers`, where one backend runs each op."""
    request: Request
    chosen: dict[str, str]


def op_tables() -> dict[str, dict[str, Implementation]]:
    """Op name -> backend name -> implementation."""
    from encoder_fast.kernels import OPS

    return {op.__name__.rsplit(".", 1)[-1]: op.IMPLEMENTATIONS for op in OPS}


def why_not(op: str, backend: str, request: Request) -> str | None:
    """Why `backend` cannot run `op` for `request`; None if it can."""
    implementation = op_tables()[op].get(backend)
    if implementation is None:
        return f"backend {backend!r} has no {op}"
    return implementation.why_not(request)


def resolve(backend: str, request: Request) -> Ops:
    """The ops of a model.

    Args:
        backend: `"auto"` or a name in `BACKENDS`.

    Raises:
        BackendError: unknown backend, or reasons why it cannot serve.
        ValueError: ENCODER_FAST_CPU_ISA names instructions that cannot run here.
    """
    if backend != "auto" and backend not in BACKENDS:
        raise BackendError(f"backend: got {backend!r}, allowed are {('auto', *BACKENDS)}")
    if request.device.type == "cpu" and backend in ("auto", "native"):
        _native.check(warn=backend == "auto")
    candidates = _in_order() if backend == "auto" else (backend,)
    chosen, refusals = {}, []
    for op in op_tables():
        reasons = {name: why_not(op, name, request) for name in candidates}
        usable = [name for name, reason in reasons.items() if reason is None]
        if usable:
            chosen[op] = usable[0]
        else:
            refusals += [f"{op} on {name}: {reason}" for name, reason in reasons.items()]
    if refusals:
        raise BackendError(f"backend {backend!r} cannot run this model: " + "; ".join(refusals))
    return _record(chosen, request)


def _in_order() -> tuple[str, ...]:
    """Backends in order of preference. Where the engine has no kernels for the processor's own
    vector instructions, the libraries that torch brings are expected to be faster. Triton's kernels
    have not run on a GPU yet, and do not cover every op: only those who name them get them.
    """
    left_out = {"triton"}
    if _native.C is not None and _native.tier() == "generic":
        left_out.add("native")
    return tuple(name for name in BACKENDS if name not in left_out)


def _record(chosen: dict[str, str], request: Request) -> Ops:
    tables = op_tables()
    functions = {op: _loaded(tables[op][name].run) for op, name in chosen.items()}
    attention = tables["attention"][chosen["attention"]]
    if not attention.rotates:
        functions["attention"] = AfterRope(functions["attention"], functions["rope"])
    recomputed = tables["mlp"][chosen["mlp"]].recomputed or recomputing(functions["mlp"])
    others = {"prepare_attention", "mlp_recomputed", "layers", "request", "chosen"}
    assert set(functions) == {f.name for f in fields(Ops)} - others
    return Ops(
        **functions,
        prepare_attention=_loaded(attention.prepare),
        mlp_recomputed=recomputed,
        layers=_fused_layers(chosen, request),
        request=request,
        chosen=chosen,
    )


def _loaded(function: Callable) -> Callable:
    """The function itself, where it would be imported at the first call."""
    return function.load() if isinstance(function, _triton.Lazy) else function


@dataclass(frozen=True)
class AfterRope:
    """Attention that takes `rotation`, from one that does not. A class, so that it pickles."""

    attention: Callable
    rope: Callable

    def __call__(
        self,
        qkv_T3HD: Tensor,
        plan: Any,
        half: int | None,
        dropout_p: float = 0.0,
        with_lse: bool = False,
        rotation: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if rotation is not None:
            qkv_T3HD = self.rope(qkv_T3HD, *rotation)
        return self.attention(qkv_T3HD, plan, half, dropout_p, with_lse)


def _fused_layers(chosen: dict[str, str], request: Request) -> Callable | None:
    others = {op: name for op, name in chosen.items() if op in LAYER_OPS and name != "native"}
    if request.precision is None:
        return None if others else _native_encoder.run_layers
    if request.precision not in PRECISIONS:
        raise BackendError(f"precision: got {request.precision!r}, allowed are {PRECISIONS}")
    if others:
        op, name = next(iter(others.items()))
        reason = why_not(op, "native", request) or f"{op} runs on {name}"
        raise BackendError(f"precision: got 'int8', which the native engine computes: {reason}")
    if not _native.has_int8():
        raise BackendError(
            f"precision: got 'int8', but tier {_native.tier()} has no int8 products "
            "(AVX-512 VNNI or AMX needed)"
        )
    if request.width > _native_encoder.WIDEST_INT8:
        raise BackendError(
            f"precision: got 'int8' for a width of {request.width}, "
            f"up to {_native_encoder.WIDEST_INT8} is supported"
        )
    return partial(_native_encoder.run_layers, int8=True)
