"""What BERT, RoBERTa, ALBERT and ELECTRA configs and files have in common."""

from typing import Any

from encoder_fast.architectures._record import Rename
from encoder_fast.config_json import Settings
from encoder_fast.kernels.activations import ACTIVATIONS

LAYER = (
    Rename("layers.{w}.attention.out", "encoder.layer.{w}.attention.output.dense"),
    Rename(
        "layers.{w}.attention.qkv",
        *(f"encoder.layer.{{w}}.attention.self.{part}" for part in ("query", "key", "value")),
    ),
    Rename("layers.{w}.attention_norm", "encoder.layer.{w}.attention.output.LayerNorm"),
    Rename("layers.{w}.mlp.up", "encoder.layer.{w}.intermediate.dense"),
    Rename("layers.{w}.mlp.down", "encoder.layer.{w}.output.dense"),
    Rename("layers.{w}.mlp_norm", "encoder.layer.{w}.output.LayerNorm"),
)

EMBEDDINGS = (
    Rename("embeddings.token", "embeddings.word_embeddings"),
    Rename("embeddings.position", "embeddings.position_embeddings"),
    Rename("embeddings.token_type", "embeddings.token_type_embeddings"),
    Rename("embeddings.norm", "embeddings.LayerNorm"),
)

STRAY = (r"(.*\.)?embeddings\.position_ids", r"(.*\.)?embeddings\.token_type_ids")
"""Buffers of old files that are not weights."""


def post_norm(
    s: Settings, pad: int = 0, dropout: float = 0.1, activation: str = "gelu"
) -> dict[str, Any]:
    """Fields of a post-norm encoder with learned positions and token types.

    Args:
        pad, dropout, activation: the family's, where the file has none.
    """
    s.only("position_embedding_type", "absolute")
    hidden_dropout = s.probability("hidden_dropout_prob", dropout)
    return {
        **s.common(pad),
        "pre_norm": False,
        "gated_mlp": False,
        "activation": s.choice("hidden_act", activation, ACTIVATIONS),
        "norm_eps": s.positive("layer_norm_eps", 1e-12),
        "position_rows": s.count("max_position_embeddings"),
        "type_rows": s.count("type_vocab_size", 2),
        "embedding_dropout": hidden_dropout,
        "hidden_dropout": hidden_dropout,
        "mlp_output_dropout": hidden_dropout,
        "attention_dropout": s.probability("attention_probs_dropout_prob", dropout),
    }
