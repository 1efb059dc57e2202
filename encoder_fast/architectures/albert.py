"""ALBERT (Lan et al. 2019, arXiv 1909.11942).

Three things differ from BERT: embeddings of width 128 are mapped to the model width; layers share
weights (layer i uses group floor(i / (layers / groups)), and each group runs `inner_group_num`
layers in turn); there is no dropout after the feed-forward. v1 checkpoints say `gelu`, v2
checkpoints `gelu_new`.
"""

from encoder_fast.architectures._bert_like import EMBEDDINGS, STRAY, post_norm
from encoder_fast.architectures._record import Architecture, Head, Rename
from encoder_fast.config import EncoderConfig, LayerPlan
from encoder_fast.config_json import Settings, require


def config(s: Settings) -> EncoderConfig:
    """config.json of an ALBERT checkpoint -> `EncoderConfig`."""
    layers, groups = s.count("num_hidden_layers"), s.count("num_hidden_groups", 1)
    inner = s.count("inner_group_num", 1)
    require(
        "num_hidden_groups",
        groups,
        layers % groups == 0,
        f"a divisor of {layers} layers",
    )
    for key in ("net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor"):
        s.only(key, 0, 1)
    plan = [
        LayerPlan(i * groups // layers * inner + j) for i in range(layers) for j in range(inner)
    ]
    fields = post_norm(s, dropout=0.0, activation="gelu_new") | {"mlp_output_dropout": 0.0}
    return EncoderConfig(
        architecture="albert",
        embedding_size=s.count("embedding_size", 128),
        project_embeddings=True,
        plan=tuple(plan),
        classifier_dropout=s.probability("classifier_dropout_prob", 0.1),
        **fields,
    )


def layer_fields(c: EncoderConfig, w: int) -> dict[str, int]:
    """Group and place in the group of the weights with index `w`."""
    inner = c.hf.get("inner_group_num") or 1
    return {"group": w // inner, "inner": w % inner}


_LAYER = "encoder.albert_layer_groups.{group}.albert_layers.{inner}."

RENAMES = (
    *EMBEDDINGS,
    Rename("embeddings.project", "encoder.embedding_hidden_mapping_in"),
    Rename(
        "layers.{w}.attention.qkv",
        *(f"{_LAYER}attention.{part}" for part in ("query", "key", "value")),
    ),
    Rename("layers.{w}.attention.out", f"{_LAYER}attention.dense"),
    Rename("layers.{w}.attention_norm", f"{_LAYER}attention.LayerNorm"),
    Rename("layers.{w}.mlp.up", f"{_LAYER}ffn"),
    Rename("layers.{w}.mlp.down", f"{_LAYER}ffn_output"),
    Rename("layers.{w}.mlp_norm", f"{_LAYER}full_layer_layer_norm"),
    Rename("pooler", "pooler"),
)

MASKED_LM = (
    Rename("head.transform.dense", "predictions.dense"),
    Rename("head.transform.norm", "predictions.LayerNorm"),
    Rename("head.decoder", "predictions.decoder"),
    Rename("head.bias", "predictions.bias", also=("predictions.decoder.bias",)),
)


def _masked_lm(c: EncoderConfig) -> dict:
    return {"activation": c.activation}


CLASSIFIER = (Rename("head.out", "classifier"),)

ARCH = Architecture(
    name="albert",
    model_types={"albert": "Albert"},
    prefix="albert.",
    config=config,
    renames=RENAMES,
    stray=STRAY,
    pooler=True,
    layer_fields=layer_fields,
    heads={
        "masked_lm": Head("MaskedLM", "AlbertForMaskedLM", MASKED_LM, _masked_lm),
        "sequence_classification": Head(
            "SequenceClassification", "AlbertForSequenceClassification", CLASSIFIER, pooler=True
        ),
        "token_classification": Head(
            "TokenClassification", "AlbertForTokenClassification", CLASSIFIER
        ),
        "question_answering": Head(
            "QuestionAnswering", "AlbertForQuestionAnswering", (Rename("head.out", "qa_outputs"),)
        ),
        "pretraining": Head(
            "PairPretraining",
            "AlbertForPreTraining",
            (*MASKED_LM, Rename("head.pair", "sop_classifier.classifier")),
            lambda c: {**_masked_lm(c), "dropout": c.classifier_dropout},
            pooler=True,
        ),
    },
)
