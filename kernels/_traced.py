"""attention as one registered operator, for `torch.compile` and `torch.export`.

How the eager form groups sequences depends on their lengths, which a traced graph must not bake in.
Here lengths are a tensor input, so one graph serves every batch. Eager calls skip this file: the
dispatcher costs time, and the backward below computes the forward a second time.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from encoder_fast.kernels import _grouped
from encoder_fast.kernels._numeric import dropout_seed

_LIBRARY = torch.library.Library("encoder_fast", "DEF")
_TAIL = (
    "Tensor qkv, Tensor lengths, Tensor spans, Tensor columns, int half, float dropout_p, "
    "Tensor seed"
)
_LIBRARY.define(f"attention({_TAIL}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_LIBRARY.define(
    f"attention_backward(Tensor grad, {_TAIL}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)


@dataclass(frozen=True)
class TracedPlan:
    """What attention reads of a batch, as tensors: host lengths and spans `(B,)`, columns
    `(T,)`.
    """

    lengths_B: Tensor
    spans_B: Tensor
    columns_T: Tensor


@dataclass(frozen=True)
class _Layout:
    lengths: tuple[int, ...]
    spans: tuple[int, ...]
    columns_T: Tensor


def _forward(
    qkv: Tensor,
    lengths: Tensor,
    spans: Tensor,
    columns: Tensor,
    half: int,
    dropout_p: float,
    seed: Tensor,
) -> Tensor:
    layout = _Layout(tuple(lengths.tolist()), tuple(spans.tolist()), columns)
    window = None if half < 0 else half
    plan = _grouped.prepare(layout, (window,), qkv.dtype)
    if not dropout_p:
        return _grouped.attend(qkv, plan, window).contiguous()
    # The seed makes the backward's second forward drop the same probabilities.
    with torch.random.fork_rng(devices=[qkv.device] if qkv.is_cuda else []):
        torch.default_generator.manual_seed(int(seed))
        if qkv.is_cuda:
            torch.cuda.default_generators[qkv.device.index].manual_seed(int(seed))
        return _grouped.attend(qkv, plan, window, dropout_p).contiguous()


def _backward(grad: Tensor, qkv: Tensor, *rest) -> Tensor:
    # The dispatcher has already passed autograd when it calls an operator: put it back for the
    # inner call.
    keys = torch._C.DispatchKey
    with (
        torch._C._SetExcludeDispatchKeyGuard(keys.AutogradFunctionality, False),
        torch._C._SetExcludeDispatchKeyGuard(keys.ADInplaceOrView, False),
        torch.enable_grad(),
    ):
        qkv = qkv.detach().requires_grad_()
        out = _forward(qkv, *rest)
        return torch.autograd.grad(out, qkv, grad)[0].contiguous()


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*(x for x in inputs if isinstance(x, Tensor)))
    ctx.numbers = inputs[4], inputs[5]


def _differentiate(ctx, grad: Tensor):
    qkv, lengths, spans, columns, seed = ctx.saved_tensors
    d = torch.ops.encoder_fast.attention_backward(
        grad, qkv, lengths, spans, columns, *ctx.numbers, seed
    )
    return d, None, None, None, None, None, None


_LIBRARY.impl("attention", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("attention_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake(
    "encoder_fast::attention", lambda qkv, *rest: qkv.new_empty(qkv.shape[0], *qkv.shape[2:])
)
torch.library.register_fake(
    "encoder_fast::attention_backward", lambda grad, qkv, *rest: torch.empty_like(qkv).contiguous()
)
torch.library.register_autograd("encoder_fast::attention", _differentiate, setup_context=_save)


def attend(qkv_T3HD: Tensor, plan: TracedPlan, half: int | None, dropout_p: float) -> Tensor:
    """Attention of one layer, `(T, 3, H, D)` -> `(T, H, D)`."""
    window, of_batch = -1 if half is None else half, (plan.lengths_B, plan.spans_B, plan.columns_T)
    return torch.ops.encoder_fast.attention(
        qkv_T3HD, *of_batch, window, dropout_p, dropout_seed(dropout_p)
    )
