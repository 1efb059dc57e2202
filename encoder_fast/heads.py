"""Heads: what a task computes from packed tokens.

`head(x_TW, batch, encoder, targets)` returns named results. Those in `token_fill` have one row per
token and are padded for a padded call, with that value where there is no token. `targets` is a
`Targets`: labels and how to reduce the loss.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoder_fast.batch import Batch
from encoder_fast.config import EncoderConfig
from encoder_fast.embeddings import Linear, Norm
from encoder_fast.encoder import Encoder
from encoder_fast.kernels.activations import activation_function
from encoder_fast.kernels.dispatch import Ops
from encoder_fast.losses import IGNORE, binary_token_loss, cross_entropy, sequence_loss, span_loss


@dataclass(frozen=True)
class Targets:
    """Labels of one call, token labels already packed, and loss options."""

    labels: Tensor | None = None
    pair_labels: Tensor | None = None
    start_positions: Tensor | None = None
    end_positions: Tensor | None = None
    num_items: float | None = None
    want_logits: bool | None = None


class Transform(nn.Module):
    """dense, activation, and a norm where the family has one: `(N, width)` -> `(N, out)`."""

    def __init__(
        self,
        ops: Ops,
        width: int,
        out: int,
        activation: str,
        eps: float | None,
        bias: bool = True,
        norm_bias: bool = True,
    ):
        super().__init__()
        self.dense = Linear(ops, width, out, bias=bias)
        self.activation = activation_function(activation)
        self.norm = None if eps is None else Norm(ops, out, eps, norm_bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.dense(x))
        return x if self.norm is None else self.norm(x)


def _labelled(x_TW: Tensor, labels_T: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens that have a label; all of them in a traced graph, whose shapes must not depend on
    it.
    """
    if torch.compiler.is_compiling():
        return x_TW, labels_T
    kept = (labels_T != IGNORE).nonzero()[:, 0]
    return x_TW[kept], labels_T[kept]


class MaskedLM(nn.Module):
    """Transform, then scores of all words by the token table, or by an untied `decoder`."""

    token_fill: ClassVar[dict] = {"logits": 0.0}

    def __init__(
        self,
        ops: Ops,
        c: EncoderConfig,
        activation: str,
        dense_bias: bool = True,
        decoder_bias: bool = True,
    ):
        super().__init__()
        self.transform = Transform(
            ops, c.hidden_size, c.embedding_size, activation, c.norm_eps, dense_bias, c.norm_bias
        )
        self.bias = nn.Parameter(torch.zeros(c.vocab_size)) if decoder_bias else None
        tied = c.tie_word_embeddings
        self.decoder = None if tied else nn.Linear(c.embedding_size, c.vocab_size, bias=False)

    def table(self, encoder: Encoder) -> Tensor:
        return (encoder.embeddings.token if self.decoder is None else self.decoder).weight

    def forward(self, x_TW: Tensor, batch: Batch, encoder: Encoder, targets: Targets) -> dict:
        results = {}
        if targets.labels is not None:
            x_NW, labels_N = _labelled(x_TW, targets.labels)
            results["loss"] = encoder.ops.linear_cross_entropy(
                self.transform(x_NW),
                self.table(encoder),
                self.bias,
                labels_N,
                num_items=targets.num_items,
            )
        # With labels, the scores of every token are only computed when asked for: (T, V) can exceed
        # the model.
        if targets.want_logits or (targets.want_logits is None and targets.labels is None):
            h_TE = self.transform(x_TW)
            results["logits"] = encoder.ops.linear(h_TE, self.table(encoder), self.bias)
        return results


class PairPretraining(MaskedLM):
    """BERT's masked words and next sentence; ALBERT's masked words and sentence order."""

    def __init__(self, ops: Ops, c: EncoderConfig, activation: str, dropout: float = 0.0):
        super().__init__(ops, c, activation)
        self.dropout = dropout
        self.pair = Linear(ops, c.hidden_size, 2)

    def forward(self, x_TW: Tensor, batch: Batch, encoder: Encoder, targets: Targets) -> dict:
        results = super().forward(x_TW, batch, encoder, targets)
        pooled_BW = F.dropout(encoder.pool_first(x_TW, batch), self.dropout, self.training)
        results["pair_logits"] = self.pair(pooled_BW)
        if targets.pair_labels is not None:
            items = targets.num_items if targets.labels is None else None
            pair = cross_entropy(results["pair_logits"], targets.pair_labels, items)
            if targets.labels is not None and targets.num_items is not None:
                # Items are words here: the texts weigh what this call's share of the words is.
                pair = pair * ((targets.labels != IGNORE).sum() / targets.num_items)
            results["loss"] = pair if targets.labels is None else results["loss"] + pair
        return results


class _Classifier(nn.Module):
    """Optional transform, dropout, linear."""

    def __init__(
        self,
        ops: Ops,
        c: EncoderConfig,
        outputs: int,
        transform: str | None = None,
        transform_norm: bool = False,
        transform_bias: bool = True,
        input_dropout: bool = False,
    ):
        super().__init__()
        eps = c.norm_eps if transform_norm else None
        W = c.hidden_size
        self.transform = transform and Transform(
            ops, W, W, transform, eps, transform_bias, c.norm_bias
        )
        self.dropout, self.input_dropout = c.classifier_dropout, input_dropout
        self.out = Linear(ops, W, outputs)

    def classify(self, x: Tensor) -> Tensor:
        if self.transform is not None:
            if self.input_dropout:
                x = F.dropout(x, self.dropout, self.training)
            x = self.transform(x)
        return self.out(F.dropout(x, self.dropout, self.training))


class SequenceClassification(_Classifier):
    """One row of scores per sequence, from the first token, the mean, or the pooler, as the
    checkpoint says.
    """

    token_fill: ClassVar[dict] = {}

    def __init__(self, ops: Ops, c: EncoderConfig, **options):
        super().__init__(ops, c, c.num_labels, **options)
        self.pooling, self.problem_type = c.classifier_pooling, c.problem_type

    def scores(self, x_TW: Tensor, batch: Batch, encoder: Encoder) -> Tensor:
        if encoder.pooler is not None:
            return self.classify(encoder.pool_first(x_TW, batch))
        return self.classify(encoder.ops.pool(x_TW, batch.cu_seqlens, self.pooling).to(x_TW.dtype))

    def forward(self, x_TW: Tensor, batch: Batch, encoder: Encoder, targets: Targets) -> dict:
        results = {"logits": self.scores(x_TW, batch, encoder)}
        if targets.labels is not None:
            results["loss"] = sequence_loss(
                results["logits"], targets.labels, self.problem_type, targets.num_items
            )
        return results


class Rerank(SequenceClassification):
    """A cross-encoder: one logit per pair, and its score by the activation that the checkpoint
    names (a sigmoid where it names none); labels in 0..1 give binary cross-entropy.
    """

    def __init__(self, ops: Ops, c: EncoderConfig, **options):
        if c.num_labels != 1:
            hint = "num_labels=1 starts a new one"
            raise ValueError(f"num_labels: got {c.num_labels}, head 'rerank' needs 1; {hint}")
        super().__init__(ops, c, **options)
        self.problem_type = c.problem_type or "multi_label_classification"
        self.activation = getattr(nn, c.score_kind)()

    def forward(self, x_TW: Tensor, batch: Batch, encoder: Encoder, targets: Targets) -> dict:
        results = super().forward(x_TW, batch, encoder, targets)
        return results | {"scores": self.activation(results["logits"][:, 0].float())}


class TokenClassification(_Classifier):
    """One row of scores per token."""

    token_fill: ClassVar[dict] = {"logits": 0.0}

    def __init__(self, ops: Ops, c: EncoderConfig, **options):
        super().__init__(ops, c, c.num_labels, **options)

    def forward(self, x_TW: Tensor, batch: Batch, encoder: Encoder, targets: Targets) -> dict:
        results = {"logits": self.classify(x_TW)}
        if targets.labels is not None:
            results["loss"] = cross_entropy(results["logits"], targets.labels, targets.num_items)
        return results


class QuestionAnswering(_Classifier):
    """Start and end scores per token. Slots without a token get the lowest number, so that no
    argmax finds them.
    """

    token_fill: ClassVar[dict] = {"start_logits": "lowest", "end_logits": "lowest"}

    def __init__(self, ops: Ops, c: EncoderConfig, **options):
        super().__init__(ops, c, 2, **options)
        if self.transform is None:
            self.dropout = 0.0

    def forward(self, x_TW: Tensor, batch: Batch, encoder: Encoder, targets: Targets) -> dict:
        start_T, end_T = self.classify(x_TW).unbind(-1)
        results = {"start_logits": start_T, "end_logits": end_T}
        if (targets.start_positions is None) != (targets.end_positions is None):
            raise ValueError("start_positions, end_positions: got one of the two, both needed")
        if targets.start_positions is not None:
            results["loss"] = span_loss(
                start_T,
                end_T,
                targets.start_positions,
                targets.end_positions,
                batch,
                targets.num_items,
            )
        return results


class ReplacedTokenDetection(nn.Module):
    """ELECTRA's discriminator: one logit per token, positive where the token was replaced."""

    token_fill: ClassVar[dict] = {"logits": 0.0}

    def __init__(self, ops: Ops, c: EncoderConfig):
        super().__init__()
        self.transform = Transform(ops, c.hidden_size, c.hidden_size, c.activation, None)
        self.out = Linear(ops, c.hidden_size, 1)

    def forward(self, x_TW: Tensor, batch: Batch, encoder: Encoder, targets: Targets) -> dict:
        results = {"logits": self.out(self.transform(x_TW))[:, 0]}
        if targets.labels is not None:
            results["loss"] = binary_token_loss(
                results["logits"], targets.labels, targets.num_items
            )
        return results


class Embedding(nn.Module):
    """One vector per sequence, no parameters. `pooling` and `normalize` come from a
    sentence-transformers folder.
    """

    token_fill: ClassVar[dict] = {}

    def __init__(self, pooling: str = "mean", normalize: bool = False):
        super().__init__()
        self.pooling, self.normalize = pooling, normalize

    def forward(self, x_TW: Tensor, batch: Batch, encoder: Encoder, targets: Targets) -> dict:
        return {
            "embeddings": encoder.ops.pool(x_TW, batch.cu_seqlens, self.pooling, self.normalize)
        }


KINDS = {
    kind.__name__: kind
    for kind in (
        MaskedLM,
        PairPretraining,
        SequenceClassification,
        TokenClassification,
        QuestionAnswering,
        ReplacedTokenDetection,
    )
}
