"""ModernBERT (Warner et al. 2024, arXiv 2412.13663) and its relatives with other thetas, windows,
activations or biases.

Three things differ from BERT: pre-norm, with no attention norm in layer 0; rotary positions whose
base and whose attention (global or within a window) alternate by layer; GeGLU. `local_attention` is
the total width: 128 means a distance of at most 64, 129 keys. Hub configs also carry
`position_embedding_type` and `layer_norm_eps`, which its code never reads.
"""

from encoder_fast.architectures._record import Architecture, Head, Rename
from encoder_fast.config import EncoderConfig, LayerPlan, Settings, require
from encoder_fast.errors import ConfigError

FULL, SLIDING = "full_attention", "sliding_attention"


def _layer_types(s: Settings) -> list[str]:
    """Either spelling: `layer_types`, or every n-th layer global."""
    layers, types, every = (
        s.count("num_hidden_layers"),
        s.get("layer_types"),
        s.get("global_attn_every_n_layers"),
    )
    if types is None and every is None:
        raise ConfigError(
            "layer_types: missing, and so is global_attn_every_n_layers; one of them is needed"
        )
    if types is None:
        require(
            "global_attn_every_n_layers",
            every,
            isinstance(every, int) and every > 0,
            "a positive integer",
        )
        types = [SLIDING if i % every else FULL for i in range(layers)]
    require(
        "layer_types",
        types,
        len(types) == layers and set(types) <= {FULL, SLIDING},
        f"{layers} of {FULL!r} and {SLIDING!r}",
    )
    return types


def _thetas(s: Settings) -> dict[str, float]:
    """Rotary base by layer type, from either spelling. Only plain rotary embedding is known."""
    s.only("rope_scaling", None, {})
    new, old_full = s.get("rope_parameters"), s.get("global_rope_theta")
    old_sliding = s.get("local_rope_theta")
    if new is None:
        if old_full is None:
            raise ConfigError(
                "rope_parameters: missing, and so is global_rope_theta; one of them is needed"
            )
        return {
            FULL: float(old_full),
            SLIDING: float(old_full if old_sliding is None else old_sliding),
        }
    fallback = {FULL: old_full, SLIDING: old_sliding}
    thetas = {}
    for kind in (FULL, SLIDING):
        given = new.get(kind) or {}
        require(
            f"rope_parameters[{kind}]",
            given,
            set(given) <= {"rope_theta", "rope_type"},
            "only rope_theta and rope_type",
        )
        require(
            "rope_type",
            given.get("rope_type", "default"),
            given.get("rope_type", "default") == "default",
            "'default'",
        )
        theta = given.get("rope_theta", fallback[kind])
        if theta is not None:
            require("rope_theta", theta, theta > 0, "a positive number")
            thetas[kind] = float(theta)
    return thetas


def config(s: Settings) -> EncoderConfig:
    """config.json of a ModernBERT checkpoint, old or new spelling -> `EncoderConfig`."""
    for key in ("position_embedding_type", "layer_norm_eps", "max_position_embeddings"):
        s.get(key)
    types, thetas = _layer_types(s), _thetas(s)
    missing = set(types) - set(thetas)
    if missing:
        raise ConfigError(f"rope_parameters: got no rope_theta for {sorted(missing)}")
    width = s.get("local_attention")
    if SLIDING in types:
        require(
            "local_attention",
            width,
            isinstance(width, int) and width >= 0,
            "a non-negative integer",
        )
    halves = {FULL: None, SLIDING: None if width is None else width // 2}
    fields = s.common()
    return EncoderConfig(
        architecture="modernbert",
        embedding_size=fields["hidden_size"],
        plan=tuple(LayerPlan(i, halves[t], thetas[t]) for i, t in enumerate(types)),
        pre_norm=True,
        gated_mlp=True,
        activation=s.get("hidden_activation", "gelu"),
        norm_eps=s.get("norm_eps", 1e-5),
        norm_bias=s.get("norm_bias", False),
        attention_bias=s.get("attention_bias", False),
        mlp_bias=s.get("mlp_bias", False),
        position_rows=None,
        type_rows=0,
        embedding_dropout=s.get("embedding_dropout", 0.0),
        hidden_dropout=s.get("attention_dropout", 0.0),
        attention_dropout=s.get("attention_dropout", 0.0),
        mlp_inner_dropout=s.get("mlp_dropout", 0.0),
        classifier_dropout=s.get("classifier_dropout", 0.0),
        classifier_pooling=s.get("classifier_pooling", "cls"),
        classifier_activation=s.get("classifier_activation", "gelu"),
        classifier_bias=s.get("classifier_bias", False),
        decoder_bias=s.get("decoder_bias", True),
        **fields,
    )


RENAMES = (
    Rename("embeddings.token", "embeddings.tok_embeddings"),
    Rename("embeddings.norm", "embeddings.norm"),
    Rename("layers.{w}.attention.qkv", "layers.{w}.attn.Wqkv"),
    Rename("layers.{w}.attention.out", "layers.{w}.attn.Wo"),
    Rename("layers.{w}.attention_norm", "layers.{w}.attn_norm"),
    Rename("layers.{w}.mlp.up", "layers.{w}.mlp.Wi"),
    Rename("layers.{w}.mlp.down", "layers.{w}.mlp.Wo"),
    Rename("layers.{w}.mlp_norm", "layers.{w}.mlp_norm"),
    Rename("final_norm", "final_norm"),
)

TRANSFORM = (
    Rename("head.transform.dense", "head.dense"),
    Rename("head.transform.norm", "head.norm"),
)


def _transform(c: EncoderConfig) -> dict:
    return {
        "transform": c.classifier_activation,
        "transform_norm": True,
        "transform_bias": c.classifier_bias,
    }


def _tagger(kind: str, hf_class: str) -> Head:
    return Head(kind, hf_class, (*TRANSFORM, Rename("head.out", "classifier")), _transform)


ARCH = Architecture(
    name="modernbert",
    model_types={"modernbert": "ModernBert"},
    prefix="model.",
    config=config,
    renames=RENAMES,
    stray=(r".*rotary_emb\..*inv_freq",),
    pooler=False,
    heads={
        "masked_lm": Head(
            "MaskedLM",
            "ModernBertForMaskedLM",
            (*TRANSFORM, Rename("head.bias", "decoder.bias"), Rename("head.decoder", "decoder")),
            lambda c: {
                "activation": c.classifier_activation,
                "dense_bias": c.classifier_bias,
                "decoder_bias": c.decoder_bias,
            },
        ),
        "sequence_classification": _tagger(
            "SequenceClassification", "ModernBertForSequenceClassification"
        ),
        "token_classification": _tagger("TokenClassification", "ModernBertForTokenClassification"),
        "question_answering": _tagger("QuestionAnswering", "ModernBertForQuestionAnswering"),
    },
)
