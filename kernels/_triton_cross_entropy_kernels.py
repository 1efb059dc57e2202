"""Loss and gradient of rows of scores, the gradient written over the scores."""

import triton
import triton.language as tl


@triton.jit
def _words(Z, start, V, padded, BLOCK: tl.constexpr):
    """Scores of a block of words, -inf beyond the last. Whole vectors are loaded: `padded` is a
    multiple of their length, and what lies beyond V is replaced.
    """
    word = start + tl.arange(0, BLOCK)
    z = tl.load(Z + word, mask=word < padded, other=-float("inf")).to(tl.float32)
    return word, tl.where(word < V, z, -float("inf"))


@triton.jit
def _log_sum_exp(Z, label, V, padded, BLOCK: tl.constexpr):
    """Of one row: log-sum-exp, the score of the label, and the sum of scores."""
    largest = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    plain = tl.zeros([BLOCK], tl.float32)
    # Each lane keeps a running maximum of its own; they meet once, after the loop.
    for start in range(0, V, BLOCK):
        word, z = _words(Z, start, V, padded, BLOCK)
        plain += tl.where(word < V, z, 0.0)
        higher = tl.maximum(largest, z, propagate_nan=tl.PropagateNan.ALL)
        # -inf - -inf is NaN: a lane that has seen only -inf keeps a sum of 0.
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(largest - safe) + tl.exp(z - safe)
        largest = higher
    peak = tl.max(largest, 0)
    safe = tl.where(peak == -float("inf"), 0.0, peak)
    lse = safe + tl.log(tl.sum(total * tl.exp(largest - safe), 0))
    return lse, tl.load(Z + label).to(tl.float32), tl.sum(plain, 0)


@triton.jit
def cross_entropy_kernel(
    Z, LABELS, LOSSES, V, padded, z_row, smoothing, z_loss,
    WRITES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """loss = lse - (1 - s) z_label - s mean(z) + c lse^2, and dloss/dz in place of z."""
    row = tl.program_id(0).to(tl.int64)
    Z += row * z_row
    label = tl.load(LABELS + row)
    lse, of_label, plain = _log_sum_exp(Z, label, V, padded, BLOCK)
    loss = lse - (1.0 - smoothing) * of_label + z_loss * lse * lse
    loss -= tl.where(smoothing > 0, smoothing * (plain / V), 0.0)
    tl.store(LOSSES + row, loss)
    if WRITES:
        # Every lane has read the label's score, which one of them is about to overwrite.
        tl.debug_barrier()
        slope = 1.0 + 2.0 * z_loss * lse
        for start in range(0, V, BLOCK):
            word, z = _words(Z, start, V, padded, BLOCK)
            d = tl.exp(z - lse) * slope - smoothing / V
            d -= tl.where(word == label, 1.0 - smoothing, 0.0)
            tl.store(Z + word, d.to(Z.dtype.element_ty), mask=word < padded)
