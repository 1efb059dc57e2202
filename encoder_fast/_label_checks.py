"""What a call accepts as labels, and the sentences that it refuses the rest with."""

import math
from numbers import Real

import torch
from torch import Tensor

IGNORE = -100


def num_items(value: float | Tensor | None) -> None:
    """Check `num_items_in_batch`: None or a positive number, also as a tensor of one element."""
    if value is None or torch.compiler.is_compiling():
        return
    if isinstance(value, bool) or not isinstance(value, Real | Tensor):
        raise TypeError(f"num_items_in_batch: got {value!r}, a positive number needed")
    one = not isinstance(value, Tensor) or value.numel() == 1
    if not one or not 0 < value < math.inf:
        raise ValueError(f"num_items_in_batch: got {value}, a positive number needed")


def tensors(given: dict[str, Tensor | None]) -> None:
    """Check that every value is a tensor or None."""
    for name, value in given.items():
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{name}: got {type(value).__name__}, a tensor needed")


def one_pair(
    next_sentence_label: Tensor | None, sentence_order_label: Tensor | None
) -> dict[str, Tensor | None]:
    """The one of the two that was given, by its name (the first, if none was)."""
    if next_sentence_label is not None and sentence_order_label is not None:
        raise ValueError("next_sentence_label, sentence_order_label: got both, one needed")
    if sentence_order_label is not None:
        return {"sentence_order_label": sentence_order_label}
    return {"next_sentence_label": next_sentence_label}


def classes_of(name: str, labels: Tensor, rows: int, classes: int) -> Tensor:
    """Class labels of any shape as int64 `(rows,)`: 0 to classes - 1, or -100 (ignored)."""
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise TypeError(f"{name}: got dtype {labels.dtype}, an integer dtype needed")
    labels_N = labels.reshape(-1).long()
    if labels_N.shape[0] != rows:
        raise ValueError(f"{name}: got {labels_N.shape[0]} labels, {rows} needed")
    bad_N = (labels_N != IGNORE) & ((labels_N < 0) | (labels_N >= classes))
    if not torch.compiler.is_compiling() and bad_N.any():
        raise ValueError(
            f"{name}: got {labels_N[bad_N][0].item()}, allowed are 0 to {classes - 1} and "
            f"{IGNORE} (ignored)"
        )
    return labels_N


def like_logits(labels: Tensor, logits_BC: Tensor) -> Tensor:
    """Numbers to compare with every logit, as `(B, C)` of the logits' dtype and device."""
    B, C = logits_BC.shape
    shape = tuple(labels.shape)
    if shape != (B, C) and not (C == 1 and shape == (B,)):
        also = f" or {(B,)}" if C == 1 else ""
        raise ValueError(f"labels: got shape {shape}, {(B, C)}{also} needed")
    return labels.to(logits_BC.device, logits_BC.dtype).reshape(B, C)


def within_0_and_1(labels: Tensor) -> None:
    """Check targets of a binary cross-entropy."""
    odd = ~((labels >= 0) & (labels <= 1))
    if not torch.compiler.is_compiling() and odd.any():
        raise ValueError(f"labels: got {labels[odd][0].item()}, 0 to 1 needed")


def unsupported(output_attentions: bool, head_mask: object, return_dict: bool) -> None:
    """Refuse what transformers' models take and these do not, and name the way out."""
    if output_attentions:
        raise ValueError(
            "output_attentions: got True; attention probabilities are never held "
            "(use transformers' eager attention)"
        )
    if head_mask is not None:
        raise ValueError("head_mask: got a mask; heads cannot be masked (use transformers' model)")
    if return_dict is not True and return_dict is not None:
        raise ValueError(f"return_dict: got {return_dict!r}; call to_tuple() on the result instead")
