"""Projections in inference may keep packed weights: a pack must never outlive the numbers in it."""

import copy

import pytest
import torch
from native_harness import each_dtype
from op_harness import backends_of, one_thread, skip_if_refused  # noqa: F401

from encoder_fast.kernels import dispatch

each_backend = pytest.mark.parametrize("backend", backends_of("linear"))


def same_on_both_paths(backend: str, x_TW, weight, bias) -> bool:
    """Is the result without gradients that of a weight never seen before, for linear and mlp?"""
    skip_if_refused("linear", backend, x_TW.dtype)
    tables = dispatch.op_tables()
    linear, mlp = tables["linear"][backend].run, tables["mlp"][backend].run
    down = torch.eye(weight.shape[0], dtype=x_TW.dtype)
    half = down[:, : weight.shape[0] // 2].contiguous()
    with torch.no_grad():
        return all(
            torch.equal(run(weight), run(weight.clone()))
            for run in (
                lambda w: linear(x_TW, w, bias),
                lambda w: mlp(x_TW, w, bias, down, None, "gelu", False),
                lambda w: mlp(x_TW, w, bias, half, None, "gelu", True),
            )
        )


@each_backend
@each_dtype
def test_change_of_a_weight_is_seen(backend, dtype):
    x_TW, bias = torch.randn(5, 32).to(dtype), torch.randn(48).to(dtype)
    weight = torch.nn.Parameter(torch.randn(48, 32).to(dtype))
    assert same_on_both_paths(backend, x_TW, weight, bias)
    with torch.no_grad():
        weight.add_(1)
    assert same_on_both_paths(backend, x_TW, weight, bias)
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=1.0).step()
    assert same_on_both_paths(backend, x_TW, weight, bias)
    weight.data = torch.randn(48, 32).to(dtype)
    assert same_on_both_paths(backend, x_TW, weight, bias)


@each_backend
@each_dtype
def test_load_and_copy_of_a_module_are_seen(backend, dtype):
    x_TW = torch.randn(5, 32).to(dtype)
    module, other = (torch.nn.Linear(32, 48, dtype=dtype) for _ in range(2))
    assert same_on_both_paths(backend, x_TW, module.weight, module.bias)
    module.load_state_dict(other.state_dict())
    assert same_on_both_paths(backend, x_TW, module.weight, module.bias)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.weight.zero_()
    assert same_on_both_paths(backend, x_TW, twin.weight, twin.bias)
    assert same_on_both_paths(backend, x_TW, module.weight, module.bias)


@each_backend
@each_dtype
def test_weight_used_in_inference_can_still_be_trained(backend, dtype):
    x_TW = torch.randn(5, 32).to(dtype)
    weight = torch.nn.Parameter(torch.randn(48, 32).to(dtype))
    run = dispatch.op_tables()["linear"][backend].run
    with torch.inference_mode():
        run(x_TW, weight, None)
    run(x_TW, weight, None).sum().backward()
    expected = x_TW.double().sum(0).expand(48, 32)
    assert (weight.grad - expected).abs().max() <= 8 * torch.finfo(dtype).eps * expected.abs().max()
