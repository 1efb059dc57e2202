"""Losses, as each family's own training code has them, over real tokens only.

Where transformers divides zero by zero (no row has a label) the loss here is 0 with zero gradients.
`num_items` divides the summed loss in place of the number of items, for gradient accumulation.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from encoder_fast import _label_checks as check
from encoder_fast._label_checks import IGNORE
from encoder_fast.batch import Batch
from encoder_fast.kernels._numeric import wide


def cross_entropy(logits_NC: Tensor, labels_N: Tensor, num_items: float | None = None) -> Tensor:
    """Mean cross-entropy of rows whose label is not -100.

    Raises:
        TypeError, ValueError: labels of a wrong dtype, shape or range.
    """
    labels_N = check.classes_of("labels", labels_N.to(logits_NC.device), *logits_NC.shape)
    kept = labels_N != IGNORE
    total = F.cross_entropy(wide(logits_NC), labels_N, ignore_index=IGNORE, reduction="sum")
    return total / (kept.sum().clamp(min=1) if num_items is None else num_items)


def sequence_loss(
    logits_BC: Tensor, labels: Tensor, problem_type: str | None, num_items: float | None = None
) -> Tensor:
    """Regression, single-label or multi-label loss; the type is inferred as transformers does when
    it is None.

    Args:
        logits_BC: `(B, C)`.
        labels: classes `(B,)`, or one number per logit `(B, C)` (0 to 1 for several labels), which
            may be `(B,)` where C is 1.

    Raises:
        TypeError, ValueError: labels of a wrong dtype, shape or range.
    """
    classes = logits_BC.shape[-1]
    if problem_type is None:
        integral = not (labels.is_floating_point() or labels.dtype == torch.bool)
        single = "single_label_classification" if integral else "multi_label_classification"
        problem_type = "regression" if classes == 1 else single
    if problem_type == "single_label_classification":
        return cross_entropy(logits_BC, labels, num_items)
    logits_BC = wide(logits_BC)
    labels_BC = check.like_logits(labels, logits_BC)
    if problem_type == "regression":
        each = (logits_BC - labels_BC).square()
    else:
        check.within_0_and_1(labels_BC)
        each = F.binary_cross_entropy_with_logits(logits_BC, labels_BC, reduction="none")
    items = max(logits_BC.shape[0], 1) if num_items is None else num_items
    return each.sum() / (items * classes)


def binary_token_loss(logits_T: Tensor, labels_T: Tensor, num_items: float | None = None) -> Tensor:
    """Replaced-token detection (ELECTRA, arXiv 2003.10555): binary cross-entropy over real tokens.

    Args:
        logits_T: `(T,)`; labels_T `(T,)` of 0, 1 and -100 (ignored).

    Raises:
        ValueError: another label.
    """
    kept_T = labels_T != IGNORE
    odd_T = kept_T & (labels_T != 0) & (labels_T != 1)
    if not torch.compiler.is_compiling() and odd_T.any():
        raise ValueError(
            f"labels: got {labels_T[odd_T][0].item()}, allowed are 0, 1 and {IGNORE} (ignored)"
        )
    logits_T = wide(logits_T)
    wanted_T = torch.where(kept_T, labels_T, 0).to(logits_T.dtype)
    each_T = F.binary_cross_entropy_with_logits(logits_T, wanted_T, reduction="none")
    total = torch.where(kept_T, each_T, 0.0).sum()
    return total / (kept_T.sum().clamp(min=1) if num_items is None else num_items)


def _position_loss(
    logits_T: Tensor, columns_B: Tensor, batch: Batch, num_items: float | None
) -> Tensor:
    """Cross-entropy of one column per text over the tokens of that text, on packed tokens."""
    logits_T = wide(logits_T)
    lengths_B = (batch.cu_seqlens[1:] - batch.cu_seqlens[:-1]).long()
    sequence_T = torch.repeat_interleave(lengths_B, output_size=logits_T.shape[0])

    def reduce(x_T: Tensor, how: str) -> Tensor:
        return torch.segment_reduce(x_T, how, lengths=lengths_B, unsafe=True)

    some_B = lengths_B > 0
    top_B = torch.where(some_B, reduce(logits_T.detach(), "max"), 0.0)
    sum_B = reduce((logits_T - top_B[sequence_T]).exp(), "sum")
    lse_B = torch.where(some_B, sum_B, 1.0).log() + top_B
    hit_T = batch.columns_T == columns_B[sequence_T]
    hit_B = reduce(hit_T.to(logits_T.dtype), "sum") > 0
    picked_B = reduce(torch.where(hit_T, logits_T, 0.0), "sum")
    total = torch.where(hit_B, lse_B - picked_B, 0.0).sum()
    return total / (hit_B.sum().clamp(min=1) if num_items is None else num_items)


def span_loss(
    start_T: Tensor,
    end_T: Tensor,
    starts_B: Tensor,
    ends_B: Tensor,
    batch: Batch,
    num_items: float | None = None,
) -> Tensor:
    """Extractive question answering: mean of the two cross-entropies over the tokens of each text.

    A position beyond the text, or at a slot without a token, leaves its text out, and a negative
    one (-100 too) counts as 0, as in transformers (which also lets padding slots take part in the
    softmax; here they do not).

    Args:
        start_T, end_T: scores of each packed token, `(T,)`.
        starts_B, ends_B: columns, integers `(B,)` or `(B, 1)`.

    Raises:
        ValueError: positions of a wrong dtype or number.
    """
    total = 0.0
    texts = batch.cu_seqlens.shape[0] - 1
    for name, logits_T, wanted in (
        ("start_positions", start_T, starts_B),
        ("end_positions", end_T, ends_B),
    ):
        if wanted.numel() != texts or wanted.is_floating_point():
            raise ValueError(
                f"{name}: got {wanted.dtype} of shape {tuple(wanted.shape)}, "
                f"{texts} integers needed"
            )
        columns_B = wanted.reshape(-1).long().to(logits_T.device).clamp(min=0)
        total = total + _position_loss(logits_T, columns_B, batch, num_items)
    return total / 2
