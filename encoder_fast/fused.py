"""The layers of an encoder as one call, where the backend has one and nobody has changed them."""

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from encoder_fast.batch import Batch
from encoder_fast.config import EncoderConfig, LayerPlan
from encoder_fast.embeddings import Linear, Norm
from encoder_fast.kernels._native_encoder import LayerParameters, Parameters, Stack
from encoder_fast.kernels.dispatch import Ops
from encoder_fast.layers import Attention, Mlp, PostNormLayer, PreNormLayer, Shared

KINDS = frozenset((Attention, Linear, Mlp, Norm, PostNormLayer, PreNormLayer, nn.Linear))
"""Modules whose forward the engine knows. An adapter or a parametrisation has another type."""


class _ChangedError(Exception):
    """A module is not what the engine would compute."""


def _known(module: nn.Module) -> nn.Module:
    """A part of the model, if it is of our own kind, in eval mode, and nobody hooked into it or
    replaced its forward.
    """
    hooked = module._forward_hooks or module._forward_pre_hooks
    if type(module) not in KINDS or module.training or hooked or "forward" in vars(module):
        raise _ChangedError
    return module


def _child(owner: nn.Module, name: str) -> nn.Module:
    """Read from the dictionary: `getattr` of a module takes ten times as long."""
    return _known(owner._modules[name])


def _pair(module: nn.Module) -> Parameters:
    return module._parameters["weight"], module._parameters.get("bias")


def _layer(layer: nn.Module, next_norm: nn.Module | None, plan: LayerPlan, shared: Shared):
    """What the engine reads of one layer. Pre-norm layers end with the norm of the next."""
    attention, mlp = _child(layer, "attention"), _child(layer, "mlp")
    first, second = ("attention_norm", "mlp_norm") if next_norm is None else ("mlp_norm", None)
    return LayerParameters(
        qkv=_pair(_child(attention, "qkv")),
        out=_pair(_child(attention, "out")),
        up=_pair(_child(mlp, "up")),
        down=_pair(_child(mlp, "down")),
        attention_norm=_pair(_child(layer, first)),
        mlp_norm=_pair(next_norm if second is None else _child(layer, second)),
        rope=None if plan.rope_theta is None else shared.rope_tables[plan.rope_theta],
        half=plan.half_window,
    )


def _parameters(
    config: EncoderConfig, layers: nn.ModuleList, final_norm: Norm | None, shared: Shared
) -> list[LayerParameters]:
    used = [_child(layers, str(plan.weights)) for plan in config.plan]
    norms = [None] * len(used)
    if config.pre_norm:
        norms = [_child(layer, "attention_norm") for layer in used[1:]]
        norms.append(_known(final_norm))
    parts = zip(used, norms, config.plan, strict=True)
    return [_layer(layer, norm, plan, shared) for layer, norm, plan in parts]


def run_fused(
    ops: Ops,
    config: EncoderConfig,
    layers: nn.ModuleList,
    final_norm: Norm | None,
    x_TW: Tensor,
    batch: Batch,
    shared: Shared,
) -> Tensor | None:
    """The last hidden state `(T, W)`, or None where the layers have to be run one by one.

    Raises:
        RuntimeError: the model was loaded for int8, which only this way serves.
    """
    result = None
    if ops.layers is not None and not layers.training:
        result = _run(ops, config, layers, final_norm, x_TW, batch, shared)
    if result is None and ops.request.precision is not None:
        raise RuntimeError(
            f"precision: {ops.request.precision!r} serves plain inference only: call model.eval(), "
            "without gradients, autocast, torch.compile, hooks or adapters"
        )
    return result


def _run(ops, config, layers, final_norm, x_TW, batch, shared) -> Tensor | None:
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return None
    try:
        parameters = _parameters(config, layers, final_norm, shared)
    except _ChangedError:
        return None
    stack = Stack(
        config.num_heads, config.pre_norm, config.gated_mlp, config.activation, config.norm_eps
    )
    return ops.layers(x_TW, parameters, stack, batch, batch.cu_seqlens)
