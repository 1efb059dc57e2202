"""What the tests of native ops share: every tier of this machine, and both thread counts."""

import contextlib

import pytest
import torch

from encoder_fast.kernels import _native

TIERS = _native.tiers() or [None]
needs_engine = pytest.mark.skipif(_native.C is None, reason=str(_native.missing))
each_tier = pytest.mark.parametrize("tier", TIERS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


class Counting:
    """The engine, counting what is called of it."""

    def __init__(self, engine):
        self.engine, self.calls = engine, {}

    def __getattr__(self, name):
        self.calls[name] = self.calls.get(name, 0) + 1
        return getattr(self.engine, name)


@contextlib.contextmanager
def on(tier: str | None, threads: int = 1):
    """Runs on a tier with so many threads; skips where there is no engine."""
    if tier is None:
        pytest.skip(_native.missing)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with _native.use_tier(tier):
            yield
    finally:
        torch.set_num_threads(before)


def leaves(dtype: torch.dtype, *tensors):
    """The tensors, drawn in fp64 and rounded, as leaves of a graph; None stays None."""
    return [None if t is None else t.to(dtype).requires_grad_() for t in tensors]


def same_in(dtype: torch.dtype, tensors):
    """Leaves of another dtype with the very numbers of `tensors`."""
    return leaves(dtype, *(None if t is None else t.detach() for t in tensors))


def with_gradients(out: torch.Tensor, cotangent, tensors) -> dict:
    """The result and the gradients of those tensors that are not None."""
    given = {str(i): t for i, t in enumerate(tensors) if t is not None}
    grads = torch.autograd.grad(out, list(given.values()), cotangent.to(out.dtype))
    return {"result": out, **dict(zip(given, grads, strict=True))}
