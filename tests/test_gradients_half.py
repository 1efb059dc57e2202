"""Gradients in half precision: at most three times as far from fp64 as transformers' own."""

import pytest
import torch
from test_gradients import LENGTHS, base_loss, check_all
from tiny import FAMILIES, exact_modernbert, hf_model, inputs, one_thread, our_model, real_rows  # noqa: F401


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_encoder_gradients_in_half_precision(family, dtype):
    given = inputs(family, LENGTHS)
    mask = given["attention_mask"]
    ours, plain = our_model(family, dtype=dtype), hf_model(family, None, dtype, "sdpa")
    oracle = hf_model(family, None, torch.float64)
    for model in (ours, plain):
        base_loss(real_rows(model(**given).last_hidden_state, mask).double()).backward()
    with exact_modernbert():
        base_loss(real_rows(oracle(**given).last_hidden_state, mask)).backward()
    check_all(ours, plain, oracle, None)
