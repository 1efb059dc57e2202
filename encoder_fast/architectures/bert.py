"""BERT (Devlin et al. 2018, arXiv 1810.04805): post-norm, learned positions, two token types, a
tanh pooler.

SpanBERT's encoder is a cased BERT and loads here.
"""

from encoder_fast.architectures._bert_like import EMBEDDINGS, LAYER, STRAY, post_norm
from encoder_fast.architectures._record import Architecture, Head, Rename
from encoder_fast.config import EncoderConfig, LayerPlan
from encoder_fast.config_json import Settings


def config(s: Settings) -> EncoderConfig:
    """config.json of a BERT checkpoint -> `EncoderConfig`."""
    fields = post_norm(s)
    return EncoderConfig(
        architecture="bert",
        embedding_size=fields["hidden_size"],
        plan=tuple(LayerPlan(i) for i in range(s.count("num_hidden_layers"))),
        classifier_dropout=s.probability("classifier_dropout", fields["hidden_dropout"]),
        **fields,
    )


MASKED_LM = (
    Rename("head.transform.dense", "cls.predictions.transform.dense"),
    Rename("head.transform.norm", "cls.predictions.transform.LayerNorm"),
    Rename("head.decoder", "cls.predictions.decoder"),
    Rename("head.bias", "cls.predictions.bias", also=("cls.predictions.decoder.bias",)),
)


def _masked_lm(c: EncoderConfig) -> dict:
    return {"activation": c.activation}


CLASSIFIER = (Rename("head.out", "classifier"),)

ARCH = Architecture(
    name="bert",
    model_types={"bert": "Bert"},
    prefix="bert.",
    config=config,
    renames=(*EMBEDDINGS, *LAYER, Rename("pooler", "pooler.dense")),
    stray=STRAY,
    pooler=True,
    heads={
        "masked_lm": Head("MaskedLM", "BertForMaskedLM", MASKED_LM, _masked_lm),
        "sequence_classification": Head(
            "SequenceClassification", "BertForSequenceClassification", CLASSIFIER, pooler=True
        ),
        "token_classification": Head(
            "TokenClassification", "BertForTokenClassification", CLASSIFIER
        ),
        "question_answering": Head(
            "QuestionAnswering", "BertForQuestionAnswering", (Rename("head.out", "qa_outputs"),)
        ),
        "pretraining": Head(
            "PairPretraining",
            "BertForPreTraining",
            (*MASKED_LM, Rename("head.pair", "cls.seq_relationship")),
            _masked_lm,
            pooler=True,
        ),
    },
)
