"""linear_cross_entropy on the triton backend: products by the matmul library, and between them one
kernel that reads the scores of a chunk of rows and leaves their gradient in the same place.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from encoder_fast.kernels import _triton
from encoder_fast.kernels._triton_cross_entropy_kernels import cross_entropy_kernel
from encoder_fast.kernels.linear_cross_entropy import (
    _divisor,
    _inputs,
    _select,
    torch_linear_cross_entropy,
)

LOGITS_PER_CHUNK = 64 * 2**20
"""128 MB of bf16 scores at a time: 1,332 rows of a vocabulary of 50,368, enough for the full speed
of a product on a GPU (gpu.md's shapes reach it at about 1,000 rows). Not measured."""
WORDS_APART = 64
BLOCK, WARPS = 4096, 8
"""Words of a row at a time: 16 a thread, two 16-byte loads at bf16. Not measured."""


def _padded(V: int) -> int:
    return -(-V // WORDS_APART) * WORDS_APART


def _scores(x_NW: Tensor, weight_VW: Tensor, bias_V: Tensor | None) -> Tensor:
    """`F.linear`, in rows that begin at multiples of 128 bytes: a vocabulary of 30,522 would
    otherwise be read a number at a time. What lies between the rows is undefined.
    """
    N, V = x_NW.shape[0], weight_VW.shape[0]
    z_NV = x_NW.new_empty(N, _padded(V))[:, :V]
    if bias_V is None:
        return torch.mm(x_NW, weight_VW.t(), out=z_NV)
    return torch.addmm(bias_V, x_NW, weight_VW.t(), out=z_NV)


def _cross_entropy(
    z_NV: Tensor, labels_N: Tensor, smoothing: float, z_loss: float, gradient: bool
) -> Tensor:
    """`z_NV` as `_scores` makes it."""
    N, V = z_NV.shape
    losses_N = z_NV.new_empty(N, dtype=torch.float32)
    if N:
        cross_entropy_kernel[(N,)](
            z_NV, labels_N, losses_N, V, _padded(V), z_NV.stride(0), smoothing, z_loss,
            WRITES=gradient, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return losses_N


CROSS_ENTROPY = _triton.Operator(
    "triton_cross_entropy(Tensor(a!) z, Tensor labels, float smoothing, float z_loss,"
    " bool gradient) -> Tensor",
    _cross_entropy,
    lambda z, *rest: z.new_empty(z.shape[0], dtype=torch.float32),
)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_NW, weight_VW, bias_V, labels_N, smoothing, z_loss, scale):
        N, V = x_NW.shape[0], weight_VW.shape[0]
        needs_x, needs_w, needs_b = ctx.needs_input_grad[:3]
        wide = {"dtype": torch.float32, "device": x_NW.device}
        loss = torch.zeros((), **wide)
        dx = torch.empty_like(x_NW) if needs_x else None
        dw = torch.zeros(weight_VW.shape, **wide) if needs_w else None
        db = torch.zeros(V, **wide) if needs_b else None
        rows = max(1, LOGITS_PER_CHUNK // V)
        for start in range(0, N, rows):
            x, labels = x_NW[start : start + rows], labels_N[start : start + rows]
            d = _scores(x, weight_VW, bias_V)
            loss += CROSS_ENTROPY(d, labels, smoothing, z_loss, needs_x or needs_w or needs_b).sum()
            # `d` is the gradient of the sum: of the scale of 1, which fp16 holds; it is divided
            # by the number of rows only afterwards.
            if needs_b:
                db += d.sum(0, dtype=torch.float32)
            if needs_x:
                torch.mm(d, weight_VW, out=dx[start : start + rows])
            if needs_w:
                dw += d.t() @ x
        ctx.save_for_backward(dx, dw, db)
        ctx.scale = scale
        ctx.dtypes = weight_VW.dtype, None if bias_V is None else bias_V.dtype
        return loss * scale

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        dx, dw, db = ctx.saved_tensors
        grad = grad * ctx.scale
        w_dtype, b_dtype = ctx.dtypes
        return (
            None if dx is None else (dx * grad).to(dx.dtype),
            None if dw is None else (dw * grad).to(w_dtype),
            None if db is None else (db * grad).to(b_dtype),
            *(None,) * 4,
        )


def linear_cross_entropy(
    x_NW: Tensor,
    weight_VW: Tensor,
    bias_V: Tensor | None,
    labels_N: Tensor,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    num_items: float | None = None,
) -> Tensor:
    """As `kernels.linear_cross_entropy.reference`, in chunks of rows, with matmuls in the dtype of
    `x_NW`. In a traced graph, torch's form: how many rows have a label must not shape a graph.
    """
    if _triton.traced():
        return torch_linear_cross_entropy(
            x_NW, weight_VW, bias_V, labels_N,
            reduction, ignore_index, label_smoothing, z_loss, num_items,
        )  # fmt: skip
    x_NW, labels_N = _select(x_NW, labels_N, weight_VW.shape[0], ignore_index)
    scale = 1.0 / _divisor(len(labels_N), reduction, num_items)
    given = _inputs(x_NW, weight_VW, bias_V)
    with torch.autocast(x_NW.device.type, enabled=False):
        return _LinearCrossEntropy.apply(*given, labels_N, label_smoothing, z_loss, scale)
