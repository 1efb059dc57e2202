"""Encoder: embeddings, then the layers of the plan."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from encoder_fast.batch import Batch
from encoder_fast.config import EncoderConfig
from encoder_fast.embeddings import Embeddings, Linear, Norm, token_positions
from encoder_fast.fused import run_fused
from encoder_fast.kernels.dispatch import Ops
from encoder_fast.kernels.rope import rope_tables
from encoder_fast.layers import Mlp, PostNormLayer, PreNormLayer, Shared

RECOMPUTE = (None, "mlp", "layer")
"""What a backward computes again, for less memory: nothing, feed-forward blocks, whole layers."""


class Encoder(nn.Module):
    """Packed tokens in, packed vectors out.

    Args:
        config: what to compute.
        ops: what computes it.
        pooler: hold BERT's pooler, a tanh layer over the first token.
    """

    def __init__(self, config: EncoderConfig, ops: Ops, pooler: bool):
        super().__init__()
        self.config, self.ops = config, ops
        self.embeddings = Embeddings(config, ops)
        count = range(config.num_layer_weights)
        if config.pre_norm:
            self.layers = nn.ModuleList(PreNormLayer(config, ops, first=w == 0) for w in count)
            self.final_norm = Norm(ops, config.hidden_size, config.norm_eps, config.norm_bias)
        else:
            self.layers = nn.ModuleList(PostNormLayer(config, ops) for _ in count)
        W = config.hidden_size
        self.pooler = Linear(ops, W, W) if pooler else None
        self._recompute = None

    @property
    def recompute(self) -> str | None:
        """One of `RECOMPUTE`."""
        return self._recompute

    @recompute.setter
    def recompute(self, value: str | None) -> None:
        if value not in RECOMPUTE:
            raise ValueError(f"recompute: got {value!r}, allowed are {RECOMPUTE}")
        self._recompute = value
        for module in self.modules():
            if isinstance(module, Mlp):
                module.recompute = value == "mlp"

    def forward(
        self, batch: Batch, keep_states: bool = False
    ) -> tuple[Tensor, list[Tensor] | None]:
        """Last hidden state `(T, W)`, and with `keep_states` the input of the first layer and each
        layer's output.
        """
        if not torch.compiler.is_compiling():
            self.embeddings.check(batch)
        positions_T = token_positions(batch, self.config)
        x_TW = self.embeddings(batch, positions_T)
        c = self.config
        thetas = {layer.rope_theta for layer in c.plan} - {None}
        shared = Shared(
            self.ops.prepare_attention(batch, c.half_windows, x_TW.dtype),
            {theta: rope_tables(positions_T, theta, c.head_width) for theta in thetas},
        )
        if keep_states and self.ops.request.precision is not None:
            raise ValueError("output_hidden_states: got True, but int8 keeps no layer's output")
        if not keep_states:
            final_norm = self.final_norm if c.pre_norm else None
            fused = run_fused(self.ops, c, self.layers, final_norm, x_TW, batch, shared)
            if fused is not None:
                return fused, None
        states = [x_TW] if keep_states else None
        run = self._run_pre_norm if c.pre_norm else self._run_post_norm
        return run(x_TW, shared, states), states

    def _run_layer(self, layer: nn.Module, *arguments):
        if self._recompute == "layer":
            return checkpoint(layer, *arguments, use_reentrant=False)
        return layer(*arguments)

    def _run_post_norm(self, x_TW: Tensor, shared: Shared, states: list[Tensor] | None) -> Tensor:
        for layer in self.config.plan:
            x_TW = self._run_layer(self.layers[layer.weights], x_TW, layer, shared)
            if states is not None:
                states.append(x_TW)
        return x_TW

    def _run_pre_norm(self, x_TW: Tensor, shared: Shared, states: list[Tensor] | None) -> Tensor:
        h_TW = s_TW = x_TW
        norms = [self.layers[layer.weights].attention_norm for layer in self.config.plan[1:]]
        for layer, next_norm in zip(self.config.plan, [*norms, self.final_norm], strict=True):
            run = self.layers[layer.weights]
            h_TW, s_TW = self._run_layer(run, h_TW, s_TW, layer, shared, next_norm)
            if states is not None:
                states.append(h_TW if next_norm is self.final_norm else s_TW)
        return h_TW

    def pool_first(self, x_TW: Tensor, batch: Batch) -> Tensor:
        """The pooler's `(B, W)`; an empty sequence is pooled as a zero vector."""
        first_BW = self.ops.pool(x_TW, batch.cu_seqlens, "cls").to(x_TW.dtype)
        return torch.tanh(self.pooler(first_BW))
