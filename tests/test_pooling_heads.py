"""Heads that pool: rerank and embedding."""

import json
import shutil

import pytest
import torch
import torch.nn.functional as F
import transformers
from closeness import assert_same_bits
from sentence_transformers import CrossEncoder
from tiny import (
    FAMILIES,
    alone,
    batch_of,
    hf_model,
    inputs,
    one_thread,  # noqa: F401
    our_model,
    saved,
)

import encoder_fast as ef

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


PAIRS = [("w1 w2", "w3"), ("w5", "w6 w7 w8"), ("w9", "w9")]


def cross_encoder_folder(folder, **settings):
    """A tiny cross-encoder with a tokenizer, and `settings` in its config.json."""
    source = saved("BE", "sequence_classification", num_labels=1)
    shutil.copy(source / "model.safetensors", folder)
    values = json.loads((source / "config.json").read_text()) | settings
    (folder / "config.json").write_text(json.dumps(values))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(92))]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def scores(folder):
    """Ours of PAIRS, and what sentence-transformers predicts."""
    theirs = CrossEncoder(str(folder), device="cpu")
    inputs = theirs.tokenizer(
        *map(list, zip(*PAIRS, strict=True)), padding=True, return_tensors="pt"
    )
    return ef.load(folder, head="rerank")(**inputs).scores, torch.tensor(theirs.predict(PAIRS))


ACTIVATIONS = {
    "absent": {},
    "null": {"sbert_ce_default_activation_function": None},
    "old identity": {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
    "old sigmoid": {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"},
    "identity": {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
    "sigmoid": {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
    "tanh": {"sentence_transformers": {"activation_fn": "torch.nn.Tanh", "version": "4.1"}},
    "new without a name": {"sentence_transformers": {"version": "4.1"}},
    "new before old": {
        "sentence_transformers": {"activation_fn": None},
        "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
    },
}


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_scores_are_those_of_a_cross_encoder(case, tmp_path):
    folder = cross_encoder_folder(tmp_path, **ACTIVATIONS[case])
    close(*scores(folder))


def test_scores_of_a_folder_that_sentence_transformers_saved(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    cross_encoder_folder(source)
    model = CrossEncoder(str(source), activation_fn=torch.nn.Identity(), device="cpu")
    model.save_pretrained(str(target))
    ours, theirs = scores(target)
    close(ours, theirs)
    assert ours.min() < 0, "a sigmoid would also fit"
    model = ef.load(target, head="rerank")
    model.save_pretrained(tmp_path)
    ids = torch.tensor([[2, 7, 3, 8, 3]])
    assert_same_bits(ef.load(tmp_path, head="rerank")(ids).scores, model(ids).scores)


@pytest.mark.parametrize(
    "name", ["torch.nn.modules.activation.Softmax", "mine.Sigmoid", 3], ids=str
)
def test_other_activations_of_scores_are_refused_by_name(name, tmp_path):
    folder = cross_encoder_folder(tmp_path, sentence_transformers={"activation_fn": name})
    with pytest.raises(ef.ConfigError, match=rf"activation_fn: got {name!r}.*Sigmoid.* needed"):
        ef.load(folder, head="rerank")
    assert ef.load(folder, head="sequence_classification").head_name == "sequence_classification"
