"""Every op on every backend against its specification: results, and gradients of random cotangents.

The oracle is the op's `reference` in fp64. The bound is what the same formula reaches in plain
torch in the dtype under test: `reference` with its widening to fp32 switched off.
"""

import pytest
import torch
from closeness import assert_as_good_as, ulps
from op_cases import CASES, Case
from op_harness import one_thread, skip_if_refused  # noqa: F401
from torch import Tensor

from encoder_fast import kernels
from encoder_fast.kernels import _numeric, dispatch

pytestmark = pytest.mark.on_device

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TABLES = dispatch.op_tables()
MODULES = {module.__name__.rsplit(".", 1)[-1]: module for module in kernels.OPS}


def every_combination():
    for op, table in TABLES.items():
        for backend in table:
            for dtype in DTYPES:
                for case in CASES[op]:
                    name = f"{op}-{backend}-{str(dtype).removeprefix('torch.')}-{case}"
                    yield pytest.param(op, backend, dtype, case, id=name)


def run(implementation: dispatch.Implementation, arguments: dict):
    """Call an op with the arguments of a case."""
    arguments = dict(arguments)
    if "layout" in arguments:
        dtype, half = arguments["qkv_T3HD"].dtype, arguments["half"]
        arguments["plan"] = implementation.prepare(arguments.pop("layout"), (half,), dtype)
        arguments["with_lse"] = True
    return implementation.run(**arguments)


def in_plain_torch(op: str, arguments: dict, monkeypatch):
    """`reference` in the dtype of the arguments: nothing is widened."""
    with monkeypatch.context() as patch:
        for module in (_numeric, MODULES[op]):
            if hasattr(module, "wide"):
                patch.setattr(module, "wide", lambda x: x)
        return run(TABLES[op]["reference"], arguments)


def copy_of(arguments: dict, dtype: torch.dtype | None = None) -> dict:
    """The same values as new leaves, in `dtype` or as they are."""
    copies = {}
    for name, x in arguments.items():
        if isinstance(x, Tensor) and x.is_floating_point():
            x = x.detach().to(dtype or x.dtype).requires_grad_(x.requires_grad)
        copies[name] = x
    return copies


def as_tuple(result) -> tuple:
    return result if isinstance(result, tuple) else (result,)


def cotangents_like(results: list[Tensor]) -> list[Tensor]:
    """Random cotangents, last axes swapped in memory so that a backward may not assume an order."""
    generator = torch.Generator().manual_seed(1)
    cotangents = []
    for y in results:
        turned = y.mT if y.ndim > 1 else y
        noise = torch.randn(turned.shape, generator=generator, device="cpu").to(y)
        cotangents.append(noise.mT if y.ndim > 1 else noise)
    return cotangents


def gradients(
    results: list[Tensor], arguments: dict, cotangents: list[Tensor]
) -> dict[str, Tensor]:
    """Gradient of every argument that asks for one; q, k and v apart, as their scales differ."""
    leaves = {n: x for n, x in arguments.items() if isinstance(x, Tensor) and x.requires_grad}
    cotangents = [c.to(y.dtype) for c, y in zip(cotangents, results, strict=True)]
    grads = torch.autograd.grad(results, list(leaves.values()), cotangents, materialize_grads=True)
    named = dict(zip(leaves, grads, strict=True))
    if "qkv_T3HD" in named:
        qkv = named.pop("qkv_T3HD")
        named |= {name: qkv[:, i] for i, name in enumerate("qkv")}
    return named


@pytest.mark.parametrize("op, backend, dtype, case", list(every_combination()))
def test_matches_specification(op: str, backend: str, dtype: torch.dtype, case: Case, monkeypatch):
    arguments = case.make(dtype)
    head_width = arguments["qkv_T3HD"].shape[-1] if "qkv_T3HD" in arguments else 64
    skip_if_refused(op, backend, dtype, head_width)
    before = {n: x.detach().clone() for n, x in arguments.items() if isinstance(x, Tensor)}
    ours = as_tuple(run(TABLES[op][backend], arguments))
    specified = as_tuple(run(TABLES[op]["reference"], copy_of(arguments)))
    exact_arguments, plain_arguments = copy_of(arguments, torch.float64), copy_of(arguments)
    exact = as_tuple(run(TABLES[op]["reference"], exact_arguments))
    bound = as_tuple(in_plain_torch(op, plain_arguments, monkeypatch))

    floor = None
    if op == "linear_cross_entropy":
        # The loss is fp32, but a matmul in the dtype of the weights has rounded its logits.
        floor = ulps(dtype, exact[0])
    with torch.no_grad():
        inference = as_tuple(run(TABLES[op][backend], arguments))
    for i in range(len(specified)):
        assert ours[i].dtype == specified[i].dtype
        plain = bound[i].to(ours[i].dtype)
        assert_as_good_as(ours[i], plain, exact[i], 2.0, floor, f"result {i}")
        assert_as_good_as(
            inference[i], plain, exact[i], 2.0, floor, f"result {i} without gradients"
        )

    # The log-sum-exp of attention is for a backward to use and gets no cotangent.
    used = [0] if op == "attention" else range(len(ours))
    cotangents = cotangents_like([ours[i] for i in used])
    our_grads = gradients([ours[i] for i in used], arguments, cotangents)
    exact_grads = gradients([exact[i] for i in used], exact_arguments, cotangents)
    plain_grads = gradients([bound[i] for i in used], plain_arguments, cotangents)
    largest = max((g.abs().max().item() for g in exact_grads.values() if g.numel()), default=0.0)
    for name, grad in exact_grads.items():
        # Rounding of dq and dk happens at the scale of dv: they are differences of its terms.
        floor = ulps(dtype, largest) if op == "attention" else None
        assert_as_good_as(our_grads[name], plain_grads[name], grad, 3.0, floor, f"d {name}")
    for name, x in before.items():
        assert torch.equal(arguments[name], x), f"{name} was changed"


def test_every_op_has_cases_and_a_reference():
    assert CASES.keys() == TABLES.keys()
    assert all("reference" in table for table in TABLES.values())
    for op, cases in CASES.items():
        names = [case.name for case in cases]
        assert len(set(names)) == len(names), f"{op}: two cases of one name"
