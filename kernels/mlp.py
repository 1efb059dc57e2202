"""mlp: the feed-forward block.

    plain:  y = drop(act(x U^T + b)) V^T + c                                 (BERT; the dropout is
    ModernBERT's only)
    gated:  (a, g) = halves of x U^T + b,   y = drop(act(a) * g) V^T + c      (GeGLU, Shazeer 2020,
    arXiv 2002.05202)

The first half of the rows of `U` is activated, the second half is the gate. 2 T W F (1 or 2) + 2 T
W F flops.
"""

from functools import partial

import torch.nn.functional as F
from torch import Tensor

from encoder_fast.kernels import _native_linear, _native_mlp, _onednn, _triton
from encoder_fast.kernels._cost import Cost
from encoder_fast.kernels._numeric import wide
from encoder_fast.kernels.activations import activation_function
from encoder_fast.kernels.dispatch import Implementation, recomputing


def reference(
    x_TW: Tensor,
    up_weight: Tensor,
    up_bias: Tensor | None,
    down_weight_WF: Tensor,
    down_bias_W: Tensor | None,
    activation: str,
    gated: bool,
    dropout_p: float = 0.0,
) -> Tensor:
    """Specification.

    Args:
        x_TW: `(T, W)`.
        up_weight: `(F, W)`, or `(2F, W)` when gated; up_bias one per row, or None.
        down_weight_WF: `(W, F)`; down_bias_W `(W,)` or None.
        activation: a name in `activations.ACTIVATIONS`.
        dropout_p: applied to the inner activation; 0 outside training.

    Returns:
        `(T, W)` in the dtype of `x_TW`.
    """
    act = activation_function(activation)
    h = F.linear(wide(x_TW), wide(up_weight), wide(up_bias))
    if gated:
        a_TF, gate_TF = h.chunk(2, dim=-1)
        h_TF = act(a_TF) * gate_TF
    else:
        h_TF = act(h)
    h_TF = F.dropout(h_TF, dropout_p)
    return F.linear(h_TF, wide(down_weight_WF), wide(down_bias_W)).to(x_TW.dtype)


def torch_mlp(
    x_TW: Tensor,
    up_weight: Tensor,
    up_bias: Tensor | None,
    down_weight_WF: Tensor,
    down_bias_W: Tensor | None,
    activation: str,
    gated: bool,
    dropout_p: float = 0.0,
) -> Tensor:
    """As `reference`, in the dtype of `x_TW`."""
    weights, biases = (up_weight, down_weight_WF), (up_bias, down_bias_W)
    fused = not dropout_p and activation in _onednn.EPILOGUES
    if fused and _onednn.usable(x_TW, weights, biases):
        up = _onednn.gated if gated else _onednn.activated
        h_TF = up(x_TW, up_weight, up_bias, activation)
        return _onednn.linear(h_TF, down_weight_WF, down_bias_W)
    act = activation_function(activation)
    h = F.linear(x_TW, up_weight, up_bias)
    if gated:
        a_TF, gate_TF = h.chunk(2, dim=-1)
        h_TF = act(a_TF) * gate_TF
    else:
        h_TF = act(h)
    if dropout_p:
        h_TF = F.dropout(h_TF, dropout_p)
    return F.linear(h_TF, down_weight_WF, down_bias_W)


def native_mlp(
    x_TW: Tensor,
    up_weight: Tensor,
    up_bias: Tensor | None,
    down_weight_WF: Tensor,
    down_bias_W: Tensor | None,
    activation: str,
    gated: bool,
    dropout_p: float = 0.0,
    keep: bool = True,
) -> Tensor:
    """As `reference`, with fp32 sums, on the native CPU engine.

    Args:
        keep: the result of the up-projection, for the backward; False: that computes it again.
    """
    activation_function(activation)
    weights = up_weight, up_bias, down_weight_WF, down_bias_W
    how = activation, gated, dropout_p
    if _native_linear.usable(x_TW, *weights) and _native_mlp.fits(x_TW, *weights, gated):
        return _native_mlp.mlp(x_TW, *weights, *how, keep)
    return (torch_mlp if keep else recomputing(torch_mlp))(x_TW, *weights, *how)


def cost(T: int, W: int, F: int, gated: bool, itemsize: int) -> Cost:
    """Both products; weights read once, the inner activation never leaves the chip."""
    weights = (3 if gated else 2) * W * F
    return Cost(2 * T * weights, (2 * T * W + weights) * itemsize)


IMPLEMENTATIONS = {
    "reference": Implementation(reference),
    "torch": Implementation(torch_mlp),
    "native": Implementation(
        native_mlp, _native_linear.why_not, recomputed=partial(native_mlp, keep=False)
    ),
    "triton": Implementation(
        _triton.Lazy("_triton_mlp", "mlp"),
        _triton.why_not,
        recomputed=partial(_triton.Lazy("_triton_mlp", "mlp"), keep=False),
    ),
}
