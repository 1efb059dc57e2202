"""What BERT, RoBERTa, ALBERT and ELECTRA configs and files have in common."""

from typing import Any

from encoder_fast.architectures._record import Rename
from encoder_fast.config import Settings

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


def post_norm(s: Settings) -> dict[str, Any]:
    """Fields of a post-norm encoder with learned positions and token types."""
    s.only("position_embedding_type", "absolute")
    hidden_dropout = s.get("hidden_dropout_prob", 0.1)
    return {
        **s.common(),
        "pre_norm": False,
        "gated_mlp": False,
        "activation": s.get("hidden_act", "gelu"),
        "norm_eps": s.get("layer_norm_eps", 1e-12),
        "position_rows": s.need("max_position_embeddings"),
        "type_rows": s.get("type_vocab_size", 2),
        "embedding_dropout": hidden_dropout,
        "hidden_dropout": hidden_dropout,
        "mlp_output_dropout": hidden_dropout,
        "attention_dropout": s.get("attention_probs_dropout_prob", 0.1),
    }
