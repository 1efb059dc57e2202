"""Other people's versions of the ops, named "peer ...". Conversion to what a peer takes is not
timed. Liger, quack and flash-attn are called by the names in their sources; where those changed,
the cell fails with Python's own reason.
"""

from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from encoder_fast.benchmarks import op_attention_peers
from encoder_fast.benchmarks.contenders._torch import no_compiler
from encoder_fast.benchmarks.op_shapes import OpShape
from encoder_fast.benchmarks.op_subjects import Subject, installed, not_on_cuda
from encoder_fast.kernels.activations import activation_function


def _layer_norm(x_TW, residual_TW, weight_W, bias_W, eps) -> tuple[Tensor, Tensor]:
    s_TW = x_TW + residual_TW
    return F.layer_norm(s_TW, s_TW.shape[-1:], weight_W, bias_W, eps), s_TW


def _mlp(x_TW, up_weight, up_bias, down_weight_WF, down_bias_W, activation, gated) -> Tensor:
    act = activation_function(activation)
    h = F.linear(x_TW, up_weight, up_bias)
    if gated:
        a_TF, gate_TF = h.chunk(2, dim=-1)
        h = act(a_TF) * gate_TF
    else:
        h = act(h)
    return F.linear(h, down_weight_WF, down_bias_W)


def _cross_entropy(x_NW, weight_VW, bias_V, labels_N) -> Tensor:
    return F.cross_entropy(F.linear(x_NW, weight_VW, bias_V).float(), labels_N)


@cache
def _compiled(function):
    return torch.compile(function, dynamic=False)


def _compiled_anew(arguments: dict) -> dict:
    """One graph a cell: after eight shapes of one function torch would run it uncompiled."""
    torch.compiler.reset()
    return arguments


def _compile_peer(op: str, function) -> Subject:
    def run(**native):
        return _compiled(function)(**native)

    return Subject(op, "peer torch.compile", run, _compiled_anew, absent=no_compiler, slow=True)


def _missing(device: str, package: str, distribution: str) -> str | None:
    if reason := not_on_cuda(device):
        return reason
    return None if installed(package) else f"not installed: pip install {distribution}"


_no_liger = partial(_missing, package="liger_kernel", distribution="liger-kernel")
_no_quack = partial(_missing, package="quack", distribution="quack-kernels")


def _liger_layer_norm(x_TW, residual_TW, weight_W, bias_W, eps) -> tuple[Tensor, Tensor]:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    s_TW = x_TW + residual_TW
    bias_W = torch.zeros_like(weight_W) if bias_W is None else bias_W
    return LigerLayerNormFunction.apply(s_TW, weight_W, bias_W, eps), s_TW


def _liger_geglu(x_TW, up_weight, up_bias, down_weight_WF, down_bias_W, activation, gated):
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    a_TF, gate_TF = F.linear(x_TW, up_weight, up_bias).chunk(2, dim=-1)
    h_TF = LigerGELUMulFunction.apply(a_TF.contiguous(), gate_TF.contiguous())
    return F.linear(h_TF, down_weight_WF, down_bias_W)


def _only_gated(shape: OpShape, dtype: torch.dtype, device: str, passes: str) -> str | None:
    return None if "gated" in shape.name else "has a gated form only"


def _liger_cross_entropy(x_NW, weight_VW, bias_V, labels_N) -> Tensor:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    return LigerFusedLinearCrossEntropyLoss()(weight_VW, x_NW, labels_N, bias_V)


def _quack_arguments(arguments: dict) -> dict:
    """Its weights are fp32."""
    fp32 = {name: arguments[name] for name in ("weight_W", "bias_W")}
    return arguments | {name: x if x is None else x.float() for name, x in fp32.items()}


def _quack_layer_norm(x_TW, residual_TW, weight_W, bias_W, eps) -> tuple[Tensor, Tensor]:
    from quack.rmsnorm import layernorm_fwd

    s_TW = x_TW + residual_TW
    return layernorm_fwd(s_TW, weight_W, bias_W, eps), s_TW


def _forward_only(shape: OpShape, dtype: torch.dtype, device: str, passes: str) -> str | None:
    return None if passes == "forward" else "its LayerNorm has no backward"


OTHERS = (
    Subject("add_norm", "peer F.layer_norm", _layer_norm),
    Subject("linear_cross_entropy", "peer F.cross_entropy", _cross_entropy),
    _compile_peer("add_norm", _layer_norm),
    _compile_peer("mlp", _mlp),
    _compile_peer("linear_cross_entropy", _cross_entropy),
    Subject("add_norm", "peer liger", _liger_layer_norm, absent=_no_liger),
    Subject("mlp", "peer liger", _liger_geglu, why_not=_only_gated, absent=_no_liger),
    Subject("linear_cross_entropy", "peer liger", _liger_cross_entropy, absent=_no_liger),
    Subject(
        "add_norm",
        "peer quack",
        _quack_layer_norm,
        _quack_arguments,
        why_not=_forward_only,
        absent=_no_quack,
    ),
)

PEERS = (*op_attention_peers.PEERS, *OTHERS)
