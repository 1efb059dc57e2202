"""Heads that pool: rerank and embedding."""

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_same_bits
from tiny import (
    FAMILIES,
    alone,
    batch_of,
    hf_model,
    inputs,
    one_thread,  # noqa: F401
    our_model,
)

LENGTHS = (1, 2, 7, 16)


def close(a, b, tolerance=1e-5):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("family", FAMILIES)
def test_rerank(family):
    given, changes = inputs(family, LENGTHS), {"num_labels": 1}
    theirs = hf_model(family, "sequence_classification", **changes)(**given).logits
    out = our_model(family, "sequence_classification", **changes)(**given)
    model = our_model(family, "rerank", **changes)
    labels = torch.tensor([1.0, 0.0, 0.25, 1.0])
    ranked = model(**given, labels=labels)
    close(ranked.logits, theirs)
    assert_same_bits(ranked.logits, out.logits)
    close(ranked.scores, theirs[:, 0].sigmoid())
    close(ranked.loss, F.binary_cross_entropy_with_logits(theirs[:, 0], labels))
    with pytest.raises(ValueError, match=r"num_labels.*2"):
        our_model(family, "rerank")


@pytest.mark.parametrize("family", FAMILIES)
def test_embedding_head_is_the_mean_of_each_text(family):
    given = inputs(family, LENGTHS)
    model = our_model(family, "embedding")
    vectors = model(**given).embeddings
    means = [
        alone(hf_model(family), given, b).last_hidden_state[0].mean(0) for b in range(len(LENGTHS))
    ]
    assert vectors.dtype == torch.float32
    close(vectors, torch.stack(means))
    close(model.pool(batch_of(given), "mean"), F.normalize(vectors, dim=-1))
