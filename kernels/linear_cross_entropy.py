"""linear_cross_entropy: a vocabulary projection and its loss, without holding all logits.

    z = x W^T + b,   lse = log sum_v exp(z_v)
    loss = lse - (1 - s) z_label - s mean(z) + c lse^2          (s label smoothing, c z-loss; PaLM,
    arXiv 2204.02311)

The fast form walks over rows in chunks and computes the gradient beside the loss (Wijmans et al.
2024, arXiv 2411.09009: the logits of 8192 tokens over 50368 words are 1.6 GB in fp32). Rows
labelled `ignore_index` are dropped first.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from encoder_fast.kernels import _native_cross_entropy, _native_linear, _triton
from encoder_fast.kernels._cost import Cost
from encoder_fast.kernels._numeric import wide
from encoder_fast.kernels.dispatch import Implementation

LOGITS_PER_CHUNK = 8 * 2**20
"""32 MB of fp32 logits at a time: large enough for full matmul speed at a vocabulary of 50k (166
rows).
"""


def _select(x_NW: Tensor, labels_N: Tensor, V: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Rows that have a label, after checking the labels."""
    if labels_N.shape != x_NW.shape[:1]:
        raise ValueError(
            f"labels: got shape {tuple(labels_N.shape)}, one per row of {tuple(x_NW.shape)} needed"
        )
    if labels_N.is_floating_point() or labels_N.dtype == torch.bool:
        raise TypeError(f"labels: got dtype {labels_N.dtype}, an integer dtype is needed")
    labels_N = labels_N.long()
    kept = (labels_N != ignore_index).nonzero()[:, 0]
    labels_N = labels_N[kept]
    if labels_N.numel():
        low, high = torch.stack((labels_N.min(), labels_N.max())).tolist()
        if low < 0 or high >= V:
            raise ValueError(
                f"labels: got {low if low < 0 else high}, allowed are 0 to {V - 1} and "
                f"{ignore_index} (ignored)"
            )
    return x_NW[kept], labels_N


def _divisor(count: int, reduction: str, num_items: float | None) -> float:
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction: got {reduction!r}, allowed are 'mean' and 'sum'")
    if num_items is not None:
        return float(num_items)
    return float(max(count, 1)) if reduction == "mean" else 1.0


def reference(
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
    """Specification.

    Args:
        x_NW: `(N, W)`; weight_VW `(V, W)`; bias_V `(V,)` or None.
        labels_N: integers `(N,)`, each in 0..V-1 or `ignore_index`.
        num_items: divide the summed loss by this instead of by the number of labelled rows
            (gradient accumulation).

    Returns:
        Scalar loss in fp32 (fp64 for fp64 input); 0 with zero gradients when no row has a label.

    Raises:
        ValueError, TypeError: labels of a wrong shape, dtype or range; unknown reduction.
    """
    x_NW, labels_N = _select(x_NW, labels_N, weight_VW.shape[0], ignore_index)
    z_NV = F.linear(wide(x_NW), wide(weight_VW), wide(bias_V))
    loss = F.cross_entropy(z_NV, labels_N, reduction="sum", label_smoothing=label_smoothing)
    loss = loss + z_loss * z_NV.logsumexp(-1).square().sum()
    return loss / _divisor(len(labels_N), reduction, num_items)


def _traced(
    z_NV: Tensor,
    labels_N: Tensor,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    num_items: float | None,
) -> Tensor:
    """The loss without dropping rows: how many have a label must not shape a traced graph."""
    z_NV, kept_N = wide(z_NV), labels_N != ignore_index
    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    loss = F.cross_entropy(z_NV, labels_N.long(), reduction="sum", **options)
    if z_loss:
        loss = loss + z_loss * torch.where(kept_N, z_NV.logsumexp(-1).square(), 0.0).sum()
    if num_items is not None or reduction == "sum":
        return loss / _divisor(0, reduction, num_items)
    return loss / kept_N.sum().clamp(min=1)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_NW, weight_VW, bias_V, labels_N, smoothing, z_loss, scale):
        N, V = x_NW.shape[0], weight_VW.shape[0]
        table = torch.float64 if x_NW.dtype == torch.float64 else torch.float32
        needs_x, needs_w, needs_b = ctx.needs_input_grad[:3]
        loss = x_NW.new_zeros((), dtype=table)
        dx = torch.empty_like(x_NW) if needs_x else None
        dw = torch.zeros_like(weight_VW, dtype=table) if needs_w else None
        db = torch.zeros_like(bias_V, dtype=table) if needs_b else None
        rows = max(1, LOGITS_PER_CHUNK // V)
        for start in range(0, N, rows):
            x = x_NW[start : start + rows]
            label = labels_N[start : start + rows, None]
            z = F.linear(x, weight_VW, bias_V).to(table)
            lse = z.logsumexp(-1, keepdim=True)
            part = lse - (1 - smoothing) * z.gather(1, label) + z_loss * lse.square()
            if smoothing:
                part -= smoothing * z.mean(-1, keepdim=True)
            loss += part.sum()
            if not (needs_x or needs_w or needs_b):
                continue
            d = z.sub_(lse).exp_().mul_(1 + 2 * z_loss * lse)
            if smoothing:
                d -= smoothing / V
            d.scatter_add_(1, label, torch.full_like(lse, smoothing - 1))
            d *= scale
            if needs_b:
                db += d.sum(0)
            d = d.to(x.dtype)
            if needs_x:
                torch.mm(d, weight_VW, out=dx[start : start + rows])
            if needs_w:
                dw += d.t() @ x
        ctx.save_for_backward(dx, dw, db)
        ctx.dtypes = weight_VW.dtype, None if bias_V is None else bias_V.dtype
        return loss * scale

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        dx, dw, db = ctx.saved_tensors
        w_dtype, b_dtype = ctx.dtypes
        return (
            None if dx is None else (dx * grad).to(dx.dtype),
            None if dw is None else (dw * grad).to(w_dtype),
            None if db is None else (db * grad).to(b_dtype),
            *(None,) * 4,
        )


def torch_linear_cross_entropy(
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
    """As `reference`, in chunks of rows, with matmuls in the dtype of `x_NW`."""
    if torch.compiler.is_compiling():
        z_NV = F.linear(x_NW, weight_VW, bias_V)
        return _traced(z_NV, labels_N, reduction, ignore_index, label_smoothing, z_loss, num_items)
    x_NW, labels_N = _select(x_NW, labels_N, weight_VW.shape[0], ignore_index)
    scale = 1.0 / _divisor(len(labels_N), reduction, num_items)
    x_NW, weight_VW, bias_V = _inputs(x_NW, weight_VW, bias_V)
    with torch.autocast(x_NW.device.type, enabled=False):
        return _LinearCrossEntropy.apply(
            x_NW, weight_VW, bias_V, labels_N, label_smoothing, z_loss, scale
        )


def native_linear_cross_entropy(
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
    """As `reference`, on the native CPU engine: all words and tokens a block at a time."""
    given = weight_VW, bias_V
    if not (_native_linear.usable(x_NW, *given) and _native_linear.fits(x_NW.shape[1], *given)):
        how = reduction, ignore_index, label_smoothing, z_loss, num_items
        return torch_linear_cross_entropy(x_NW, weight_VW, bias_V, labels_N, *how)
    x_NW, labels_N = _select(x_NW, labels_N, weight_VW.shape[0], ignore_index)
    scale = 1.0 / _divisor(len(labels_N), reduction, num_items)
    return _native_cross_entropy.linear_cross_entropy(
        x_NW, weight_VW, bias_V, labels_N, label_smoothing, z_loss, scale, LOGITS_PER_CHUNK
    )


def _inputs(*tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors in the dtype of autocast where that is on, without gradients where those are off.

    An autograd function sees inputs that require gradients even under `no_grad`, and would compute
    them.
    """
    device = tensors[0].device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        tensors = [None if t is None else t.to(dtype) for t in tensors]
    if torch.is_grad_enabled():
        return list(tensors)
    return [None if t is None else t.detach() for t in tensors]


def cost(N: int, W: int, V: int, itemsize: int) -> Cost:
    """Forward only: the projection of `N` labelled rows and a softmax over its scores."""
    return Cost(2 * N * W * V + 4 * N * V, (N * W + V * W) * itemsize)


IMPLEMENTATIONS = {
    "reference": Implementation(reference),
    "torch": Implementation(torch_linear_cross_entropy),
    "native": Implementation(native_linear_cross_entropy, _native_linear.why_not),
    "triton": Implementation(
        _triton.Lazy("_triton_cross_entropy", "linear_cross_entropy"), _triton.why_not
    ),
}
