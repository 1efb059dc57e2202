"""Dropout: off in eval, on in training, repeatable, and the same mask in the backward."""

import pytest
import torch
from closeness import assert_same_bits
from tiny import (
    EVERY_HEAD,
    FAMILIES,
    batch_of,
    ids,
    inputs,
    label_changes,
    one_thread,  # noqa: F401
    our_model,
    real_rows,
    targets,
)

import encoder_fast as ef

BACKENDS = ("torch", "reference")
each_family = pytest.mark.parametrize("family", FAMILIES)
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def each(cases):
    return pytest.mark.parametrize(("family", "head"), cases, ids=[f"{f}-{h}" for f, h in cases])


def drops(family, only=None, p=0.5):
    """Config changes that set every dropout, or those whose key contains `only`."""
    if family == "MB":
        keys = ("attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_dropout")
    else:
        keys = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        keys += ("classifier_dropout_prob",) if family == "AL" else ("classifier_dropout",)
    return {key: p if only is None or only in key else 0.0 for key in keys}


def dropping(family, head=None, only=None, backend="auto", dtype=None, **changes):
    return our_model(
        family, head, dtype, backend, **drops(family, only), **label_changes(head), **changes
    )


def result(model, given):
    with torch.no_grad():
        out = model(**given)
    return (
        out.last_hidden_state
        if model.head is None
        else out.logits
        if out.logits is not None
        else out.start_logits
    )


@each_backend
@each([(f, None) for f in FAMILIES] + EVERY_HEAD)
def test_C56_1_2_4_off_in_eval_on_in_training_and_seeded(family, head, backend):
    given = inputs(family, (7, 16))
    model = dropping(family, head, backend=backend)
    first = result(model, given)
    assert_same_bits(result(model, given), first, "eval twice")
    plain = our_model(family, head, backend=backend, **drops(family, p=0.0), **label_changes(head))
    assert_same_bits(result(plain, given), first, "eval is no dropout")
    model.train()
    one, two = result(model, given), result(model, given)
    assert not torch.equal(one, two), "the same mask in two training steps"
    torch.manual_seed(5)
    seeded = result(model, given)
    torch.manual_seed(5)
    assert_same_bits(result(model, given), seeded, "the same seed")
    assert_same_bits(result(model.eval(), given), first, "eval after training")
    assert not torch.equal(result(model.train(), given), first), (
        "one eval switched dropout off for good"
    )


KINDS = {
    "MB": ("attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_dropout"),
    "AL": ("hidden", "attention", "classifier"),
}


@each([(f, kind) for f in FAMILIES for kind in KINDS.get(f, ("hidden", "attention", "classifier"))])
def test_C56_each_probability_is_used_by_itself(family, head):
    given = inputs(family, (7, 16))
    model = dropping(family, "sequence_classification", only=head).train()
    assert not torch.equal(result(model, given), result(model, given))
    base = dropping(family, None, only=head).train()
    changed = not torch.equal(result(base, given), result(base, given))
    assert changed == ("classifier" not in head), (
        "the classifier's probability reaches the encoder, or another does not"
    )


@each_family
@each_backend
def test_C56_3_gradients_belong_to_the_mask_that_was_drawn(family, backend):
    """Finite difference along one direction, fp64, the seed fixed."""
    given = inputs(family, (5, 9))
    labels = targets(family, "masked_lm", given["attention_mask"])
    model = dropping(family, "masked_lm", backend=backend, dtype=torch.float64).train()
    check_direction(model, given, labels, 1e-4 if family == "MB" else 1e-6)


def test_C56_3_gradients_of_recomputed_attention():
    """Past 1024 tokens the backward recomputes attention: it must draw the same mask."""
    model = dropping(
        "MB",
        "sequence_classification",
        dtype=torch.float64,
        num_hidden_layers=1,
        num_attention_heads=1,
        hidden_size=8,
        intermediate_size=8,
    ).train()
    check_direction(model, {"input_ids": ids(1, 1100)}, {"labels": torch.tensor([1])}, 1e-4)


def check_direction(model, given, labels, tolerance):
    def loss():
        torch.manual_seed(11)
        return model(**given, **labels).loss

    loss().backward()
    parameters = [p for p in model.parameters() if p.grad is not None]
    directions = [torch.randn_like(p) for p in parameters]
    slope = sum((p.grad * d).sum() for p, d in zip(parameters, directions, strict=True))
    ends = []
    with torch.no_grad():
        for step in (1e-4, -2e-4):
            for p, d in zip(parameters, directions, strict=True):
                p.add_(d, alpha=step)
            ends.append(loss())
    measured = (ends[0] - ends[1]) / 2e-4
    torch.testing.assert_close(measured, slope, rtol=1e-3, atol=tolerance * 10)


@pytest.mark.parametrize("p", [0.5, 0.1])
@each_family
def test_C56_5_kept_share_and_mean(family, p):
    """1e5 numbers: the kept ones are scaled by 1 / (1 - p), the mean stays."""
    model = our_model(
        family, **drops(family, p=p), **({"embedding_size": 32} if family in ("AL", "EL") else {})
    )
    if model.encoder.embeddings.project is not None:
        model.encoder.embeddings.project = torch.nn.Identity()
    batch = ef.Batch.from_lists((5 + ids(100, 35) % 90).tolist())
    positions = torch.arange(35).repeat(100) + (2 if family == "RO" else 0)
    with torch.no_grad():
        plain = model.encoder.embeddings(batch, positions)
        dropped = model.train().encoder.embeddings(batch, positions)
    assert plain.numel() > 1e5
    kept = dropped != 0
    assert abs(kept.float().mean().item() - (1 - p)) < 0.01
    torch.testing.assert_close(dropped[kept], plain[kept] / (1 - p))
    assert abs((dropped.mean() - plain.mean()).item()) < 0.02


@pytest.mark.parametrize("window", [None, 4], ids=["global", "window"])
@each_backend
def test_C56_5_attention_keeps_the_mean(backend, window):
    """Equal scores and values of one: every output is (kept keys) / (keys) / (1 - p)."""
    model = our_model("MB", backend=backend)
    batch = ef.Batch.from_lists(ids(40, 120).tolist())
    plan = model.ops.prepare_attention(batch, (None, 4), torch.float32)
    qkv = torch.zeros(batch.T, 3, 4, 8)
    qkv[:, 2] = 1
    o_THD, _ = model.ops.attention(qkv, plan, window, 0.5)
    assert abs(o_THD.mean().item() - 1) < 0.02 and o_THD.std() > 0.05
    # one mask per head and row, shared by the 8 numbers of a value
    assert (o_THD - o_THD[:, :, :1]).abs().max() < 1e-5
    assert o_THD[:, 0, 0].std() > 0 and not torch.equal(o_THD[:, 0], o_THD[:, 1])


@each_family
def test_C56_6_packed_and_padded_both_drop(family):
    given = inputs(family, (7, 16))
    model, mask = dropping(family).train(), given["attention_mask"]
    with torch.no_grad():
        eval_out = real_rows(
            our_model(family, **drops(family)).eval()(**given).last_hidden_state, mask
        )
        for call in (
            lambda: real_rows(model(**given).last_hidden_state, mask),
            lambda: model(batch_of(given)).last_hidden_state,
        ):
            assert (call() - eval_out).abs().max() > 0.1
        torch.manual_seed(3)
        padded_out = real_rows(model(**given).last_hidden_state, mask)
        torch.manual_seed(3)
        assert_same_bits(model(batch_of(given)).last_hidden_state, padded_out)
