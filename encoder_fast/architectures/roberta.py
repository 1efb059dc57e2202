"""RoBERTa (Liu et al. 2019, arXiv 1907.11692), XLM-R and CamemBERT.

Three things differ from BERT: positions start at pad id + 1 and are counted over ids that are not
the pad id (a real token equal to it shifts them); the masked-LM head is always erf GELU; the
classifier has a tanh layer of its own.
"""

from encoder_fast.architectures._bert_like import EMBEDDINGS, LAYER, STRAY, post_norm
from encoder_fast.architectures._record import Architecture, Head, Rename
from encoder_fast.config import EncoderConfig, LayerPlan
from encoder_fast.config_json import Settings, require


def config(s: Settings) -> EncoderConfig:
    """config.json of a RoBERTa checkpoint -> `EncoderConfig`."""
    fields = post_norm(s, pad=1)
    pad = fields["pad_token_id"]
    require("pad_token_id", pad, pad is not None, "a number (positions start after it)")
    return EncoderConfig(
        architecture="roberta",
        embedding_size=fields["hidden_size"],
        plan=tuple(LayerPlan(i) for i in range(s.count("num_hidden_layers"))),
        classifier_dropout=s.probability("classifier_dropout", fields["hidden_dropout"]),
        position_offset=pad,
        **fields,
    )


ARCH = Architecture(
    name="roberta",
    model_types={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
    prefix="roberta.",
    config=config,
    renames=(*EMBEDDINGS, *LAYER, Rename("pooler", "pooler.dense")),
    stray=STRAY,
    pooler=True,
    heads={
        "masked_lm": Head(
            "MaskedLM",
            "RobertaForMaskedLM",
            (
                Rename("head.transform.dense", "lm_head.dense"),
                Rename("head.transform.norm", "lm_head.layer_norm"),
                Rename("head.decoder", "lm_head.decoder"),
                Rename("head.bias", "lm_head.bias", also=("lm_head.decoder.bias",)),
            ),
            lambda c: {"activation": "gelu"},
        ),
        "sequence_classification": Head(
            "SequenceClassification",
            "RobertaForSequenceClassification",
            (
                Rename("head.transform.dense", "classifier.dense"),
                Rename("head.out", "classifier.out_proj"),
            ),
            lambda c: {"transform": "tanh", "input_dropout": True},
        ),
        "token_classification": Head(
            "TokenClassification",
            "RobertaForTokenClassification",
            (Rename("head.out", "classifier"),),
        ),
        "question_answering": Head(
            "QuestionAnswering", "RobertaForQuestionAnswering", (Rename("head.out", "qa_outputs"),)
        ),
    },
)
