"""The two kinds of encoder layer.

    post-norm (BERT):        x = LN(x + drop(attention(x)));    x = LN(x + drop(mlp(x)))
    pre-norm (ModernBERT):   s = s + drop(attention(LN(s)));    s = s + mlp(LN(s))

In both, each residual add is followed by a norm, so one op (`add_norm`) does the pair. A pre-norm
layer therefore ends with
the *next* block's norm: it takes and returns the normalised `h` beside the plain sum `s`.
"""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from encoder_fast.config import EncoderConfig, LayerPlan
from encoder_fast.embeddings import Linear, Norm
from encoder_fast.kernels.dispatch import Ops


@dataclass(frozen=True)
class Shared:
    """What all layers of one forward share."""

    attention_plan: Any
    rope_tables: dict[float, tuple[Tensor, Tensor]]
    """By base: cos and sin, `(T, D/2)` each."""


class Attention(nn.Module):
    """Projections around the attention op: `(T, W)` -> `(T, W)`, without the residual."""

    def __init__(self, config: EncoderConfig, ops: Ops):
        super().__init__()
        self.ops, self.heads = ops, config.num_heads
        self.dropout = config.attention_dropout
        W = config.hidden_size
        self.qkv = Linear(ops, W, 3 * W, bias=config.attention_bias)
        self.out = Linear(ops, W, W, bias=config.attention_bias)

    def forward(self, x_TW: Tensor, layer: LayerPlan, shared: Shared) -> Tensor:
        qkv_T3HD = self.qkv(x_TW).unflatten(-1, (3, self.heads, -1))
        o_THD, _ = self.ops.attention(
            qkv_T3HD,
            shared.attention_plan,
            layer.half_window,
            self.dropout if self.training else 0.0,
            rotation=shared.rope_tables.get(layer.rope_theta),
        )
        return self.out(o_THD.flatten(1))


class Mlp(nn.Module):
    """Parameters of the feed-forward op: `(T, W)` -> `(T, W)`, without the residual. With
    `recompute`, training keeps only its input.
    """

    def __init__(self, config: EncoderConfig, ops: Ops):
        super().__init__()
        self.ops, self.activation, self.gated = ops, config.activation, config.gated_mlp
        self.dropout = config.mlp_inner_dropout
        self.recompute = False
        W, F_ = config.hidden_size, config.intermediate_size
        self.up = nn.Linear(W, 2 * F_ if self.gated else F_, bias=config.mlp_bias)
        self.down = nn.Linear(F_, W, bias=config.mlp_bias)

    def forward(self, x_TW: Tensor) -> Tensor:
        run = self.ops.mlp_recomputed if self.recompute else self.ops.mlp
        return run(
            x_TW,
            self.up.weight,
            self.up.bias,
            self.down.weight,
            self.down.bias,
            self.activation,
            self.gated,
            self.dropout if self.training else 0.0,
        )


class PostNormLayer(nn.Module):
    """BERT's layer (arXiv 1810.04805), for BERT, RoBERTa, ALBERT and ELECTRA."""

    def __init__(self, config: EncoderConfig, ops: Ops):
        super().__init__()
        self.ops = ops
        self.output_dropout, self.mlp_dropout = config.hidden_dropout, config.mlp_output_dropout
        self.attention = Attention(config, ops)
        self.attention_norm = Norm(ops, config.hidden_size, config.norm_eps, config.norm_bias)
        self.mlp = Mlp(config, ops)
        self.mlp_norm = Norm(ops, config.hidden_size, config.norm_eps, config.norm_bias)

    def forward(self, x_TW: Tensor, layer: LayerPlan, shared: Shared) -> Tensor:
        """`(T, W)` -> `(T, W)`."""
        a_TW = F.dropout(self.attention(x_TW, layer, shared), self.output_dropout, self.training)
        x_TW, _ = self.ops.add_norm(a_TW, x_TW, *self.attention_norm.parts())
        m_TW = F.dropout(self.mlp(x_TW), self.mlp_dropout, self.training)
        x_TW, _ = self.ops.add_norm(m_TW, x_TW, *self.mlp_norm.parts())
        return x_TW


class PreNormLayer(nn.Module):
    """ModernBERT's layer (arXiv 2412.13663). `attention_norm` is applied by the layer before; the
    first layer has none.
    """

    def __init__(self, config: EncoderConfig, ops: Ops, first: bool):
        super().__init__()
        self.ops, self.output_dropout = ops, config.hidden_dropout
        norm = ops, config.hidden_size, config.norm_eps, config.norm_bias
        self.attention_norm = None if first else Norm(*norm)
        self.attention = Attention(config, ops)
        self.mlp_norm = Norm(*norm)
        self.mlp = Mlp(config, ops)

    def forward(
        self, h_TW: Tensor, s_TW: Tensor, layer: LayerPlan, shared: Shared, next_norm: Norm
    ) -> tuple[Tensor, Tensor]:
        """`(h, s)` -> `(next_norm(s'), s')`, all `(T, W)`."""
        a_TW = F.dropout(self.attention(h_TW, layer, shared), self.output_dropout, self.training)
        h_TW, s_TW = self.ops.add_norm(a_TW, s_TW, *self.mlp_norm.parts())
        return self.ops.add_norm(self.mlp(h_TW), s_TW, *next_norm.parts())
