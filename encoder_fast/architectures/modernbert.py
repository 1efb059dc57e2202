"""ModernBERT (Warner et al. 2024, arXiv 2412.13663) and its relatives with other thetas, windows,
activations or biases.

Three things differ from BERT: pre-norm, with no attention norm in layer 0; rotary positions whose
base and whose attention (global or within a window) alternate by layer; GeGLU. `local_attention` is
the total width: 128 means a distance of at most 64, 129 keys. Hub configs also carry
`position_embedding_type` and `layer_norm_eps`, which its code never reads.
"""

from encoder_fast.architectures._record import Architecture, Head, Rename
from encoder_fast.config import EncoderConfig, LayerPlan
from encoder_fast.config_json import Settings, is_count, is_number, require
from encoder_fast.errors import ConfigError
from encoder_fast.kernels.activations import ACTIVATIONS

FULL, SLIDING = "full_attention", "sliding_attention"


def _layer_types(s: Settings) -> list[str]:
    """Either spelling: `layer_types`, or every n-th layer global."""
    layers, types = s.count("num_hidden_layers"), s.get("layer_types")
    every = s.get("global_attn_every_n_layers")
    if types is None and every is None:
        raise ConfigError(
            "layer_types: missing, and so is global_attn_every_n_layers; one of them is needed"
        )
    if types is None:
        every = s.count("global_attn_every_n_layers")
        return [SLIDING if i % every else FULL for i in range(layers)]
    known = isinstance(types, list) and all(kind in (FULL, SLIDING) for kind in types)
    wanted = f"a list of {layers} of {FULL!r} and {SLIDING!r}"
    require("layer_types", types, known and len(types) == layers, wanted)
    return types


def _old_thetas(s: Settings) -> dict[str, float | None]:
    """Rotary base by layer type from `global_rope_theta` and `local_rope_theta`."""
    thetas = {}
    for kind, key in ((FULL, "global_rope_theta"), (SLIDING, "local_rope_theta")):
        thetas[kind] = None if s.get(key) is None else s.positive(key, 1.0)
    return thetas


def _thetas(s: Settings) -> dict[str, float]:
    """Rotary base by layer type, from either spelling. Only plain rotary embedding is known."""
    s.only("rope_scaling", None, {})
    old, new = _old_thetas(s), s.get("rope_parameters")
    if new is None:
        if old[FULL] is None:
            raise ConfigError(
                "rope_parameters: missing, and so is global_rope_theta; one of them is needed"
            )
        return {kind: old[FULL] if theta is None else theta for kind, theta in old.items()}
    known = isinstance(new, dict) and set(new) <= {FULL, SLIDING}
    require("rope_parameters", new, known, f"an object of only {FULL!r} and {SLIDING!r}")
    thetas = {}
    for kind in (FULL, SLIDING):
        name, given = f"rope_parameters[{kind}]", {} if new.get(kind) is None else new[kind]
        known = isinstance(given, dict) and set(given) <= {"rope_theta", "rope_type"}
        require(name, given, known, "an object of only rope_theta and rope_type")
        rope_type = given.get("rope_type", "default")
        require(f"{name} rope_type", rope_type, rope_type == "default", "'default'")
        theta = given.get("rope_theta", old[kind])
        if theta is not None:
            ok = is_number(theta) and theta > 0
            require(f"{name} rope_theta", theta, ok, "a positive number")
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
        require("local_attention", width, is_count(width, 0), "a non-negative integer")
    halves = {FULL: None, SLIDING: width // 2 if SLIDING in types else None}
    fields = s.common(pad=50283)
    return EncoderConfig(
        architecture="modernbert",
        embedding_size=fields["hidden_size"],
        plan=tuple(LayerPlan(i, halves[t], thetas[t]) for i, t in enumerate(types)),
        pre_norm=True,
        gated_mlp=True,
        activation=s.choice("hidden_activation", "gelu", ACTIVATIONS),
        norm_eps=s.positive("norm_eps", 1e-5),
        norm_bias=s.flag("norm_bias", False),
        attention_bias=s.flag("attention_bias", False),
        mlp_bias=s.flag("mlp_bias", False),
        position_rows=None,
        type_rows=0,
        embedding_dropout=s.probability("embedding_dropout", 0.0),
        hidden_dropout=s.probability("attention_dropout", 0.0),
        attention_dropout=s.probability("attention_dropout", 0.0),
        mlp_inner_dropout=s.probability("mlp_dropout", 0.0),
        classifier_dropout=s.probability("classifier_dropout", 0.0),
        classifier_pooling=s.choice("classifier_pooling", "cls", ("cls", "mean")),
        classifier_activation=s.choice("classifier_activation", "gelu", ACTIVATIONS),
        classifier_bias=s.flag("classifier_bias", False),
        decoder_bias=s.flag("decoder_bias", True),
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
