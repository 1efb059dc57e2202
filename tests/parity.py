"""The comparison of one tiny model with transformers that several test files make."""

import torch
from closeness import assert_as_good_as, assert_same_bits
from tiny import LENGTHS, batch_of, exact, hf_model, inputs, our_model, real_rows


def close(a, b, tolerance=1e-5):
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def check_against_hf(
    family, head=None, lengths=LENGTHS, dtype=torch.float32, backend="auto", **changes
):
    """Real tokens, padded and packed, by the accuracy law; returns our padded output."""
    given = inputs(family, lengths)
    mask = given["attention_mask"]
    oracle = real_rows(exact(family, head, **changes)(**given).last_hidden_state, mask)
    # sdpa, because eager ModernBERT in fp16 overflows where sdpa does not
    plain = real_rows(
        hf_model(family, head, dtype, "sdpa", **changes)(**given).last_hidden_state, mask
    )
    model = our_model(family, head, dtype, backend, **changes)
    out = model(**given)
    assert out.last_hidden_state.dtype == dtype
    assert_as_good_as(
        real_rows(out.last_hidden_state, mask), plain, oracle, factor=3, name="padded"
    )
    packed = model(batch_of(given)).last_hidden_state
    assert_same_bits(packed, real_rows(out.last_hidden_state, mask), "packed")
    return out
