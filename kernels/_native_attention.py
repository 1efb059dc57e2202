"""The native backend's attention: csrc/cpu/attention*.inl on packed tensors, both directions.

Sequences are attended as they lie, each from its own rows, in blocks of 64 queries and the keys
that these see: no grouping, no padding, no mask tensor. The backward computes probabilities again
from the log-sum-exp and is given the forward's seed, so nothing of the square of a length is kept.
"""

from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from encoder_fast.kernels import _grouped, _native, _native_linear, _traced
from encoder_fast.kernels._layout import Layout
from encoder_fast.kernels._native_weights import DTYPES, address, compute_dtype
from encoder_fast.kernels._numeric import dropout_seed

WIDEST_HEAD = 256


@dataclass(frozen=True)
class NativePlan:
    """What all layers of one forward share."""

    layout: Layout
    halves: tuple[int | None, ...]
    cu_B1: Tensor
    """int32: sequence b is rows `cu[b]` to `cu[b+1]`."""
    columns_T: Tensor | None
    """int64, only where some sequence has a hole."""
    grouped: dict[torch.dtype, _grouped.Plan] = field(default_factory=dict)
    """What the torch backend needs, by dtype, made when a call is not for the kernels."""


def why_not(request) -> str | None:
    """See `dispatch.Implementation`."""
    if request.head_width > WIDEST_HEAD:
        return f"head width: got {request.head_width}, allowed are 1 to {WIDEST_HEAD}"
    return _native_linear.why_not(request)


def prepare(
    layout: Layout, halves: tuple[int | None, ...], dtype: torch.dtype
) -> NativePlan | _traced.TracedPlan:
    """See `attention.prepare`."""
    if torch.compiler.is_compiling():
        return _traced.TracedPlan(layout.lengths_B, layout.spans_B, layout.columns_T)
    cu_B1 = torch.tensor([0, *accumulate(layout.lengths)], dtype=torch.int32, device="cpu")
    holes = tuple(layout.lengths) != tuple(layout.spans)
    return NativePlan(layout, halves, cu_B1, layout.columns_T.contiguous() if holes else None)


@dataclass(frozen=True)
class _Call:
    """Everything of one call but its large tensors."""

    cu_B1: Tensor
    columns_T: Tensor | None
    half: int
    dropout_p: float
    seed: int
    compute: int
    """`ef::Dtype` of the products."""

    def native(self, qkv_T3HD: Tensor, o_THD: Tensor, lse_2TH: Tensor | None):
        """The call as csrc/bind_attention.cpp takes it."""
        _, _, H, D = qkv_T3HD.shape
        token, third, head, _ = qkv_T3HD.stride()
        first, size = address(qkv_T3HD), qkv_T3HD.element_size()
        lse = [0, 0] if lse_2TH is None else [address(x) for x in lse_2TH]
        return _native.C.Attention(
            qkv=[first + i * third * size for i in range(3)],
            strides=[token, head],
            heads=[H, D],
            o=address(o_THD),
            o_strides=o_THD.stride()[:2],
            lse=lse,
            cu_seqlens=address(self.cu_B1),
            B=self.cu_B1.shape[0] - 1,
            columns=address(self.columns_T),
            half=self.half,
            scale=D**-0.5,
            dropout=self.dropout_p,
            seed=self.seed,
            dtype=DTYPES[qkv_T3HD.dtype],
            compute=self.compute,
        )


def _rows(x: Tensor) -> Tensor:
    """`x` with the numbers of a head side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _forward(qkv_T3HD: Tensor, call: _Call, with_lse: bool) -> tuple[Tensor, Tensor | None]:
    """Output, and the log-sum-exp with what its rounding lost, fp32 `(2, T, H)`."""
    T, _, H, D = qkv_T3HD.shape
    o_THD = qkv_T3HD.new_empty(T, H, D)
    lse_2TH = qkv_T3HD.new_empty(2, T, H, dtype=torch.float32) if with_lse else None
    call.native(qkv_T3HD, o_THD, lse_2TH).forward(torch.get_num_threads())
    return o_THD, lse_2TH


def _backward(
    grad_THD: Tensor, qkv_T3HD: Tensor, o_THD: Tensor, lse_2TH: Tensor, call: _Call
) -> Tensor:
    grad_THD = _rows(grad_THD)
    d = qkv_T3HD.new_empty(qkv_T3HD.shape)
    token, third, head, _ = d.stride()
    gradients = [address(d) + i * third * d.element_size() for i in range(3)]
    call.native(qkv_T3HD, o_THD, lse_2TH).backward(
        address(grad_THD), grad_THD.stride()[:2], gradients, [token, head], torch.get_num_threads()
    )
    return d


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv_T3HD: Tensor, call: _Call) -> tuple[Tensor, Tensor]:
        qkv_T3HD = _rows(qkv_T3HD)
        o_THD, lse_2TH = _forward(qkv_T3HD, call, with_lse=True)
        ctx.save_for_backward(qkv_T3HD, o_THD, lse_2TH)
        ctx.mark_non_differentiable(lse_2TH)
        ctx.call = call
        return o_THD, lse_2TH

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_THD: Tensor, _):
        return _backward(grad_THD, *ctx.saved_tensors, ctx.call), None


# ------------------------------------------------------------------------------- in a traced graph

_LIBRARY = torch.library.Library("encoder_fast", "FRAGMENT")
_TAIL = "Tensor lengths, Tensor spans, Tensor columns, int half, float dropout_p, Tensor seed"
_LIBRARY.define(
    f"native_attention(Tensor qkv, {_TAIL}) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.define(
    f"native_attention_backward(Tensor grad, Tensor qkv, Tensor o, Tensor lse, {_TAIL}) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _call_of(
    dtype: torch.dtype,
    lengths: Tensor,
    spans: Tensor,
    columns: Tensor,
    half: int,
    dropout_p: float,
    seed: Tensor,
) -> _Call:
    cu = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    holes = None if torch.equal(lengths, spans) else columns.contiguous()
    return _Call(cu, holes, half, dropout_p, int(seed), compute_dtype(dtype))


def _traced_forward(qkv: Tensor, *tail) -> tuple[Tensor, Tensor]:
    return _forward(_rows(qkv), _call_of(qkv.dtype, *tail), with_lse=True)


def _traced_backward(grad: Tensor, qkv: Tensor, o: Tensor, lse: Tensor, *tail) -> Tensor:
    return _backward(grad, _rows(qkv), _rows(o), lse.contiguous(), _call_of(qkv.dtype, *tail))


def _fake_forward(qkv: Tensor, *tail) -> tuple[Tensor, Tensor]:
    T, _, H, D = qkv.shape
    return qkv.new_empty(T, H, D), qkv.new_empty(2, T, H, dtype=torch.float32)


def _save(ctx, inputs, output) -> None:
    qkv, lengths, spans, columns, half, dropout_p, seed = inputs
    ctx.save_for_backward(qkv, *output, lengths, spans, columns, seed)
    ctx.numbers = half, dropout_p


def _differentiate(ctx, grad: Tensor, _):
    *tensors, seed = ctx.saved_tensors
    d = torch.ops.encoder_fast.native_attention_backward(grad, *tensors, *ctx.numbers, seed)
    return d, None, None, None, None, None, None


_LIBRARY.impl("native_attention", _traced_forward, "CPU")
_LIBRARY.impl("native_attention_backward", _traced_backward, "CPU")
torch.library.register_fake("encoder_fast::native_attention", _fake_forward)
torch.library.register_fake(
    "encoder_fast::native_attention_backward",
    lambda grad, qkv, *rest: qkv.new_empty(qkv.shape),
)
torch.library.register_autograd(
    "encoder_fast::native_attention", _differentiate, setup_context=_save
)


# ------------------------------------------------------------------------------------------ the op


def _for_kernels(qkv_T3HD: Tensor) -> bool:
    """Are these numbers that the kernels can read, in a call that they serve?"""
    return (
        _native.serves()
        and qkv_T3HD.dtype in DTYPES
        and qkv_T3HD.device.type == "cpu"
        and qkv_T3HD.shape[-1] <= WIDEST_HEAD
        and type(qkv_T3HD) in (Tensor, torch.nn.Parameter)
    )


def _traced_attend(
    qkv_T3HD: Tensor, plan: _traced.TracedPlan, half: int | None, dropout_p: float, with_lse: bool
) -> tuple[Tensor, Tensor | None]:
    if _native.C is None or qkv_T3HD.dtype not in DTYPES or qkv_T3HD.device.type != "cpu":
        return _traced.attend(qkv_T3HD, plan, half, dropout_p), None
    window, of_batch = -1 if half is None else half, (plan.lengths_B, plan.spans_B, plan.columns_T)
    o_THD, lse_2TH = torch.ops.encoder_fast.native_attention(
        qkv_T3HD, *of_batch, window, dropout_p, dropout_seed(dropout_p)
    )
    return o_THD, lse_2TH[0].detach() if with_lse else None


def native_attention(
    qkv_T3HD: Tensor,
    plan: NativePlan | _traced.TracedPlan,
    half: int | None,
    dropout_p: float = 0.0,
    with_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """As `attention.reference`, with `plan` from `prepare`. Numbers of another dtype than the
    model was built for, and functorch's transforms, are left to the torch backend.
    """
    if isinstance(plan, _traced.TracedPlan):
        return _traced_attend(qkv_T3HD, plan, half, dropout_p, with_lse)
    if qkv_T3HD.shape[0] != sum(plan.layout.lengths):
        tokens = sum(plan.layout.lengths)
        raise ValueError(f"qkv: got {qkv_T3HD.shape[0]} tokens, the batch has {tokens}")
    if torch.is_autocast_enabled("cpu") and qkv_T3HD.dtype == torch.float32:
        qkv_T3HD = qkv_T3HD.to(torch.get_autocast_dtype("cpu"))
    if not _for_kernels(qkv_T3HD):
        dtype = qkv_T3HD.dtype
        if dtype not in plan.grouped:
            plan.grouped[dtype] = _grouped.prepare(plan.layout, plan.halves, dtype)
        grouped = plan.grouped[dtype]
        lse_TH = _grouped.log_sum_exp(qkv_T3HD, grouped, half) if with_lse else None
        return _grouped.attend(qkv_T3HD, grouped, half, dropout_p), lse_TH
    window, compute = -1 if half is None else half, compute_dtype(qkv_T3HD.dtype)
    dropout = dropout_p, int(dropout_seed(dropout_p))
    call = _Call(plan.cu_B1, plan.columns_T, window, *dropout, compute)
    if torch.is_grad_enabled() and qkv_T3HD.requires_grad:
        o_THD, lse_2TH = _Attention.apply(qkv_T3HD, call)
    else:
        o_THD, lse_2TH = _forward(_rows(qkv_T3HD), call, with_lse)
    return o_THD, lse_2TH[0] if with_lse else None
