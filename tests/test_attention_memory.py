"""Memory of attention (C57): nothing of L x L elements; growth with the tokens, not the square."""

import pytest
import torch
from op_harness import attend, fast_backends_of, layout, one_thread  # noqa: F401
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LENGTH = 8192
each_fast_backend = pytest.mark.parametrize("backend", fast_backends_of("attention"))
each_kind = pytest.mark.parametrize(
    "half, dropout_p",
    [(None, 0.0), (64, 0.0), (64, 0.1)],
    ids=["global", "half64", "half64-dropout"],
)


class LargestTensor(TorchDispatchMode):
    """Elements of the largest storage that any torch op returns while it is on."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor):
                stored = x.untyped_storage().nbytes() // x.element_size()
                self.elements = max(self.elements, stored)
        return result


def step(backend: str, lengths: tuple[int, ...], half: int | None, dropout_p: float) -> None:
    """Forward and backward, preparation included."""
    qkv = torch.randn(sum(lengths), 3, 1, 8).requires_grad_()
    attend(backend, qkv, layout(*lengths), half, dropout_p).sum().backward()


@each_fast_backend
@each_kind
@pytest.mark.parametrize("lengths", [(LENGTH,), (LENGTH - 1, 100, 1)], ids=["one", "ragged"])
def test_C57_no_tensor_of_the_square_of_the_length(backend, half, dropout_p, lengths):
    with LargestTensor() as largest:
        step(backend, lengths, half, dropout_p)
    assert largest.elements >= LENGTH * 3 * 8, "the input itself was not seen"
    assert largest.elements < LENGTH**2 / 16


@each_fast_backend
def test_C57_global_dropout_holds_one_chunk_of_queries(backend):
    """torch's CPU attention with dropout makes all probabilities of its queries: 1024 at a time."""
    with LargestTensor() as largest:
        step(backend, (4096,), None, 0.1)
    assert largest.elements <= 4096**2 / 4


def peak_bytes(run) -> int:
    """Largest sum of live allocations during `run`, inside kernels too."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        run()
    live = peak = 0
    for event in trace.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


@each_fast_backend
@each_kind
def test_C57_memory_grows_with_the_tokens(backend, half, dropout_p):
    step(backend, (64,), half, dropout_p)
    small, large = (
        peak_bytes(lambda n=n: step(backend, (n,), half, dropout_p)) for n in (LENGTH // 2, LENGTH)
    )
    assert small > 4 * 3 * 8 * LENGTH / 2, "the profiler saw no allocation"
    assert large / small < 2.2
