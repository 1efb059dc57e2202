"""How the native attention tests call the kernels and hold them to the accuracy law."""

import math

import torch
from closeness import assert_as_good_as, ulps
from op_harness import Layout
from torch import Tensor

from encoder_fast.kernels import _native_attention


def draw(T: int, H: int = 2, D: int = 8, dtype=torch.float32) -> Tensor:
    return torch.randn(T, 3, H, D, generator=torch.Generator().manual_seed(T)).to(dtype)


def run(qkv: Tensor, where: Layout, half: int | None, cotangent: Tensor | None = None, p=0.0):
    """Output, log-sum-exp and, with a cotangent, the gradient."""
    qkv = qkv.detach().requires_grad_(cotangent is not None)
    plan = _native_attention.prepare(where, (half,), qkv.dtype)
    o, lse = _native_attention.native_attention(qkv, plan, half, p, with_lse=True)
    if cotangent is None:
        return o, lse
    return o.detach(), lse, torch.autograd.grad(o, qkv, cotangent)[0]


def plain(qkv: Tensor, where: Layout, half: int | None, cotangent: Tensor, keep=None, p=0.0):
    """The same in torch, one softmax for each sequence. `keep` is a list of masks `(H, L, L)`."""
    qkv, start, outputs, lses = qkv.detach().requires_grad_(), 0, [], []
    for b, n in enumerate(where.lengths):
        q, k, v = qkv[start : start + n].permute(1, 2, 0, 3)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if half is not None:
            c = where.columns_T[start : start + n]
            scores = scores.masked_fill((c[:, None] - c).abs() > half, -math.inf)
        weights = scores.softmax(-1)
        if keep is not None:
            weights = weights * keep[b] / (1 - p)
        outputs.append((weights @ v).transpose(0, 1))
        lses.append(scores.logsumexp(-1).T)
        start += n
    o, lse = torch.cat(outputs), torch.cat(lses)
    return o.detach(), lse.detach(), torch.autograd.grad(o, qkv, cotangent.to(o.dtype))[0]


def assert_accurate(qkv: Tensor, where: Layout, half: int | None, p=0.0, keep=None, seed=0):
    """o, lse and gradients by the accuracy law; q, k and v apart, as their scales differ."""
    T, _, H, D = qkv.shape
    cotangent = torch.randn(T, H, D).to(qkv.dtype)
    torch.manual_seed(seed)
    o, lse, d = run(qkv, where, half, cotangent, p)
    o_torch, lse_torch, d_torch = plain(qkv, where, half, cotangent, keep, p)
    o_exact, lse_exact, d_exact = plain(qkv.double(), where, half, cotangent, keep, p)
    assert_as_good_as(o, o_torch, o_exact, name="o")
    assert_as_good_as(lse, lse_torch.float(), lse_exact, name="lse")
    # Rounding of dq and dk happens at the scale of dv: they are differences of its terms.
    floor = ulps(qkv.dtype, d_exact)
    for i, name in enumerate("qkv"):
        assert_as_good_as(d[:, i], d_torch[:, i], d_exact[:, i], 3.0, floor, f"d {name}")
