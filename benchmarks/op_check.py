"""Red means no number: an op is timed only if its answer is as good as plain torch's.

The rule is that of the tests (tests/closeness.py), for tensors of any size and device:

    max |ours - oracle|  <=  factor * max |torch - oracle| + floor,   and so the root mean square

with 2 for results and 3 for gradients, and a floor of four units in the last place at the oracle's
own scale. The oracle is the op's `reference` in fp64 (for half dtypes in fp32), "torch" the same
formula in the dtype under test, where nothing is widened.
"""

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from unittest import mock

import torch
from torch import Tensor

from encoder_fast import kernels
from encoder_fast.benchmarks.op_shapes import OpShape
from encoder_fast.kernels import _numeric, dispatch

ULPS = 4
WRONG = "wrong answer, so no time: "
"""How the reason of a refused cell begins."""
MODULES = {module.__name__.rsplit(".", 1)[-1]: module for module in kernels.OPS}


@dataclass(frozen=True)
class Answer:
    """Results of one call, and the gradient of each argument that has one."""

    results: tuple[Tensor, ...]
    gradients: dict[str, Tensor]


@dataclass(frozen=True)
class Expected:
    """What an answer is compared with; `cotangents` are those that gave the gradients."""

    exact: Answer
    plain: Answer
    cotangents: tuple[Tensor, ...]


def tensors(result) -> tuple[Tensor, ...]:
    """The tensors of an op's result: attention gives None for what nobody asked for."""
    given = result if isinstance(result, tuple) else (result,)
    return tuple(x for x in given if x is not None)


def leaves(given: dict) -> dict[str, Tensor]:
    """The arguments that get a gradient."""
    return {n: x for n, x in given.items() if isinstance(x, Tensor) and x.requires_grad}


def planned(implementation: dispatch.Implementation, given: dict) -> dict:
    """The arguments of one call: attention gets the plan of its backend for this batch."""
    if "layout" not in given:
        return given
    dtype, half = given["qkv_T3HD"].dtype, given["half"]
    plan = implementation.prepare(given["layout"], (half,), dtype)
    return {n: x for n, x in given.items() if n != "layout"} | {"plan": plan}


def answer(results: tuple[Tensor, ...], given: dict, cotangents: tuple[Tensor, ...]) -> Answer:
    """`results` with their gradients, or without where there are no cotangents."""
    if not cotangents:
        return Answer(tuple(x.detach() for x in results), {})
    wanted = leaves(given)
    cotangents = [c.to(y.dtype) for c, y in zip(cotangents, results, strict=True)]
    grads = torch.autograd.grad(results, list(wanted.values()), cotangents)
    named = dict(zip(wanted, grads, strict=True))
    if "qkv_T3HD" in named:
        qkv = named.pop("qkv_T3HD")
        named |= {name: qkv[:, i] for i, name in enumerate("qkv")}
    return Answer(tuple(x.detach() for x in results), named)


@lru_cache(maxsize=2)
def arguments(shape: OpShape, dtype: torch.dtype, device: str) -> dict:
    """`shape.make`, kept for the backends of one cell: drawing a vocabulary takes longer than most
    ops. Nobody writes into them.
    """
    return shape.make(dtype, device)


@lru_cache(maxsize=1)
def expected(shape: OpShape, dtype: torch.dtype, device: str, gradients: bool) -> Expected:
    """Oracle and plain torch. The last one is kept: all backends of one cell follow each other."""
    wide = torch.float64 if dtype == torch.float32 else torch.float32
    given = arguments(shape, dtype, device)
    cotangents = ()
    answers = []
    for kind in (wide, dtype):
        copies = {n: _copy(x, kind) for n, x in given.items()}
        with torch.set_grad_enabled(gradients), _nothing_widened(shape.op):
            implementation = dispatch.op_tables()[shape.op]["reference"]
            results = tensors(implementation.run(**planned(implementation, copies)))
        if gradients and not cotangents:
            generator = torch.Generator().manual_seed(1)
            cotangents = tuple(
                torch.randn(y.shape, generator=generator).to(dtype).to(device) for y in results
            )
        answers.append(answer(results, copies, cotangents))
        del results, copies
    return Expected(*answers, cotangents)


def _copy(x, dtype: torch.dtype):
    if not isinstance(x, Tensor) or not x.requires_grad:
        return x
    return x.detach().to(dtype).requires_grad_()


@contextmanager
def _nothing_widened(op: str):
    """The `reference` of `op` computes in the dtype of its arguments."""
    with ExitStack() as stack:
        for module in (_numeric, MODULES[op]):
            if hasattr(module, "wide"):
                stack.enter_context(mock.patch.object(module, "wide", lambda x: x))
        yield


def fault(op: str, ours: Answer, wanted: Expected) -> str | None:
    """Why `ours` is not good enough; None if it is."""
    exact, plain = wanted.exact, wanted.plain
    if len(ours.results) != len(exact.results):
        return f"{len(ours.results)} results, {len(exact.results)} expected"
    for i, mine in enumerate(ours.results):
        # The loss is fp32, but a matmul in the dtype of the weights has rounded its logits.
        rounded = plain.results[i].dtype if op == "linear_cross_entropy" else mine.dtype
        found = _compare(f"result {i}", mine, plain.results[i], exact.results[i], 2.0, rounded)
        if found:
            return found
    scale = None
    if op == "attention" and exact.gradients:
        # Rounding of dq and dk happens at the scale of dv: they are differences of its terms.
        scale = max(_largest(g) for g in exact.gradients.values())
    for name, grad in exact.gradients.items():
        if name not in ours.gradients:
            return f"d {name}: missing"
        mine = ours.gradients[name]
        found = _compare(f"d {name}", mine, plain.gradients[name], grad, 3.0, mine.dtype, scale)
        if found:
            return found
    return None


def _compare(label, mine, plain, exact, factor, rounded, scale=None) -> str | None:
    """`rounded` and `scale` say at which dtype and magnitude rounding is always allowed."""
    if mine.shape != exact.shape:
        return f"{label}: shape {tuple(mine.shape)}, {tuple(exact.shape)} expected"
    if not mine.isfinite().all():
        return f"{label}: {int((~mine.isfinite()).sum())} numbers are not finite"
    ours, theirs = (x.to(exact.dtype) - exact for x in (mine, plain))
    for kind, measure in (("largest", _largest), ("rms", _rms)):
        error, plain_error = measure(ours), measure(theirs)
        floor = ULPS * torch.finfo(rounded).eps * (measure(exact) if scale is None else scale)
        if not error <= factor * plain_error + floor:
            return (
                f"{label}: {kind} error {error:.2e}; allowed is {factor:g} x plain torch's "
                f"{plain_error:.2e} + {floor:.1e}"
            )
    return None


def _largest(x: Tensor) -> float:
    return x.abs().max().item() if x.numel() else 0.0


def _rms(x: Tensor) -> float:
    return x.square().mean(dtype=torch.float64).sqrt().item() if x.numel() else 0.0
