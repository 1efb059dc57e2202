"""How the op tests reach an op: which backends have it, and the layouts that it gets."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from encoder_fast.kernels import dispatch


@pytest.fixture(autouse=True)
def one_thread():
    """For files that import it: inputs too small to share, where a second thread waits for a core.

    On two cores with other work, all op cases take 15 s with one thread and 250 s with two.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def backends_of(op: str) -> list[str]:
    """All backends that have the op, the specification among them."""
    return list(dispatch.op_tables()[op])


def fast_backends_of(op: str) -> list[str]:
    """The backends that promise speed and memory, not only numbers."""
    return [name for name in backends_of(op) if name != "reference"]


def skip_if_refused(op: str, backend: str, dtype: torch.dtype, head_width: int = 64) -> None:
    """Skip what the backend itself refuses, in its own words."""
    request = dispatch.Request(torch.get_default_device(), dtype, head_width, 768)
    reason = dispatch.why_not(op, backend, request)
    if reason:
        pytest.skip(f"{op} on {backend}: {reason}")


def attend(backend: str, qkv_T3HD: Tensor, where, half: int | None, dropout_p: float = 0.0):
    """Output `(T, H, D)` of attention on one backend, which is prepared for this call alone."""
    skip_if_refused("attention", backend, qkv_T3HD.dtype, qkv_T3HD.shape[-1])
    implementation = dispatch.op_tables()["attention"][backend]
    plan = implementation.prepare(where, (half,), qkv_T3HD.dtype)
    return implementation.run(qkv_T3HD, plan, half, dropout_p)[0]


@dataclass(frozen=True)
class Layout:
    """What attention reads of a batch (see `kernels.attention.Layout`)."""

    lengths: tuple[int, ...]
    spans: tuple[int, ...]
    columns_T: Tensor


def layout_of(columns: list[list[int]]) -> Layout:
    """Layout of sequences whose tokens stand at the given columns, holes between them."""
    flat = [c for row in columns for c in row]
    return Layout(
        tuple(len(row) for row in columns),
        tuple(row[-1] - row[0] + 1 if row else 0 for row in columns),
        torch.tensor(flat, dtype=torch.int64),
    )


def layout(*lengths: int) -> Layout:
    """Layout of sequences without holes."""
    return layout_of([list(range(n)) for n in lengths])


def offsets(lengths: tuple[int, ...]) -> Tensor:
    """`cu_seqlens` of sequences of these lengths."""
    return torch.tensor((0, *lengths)).cumsum(0).to(torch.int32)
