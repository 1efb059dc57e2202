"""The ops of an encoder, one file each, in the order in which a token meets them.

Letters, here and in the model: `B` sequences, `T` packed tokens, `H` heads, `D` head width, `W`
model width (`W = H * D`), `F` feed-forward width, `E` embedding width, `V` vocabulary, `N` selected
tokens. Tensor names carry
them as a suffix: `qkv_T3HD` is `(T, 3, H, D)`.

This package imports nothing from the model side. Every op file holds the formula, `reference` (the
specification), one fast implementation per backend, and `IMPLEMENTATIONS`, the table that
`dispatch.resolve` chooses from.
"""

from encoder_fast.kernels import (
    add_norm,
    attention,
    embed,
    linear,
    linear_cross_entropy,
    mlp,
    pool,
    rope,
)

OPS = (embed, linear, add_norm, rope, attention, mlp, pool, linear_cross_entropy)
