"""ELECTRA (Clark et al. 2020, arXiv 2003.10555), discriminator and generator.

Three things differ from BERT: no pooler; embeddings are projected only if their width differs from
the model's; heads of its own (replaced-token detection; a generator whose order is dense, erf GELU,
norm; a GELU classifier).
"""

from encoder_fast.architectures._bert_like import EMBEDDINGS, LAYER, STRAY, post_norm
from encoder_fast.architectures._record import Architecture, Head, Rename
from encoder_fast.config import EncoderConfig, LayerPlan
from encoder_fast.config_json import Settings


def config(s: Settings) -> EncoderConfig:
    """config.json of an ELECTRA checkpoint -> `EncoderConfig`."""
    fields = post_norm(s)
    for key in (
        "summary_type",
        "summary_use_proj",
        "summary_activation",
        "summary_last_dropout",
        "summary_first_dropout",
        "summary_proj_to_labels",
    ):
        s.get(key)  # the multiple-choice head's, which no head here uses
    embedding_size = s.count("embedding_size", 128)
    return EncoderConfig(
        architecture="electra",
        embedding_size=embedding_size,
        project_embeddings=embedding_size != fields["hidden_size"],
        plan=tuple(LayerPlan(i) for i in range(s.count("num_hidden_layers"))),
        classifier_dropout=s.probability("classifier_dropout", fields["hidden_dropout"]),
        **fields,
    )


ARCH = Architecture(
    name="electra",
    model_types={"electra": "Electra"},
    prefix="electra.",
    config=config,
    renames=(*EMBEDDINGS, *LAYER, Rename("embeddings.project", "embeddings_project")),
    stray=STRAY,
    pooler=False,
    heads={
        "masked_lm": Head(
            "MaskedLM",
            "ElectraForMaskedLM",
            (
                Rename("head.transform.dense", "generator_predictions.dense"),
                Rename("head.transform.norm", "generator_predictions.LayerNorm"),
                Rename("head.bias", "generator_lm_head.bias"),
                Rename("head.decoder", "generator_lm_head"),
            ),
            lambda c: {"activation": "gelu"},
        ),
        "sequence_classification": Head(
            "SequenceClassification",
            "ElectraForSequenceClassification",
            (
                Rename("head.transform.dense", "classifier.dense"),
                Rename("head.out", "classifier.out_proj"),
            ),
            lambda c: {"transform": "gelu", "input_dropout": True},
        ),
        "token_classification": Head(
            "TokenClassification",
            "ElectraForTokenClassification",
            (Rename("head.out", "classifier"),),
        ),
        "question_answering": Head(
            "QuestionAnswering", "ElectraForQuestionAnswering", (Rename("head.out", "qa_outputs"),)
        ),
        "pretraining": Head(
            "ReplacedTokenDetection",
            "ElectraForPreTraining",
            (
                Rename("head.transform.dense", "discriminator_predictions.dense"),
                Rename("head.out", "discriminator_predictions.dense_prediction"),
            ),
        ),
    },
)
