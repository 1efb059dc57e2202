"""Several devices, without one: the meta device holds no numbers, so reading one there raises."""

import pytest
import torch
from tiny import FAMILIES, our_model

import encoder_fast as ef

IDS = [[5, 6, 7], [8, 9], [], [5] * 30]


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_in_the_encoder_waits_for_a_device(family):
    batch = ef.Batch.from_lists(IDS).to("meta")
    model = our_model(family).to("meta").train()
    out = model(batch)
    assert out.last_hidden_state.shape == (35, 32)
    out.last_hidden_state.sum().backward()


@pytest.mark.parametrize(
    "name", ["attention_mask", "token_type_ids", "position_ids"], ids=lambda name: name
)
def test_C60_mixed_devices_are_refused(name):
    model = our_model("BE")
    ids = torch.full((2, 4), 5)
    with pytest.raises(ValueError, match=f"^{name}: .*meta.*cpu"):
        model(ids, **{name: torch.ones(2, 4, dtype=torch.int64, device="meta")})


def test_C60_batch_on_another_device_is_refused():
    with pytest.raises(ValueError, match=r"^input_ids: .*meta.*cpu"):
        our_model("BE")(ef.Batch.from_lists(IDS).to("meta"))
