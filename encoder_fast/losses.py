"""Losses, as each family's own training code has them, over real tokens only.

Where transformers divides zero by zero (no row has a label) the loss here is 0 with zero gradients.
`num_items` divides the summed loss in place of the number of items, for gradient accumulation.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from encoder_fast.batch import Batch
from encoder_fast.kernels._numeric import wide

IGNORE = -100


def cross_entropy(logits_NC: Tensor, labels_N: Tensor, num_items: float | None = None) -> Tensor:
    """Mean cross-entropy of rows whose label is not -100.

    Raises:
        TypeError, ValueError: labels of a wrong dtype, shape or range.
    """
    classes = logits_NC.shape[-1]
    labels_N = labels_N.reshape(-1).to(logits_NC.device)
    if labels_N.is_floating_point() or labels_N.dtype == torch.bool:
        raise TypeError(f"labels: got dtype {labels_N.dtype}, an integer dtype needed")
    if labels_N.shape[0] != logits_NC.shape[0]:
        raise ValueError(f"labels: got {labels_N.shape[0]} labels, {logits_NC.shape[0]} needed")
    labels_N = labels_N.long()
    kept = labels_N != IGNORE
    bad = kept & ((labels_N < 0) | (labels_N >= classes))
    if not torch.compiler.is_compiling() and bad.any():
        raise ValueError(
            f"labels: got {labels_N[bad][0].item()}, allowed are 0 to {classes - 1} and "
            f"{IGNORE} (ignored)"
        )
    total = F.cross_entropy(wide(logits_NC), labels_N, ignore_index=IGNORE, reduction="sum")
    return total / (kept.sum().clamp(min=1) if num_items is None else num_items)


def sequence_loss(
    logits_BC: Tensor, labels: Tensor, problem_type: str | None, num_items: float | None = None
) -> Tensor:
    """Regression, single-label or multi-label loss; the type is inferred as transformers does when
    it is None.
    """
    classes = logits_BC.shape[-1]
    if problem_type is None:
        integral = not (labels.is_floating_point() or labels.dtype == torch.bool)
        single = "single_label_classification" if integral else "multi_label_classification"
        problem_type = "regression" if classes == 1 else single
    if problem_type == "single_label_classification":
        return cross_entropy(logits_BC, labels, num_items)
    if labels.numel() != logits_BC.numel():
        raise ValueError(
            f"labels: got shape {tuple(labels.shape)}, {tuple(logits_BC.shape)} needed"
        )
    logits_BC = wide(logits_BC)
    labels_BC = labels.to(logits_BC.device, logits_BC.dtype).reshape(logits_BC.shape)
    if problem_type == "regression":
        each = (logits_BC - labels_BC).square()
    else:
        each = F.binary_cross_entropy_with_logits(logits_BC, labels_BC, reduction="none")
    items = max(logits_BC.shape[0], 1) if num_items is None else num_items
    return each.sum() / (items * classes)


def binary_token_loss(logits_T: Tensor, labels_T: Tensor, num_items: float | None = None) -> Tensor:
    """Replaced-token detection: binary cross-entropy over real tokens whose label, 0 or 1, is not
    -100.
    """
    rows = (labels_T != IGNORE).nonzero()[:, 0]
    logits_N, labels_N = wide(logits_T[rows]), labels_T[rows]
    odd = (labels_N != 0) & (labels_N != 1)
    if odd.any():
        raise ValueError(
            f"labels: got {labels_N[odd][0].item()}, allowed are 0, 1 and {IGNORE} (ignored)"
        )
    total = F.binary_cross_entropy_with_logits(
        logits_N, labels_N.to(logits_N.dtype), reduction="sum"
    )
    return total / (max(rows.shape[0], 1) if num_items is None else num_items)


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
    one counts as 0, as in transformers (which also lets padding slots take part in the softmax;
    here they do not).
    """
    real_BS = batch.to_padded(torch.ones_like(start_T, dtype=torch.bool), False)
    total = wide(start_T).new_zeros(())
    for name, logits_T, wanted in (
        ("start_positions", start_T, starts_B),
        ("end_positions", end_T, ends_B),
    ):
        if wanted.numel() != batch.B or wanted.is_floating_point():
            raise ValueError(
                f"{name}: got {wanted.dtype} of shape {tuple(wanted.shape)}, "
                f"{batch.B} integers needed"
            )
        wanted_B = wanted.reshape(-1).long().to(logits_T.device).clamp(min=0)
        inside_B = wanted_B < batch.padded_length
        kept = (
            inside_B & real_BS.gather(1, torch.where(inside_B, wanted_B, 0)[:, None])[:, 0]
            if batch.padded_length
            else inside_B
        )
        rows = kept.nonzero()[:, 0]
        logits_BS = batch.to_padded(wide(logits_T), float("-inf"))[rows]
        loss = F.cross_entropy(logits_BS, wanted_B[rows], reduction="sum")
        total = total + loss / (max(rows.shape[0], 1) if num_items is None else num_items)
    return total / 2
