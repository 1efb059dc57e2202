"""Who is timed on an op: our backends and, beside them, what people use for the same work."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from encoder_fast.benchmarks.op_check import (
    Answer,
    Expected,
    answer,
    leaves,
    planned,
    tensors,
)
from encoder_fast.benchmarks.op_shapes import OpShape
from encoder_fast.kernels import dispatch

REFERENCE_TOKENS = 1024
PASSES = ("forward", "forward+backward")


def always(*given) -> None:
    """No reason to refuse."""


@dataclass(frozen=True)
class Subject:
    """One way to compute an op.

    `run(**native)` is timed; `convert(arguments)` makes `native` before that, differentiably, and
    `results(output, arguments)` gives the op's own results, both untimed. `why_not(shape, dtype,
    device, passes)` is None or a reason, and so is `absent(device)`, which holds for all inputs.
    `slow` subjects take part when named or asked for.
    """

    op: str
    name: str
    run: Callable
    convert: Callable[[dict], dict] = dict
    results: Callable[[object, dict], tuple[Tensor, ...]] = lambda output, arguments: tensors(
        output
    )
    why_not: Callable[[OpShape, torch.dtype, str, str], str | None] = always
    absent: Callable[[str], str | None] = always
    slow: bool = False

    def call(self, arguments: dict, passes: str) -> Callable[[], object]:
        """What is timed: a forward in inference mode, or a forward with all gradients."""
        grads = passes != "forward"
        native = {n: _leaf(x, grads) for n, x in self.convert(arguments).items()}

        def forward():
            with torch.inference_mode():
                return self.run(**native)

        if not grads:
            return forward
        wanted = list(leaves(native).values())
        cotangents = [torch.randn_like(y) for y in self._outputs(native)]

        def both():
            return torch.autograd.grad(self._outputs(native), wanted, cotangents)

        return both

    def _outputs(self, native: dict) -> list[Tensor]:
        return [y for y in tensors(self.run(**native)) if y.requires_grad]

    def answer(self, arguments: dict, wanted: Expected) -> Answer:
        """One call as it is timed, as the op's own results and gradients."""
        if not wanted.cotangents:
            output = self.call(arguments, "forward")()
            return answer(self.results(output, arguments), arguments, ())
        output = self.run(**self.convert(arguments))
        return answer(self.results(output, arguments), arguments, wanted.cotangents)


def _leaf(x, grads: bool):
    if not isinstance(x, Tensor):
        return x
    return x.detach().requires_grad_(grads and x.requires_grad)


def installed(package: str) -> bool:
    """Is there a top-level package of this name? Nothing is imported."""
    return importlib.util.find_spec(package) is not None


def not_on_cuda(device: str) -> str | None:
    """`absent` of what runs on a GPU only."""
    return None if torch.device(device).type == "cuda" else f"runs on cuda, not on {device}"


def _own(op: str, backend: str, implementation: dispatch.Implementation) -> Subject:
    def why_not(shape: OpShape, dtype: torch.dtype, device: str, passes: str) -> str | None:
        request = dispatch.Request(torch.device(device), dtype, shape.head_width, shape.width)
        if reason := dispatch.why_not(op, backend, request):
            return reason
        if backend == "reference" and shape.tokens > REFERENCE_TOKENS:
            return f"the specification is timed up to {REFERENCE_TOKENS} tokens"
        return None

    def convert(arguments: dict) -> dict:
        return planned(implementation, arguments)

    return Subject(op, backend, implementation.run, convert, why_not=why_not)


def subjects(op: str) -> list[Subject]:
    """Every backend that has the op, then its peers."""
    from encoder_fast.benchmarks.op_peers import PEERS

    own = [_own(op, name, one) for name, one in dispatch.op_tables()[op].items()]
    return own + [peer for peer in PEERS if peer.op == op]
