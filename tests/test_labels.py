"""Labels: what is ignored, what is refused, how a loss is scaled; logits carry gradients."""

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_same_bits
from tiny import (
    EVERY_HEAD,
    FAMILIES,
    batch_of,
    inputs,
    label_changes,
    one_thread,  # noqa: F401
    our_model,
    targets,
)

LENGTHS = (2, 7, 16)
IN_RANGE = {"masked_lm": 97, "token_classification": 3, "sequence_classification": 3}
WORD_OR_CLASS = [(f, h) for f, h in EVERY_HEAD if h in IN_RANGE]
TOKEN_LABELS = [
    (f, h) for f, h in EVERY_HEAD if h in ("masked_lm", "token_classification", "pretraining")
]


def each(cases):
    return pytest.mark.parametrize(("family", "head"), cases, ids=[f"{f}-{h}" for f, h in cases])


def setup(family, head):
    given = inputs(family, LENGTHS)
    model = our_model(family, head, **label_changes(head))
    return model, given, targets(family, head, given["attention_mask"])


def grads(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@each(EVERY_HEAD)
def test_C53_num_items_divides_the_summed_loss(family, head):
    """`num_items_in_batch` divides the summed loss of a call, whatever the head."""
    model, given, labels = setup(family, head)
    items = 3
    if head in ("masked_lm", "token_classification") or (head == "pretraining" and family != "EL"):
        items = int((labels["labels"] != -100).sum())
    elif head == "pretraining":
        items = int(given["attention_mask"].sum())
    plain = model(**given, **labels).loss
    scaled = model(**given, **labels, num_items_in_batch=10 * items).loss
    torch.testing.assert_close(scaled, plain * 0.1, rtol=1e-5, atol=0)
    as_tensor = model(**given, **labels, num_items_in_batch=torch.tensor(10 * items)).loss
    torch.testing.assert_close(as_tensor, scaled, rtol=1e-6, atol=0)


def test_C53_three_labels_of_thirty():
    model, given, labels = setup("BE", "masked_lm")
    labels = {"labels": torch.full_like(given["input_ids"], -100)}
    labels["labels"][1, :3] = torch.tensor([5, 6, 96])
    ratio = model(**given, **labels, num_items_in_batch=30).loss / model(**given, **labels).loss
    assert abs(ratio.item() - 0.1) < 1e-6


@each(TOKEN_LABELS)
def test_C54_without_any_label_the_loss_is_zero_with_zero_gradients(family, head):
    model, given, labels = setup(family, head)
    labels = {"labels": torch.full_like(given["input_ids"], -100)}
    loss = model.train()(**given, **labels).loss
    loss.backward()
    assert loss.item() == 0 and loss.dtype == torch.float32
    assert grads(model), "the loss is cut off from the parameters"
    for name, grad in grads(model).items():
        assert (grad == 0).all(), name


@pytest.mark.parametrize("family", FAMILIES)
def test_C54_no_answer_inside_any_text(family):
    model, given, _ = setup(family, "question_answering")
    beyond = torch.full((3,), 99)
    loss = model(**given, start_positions=beyond, end_positions=beyond).loss
    loss.backward()
    assert loss.item() == 0
    assert all((grad == 0).all() for grad in grads(model).values())


def test_C54_sequence_labels_may_be_ignored():
    model, given, _ = setup("BE", "sequence_classification")
    out = model(**given, labels=torch.tensor([-100, 2, -100]))
    expected = F.cross_entropy(out.logits[1:2], torch.tensor([2]))
    torch.testing.assert_close(out.loss, expected)
    assert model(**given, labels=torch.full((3,), -100)).loss.item() == 0


@pytest.mark.parametrize("value", ["one_too_many", "minus_1", "minus_99", "int_max"])
@each(WORD_OR_CLASS)
def test_C54_labels_out_of_range_are_refused(family, head, value):
    model, given, labels = setup(family, head)
    bad = {"one_too_many": IN_RANGE[head], "minus_1": -1, "minus_99": -99, "int_max": 2**31 - 1}[
        value
    ]
    labels = labels["labels"].clone()
    labels.view(-1)[16 if labels.ndim == 2 else 0] = bad
    with pytest.raises(ValueError, match=f"labels.*{bad}"):
        model(**given, labels=labels)
    assert model(**given).logits.isfinite().all(), "the model is unusable afterwards"


@pytest.mark.parametrize("bad", [2, -1])
def test_C54_replaced_token_labels_are_0_or_1(bad):
    model, given, labels = setup("EL", "pretraining")
    labels["labels"][1, 2] = bad
    with pytest.raises(ValueError, match=f"labels.*{bad}"):
        model(**given, **labels)


def test_C54_replaced_token_labels_may_be_ignored():
    """A collator marks special tokens with -100: they must not count as replaced."""
    model, given, labels = setup("EL", "pretraining")
    labels["labels"][:, 0] = -100
    out = model(**given, **labels)
    kept = (given["attention_mask"] == 1) & (labels["labels"] != -100)
    expected = F.binary_cross_entropy_with_logits(out.logits[kept], labels["labels"][kept].float())
    torch.testing.assert_close(out.loss, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
@each(WORD_OR_CLASS)
def test_C54_class_labels_of_a_wrong_dtype_are_refused(family, head, dtype):
    model, given, labels = setup(family, head)
    if head == "sequence_classification":
        # floating labels of a classifier mean several labels per text: the shape must say so too
        with pytest.raises(ValueError, match=r"labels.*shape"):
            model(**given, labels=labels["labels"].to(dtype))
    else:
        with pytest.raises(TypeError, match=r"labels.*dtype"):
            model(**given, labels=labels["labels"].to(dtype))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32], ids=str)
@each(WORD_OR_CLASS)
def test_C54_any_integer_dtype_will_do(family, head, dtype):
    model, given, labels = setup(family, head)
    plain = model(**given, **labels).loss
    assert_same_bits(model(**given, labels=labels["labels"].to(dtype)).loss[None], plain[None])


@each(EVERY_HEAD)
def test_C54_labels_of_a_wrong_shape_are_refused(family, head):
    model, given, labels = setup(family, head)
    for name, value in labels.items():
        wrong = labels | {name: value[:-1]}
        with pytest.raises(ValueError, match=r"labels|start_positions|end_positions"):
            model(**given, **wrong)


@each(EVERY_HEAD)
def test_C54_the_loss_does_not_depend_on_grad_mode(family, head):
    model, given, labels = setup(family, head)
    loss = model(**given, **labels).loss.detach()
    with torch.no_grad():
        assert_same_bits(model(**given, **labels).loss[None], loss[None])
    with torch.inference_mode():
        assert_same_bits(model(**given, **labels).loss.clone()[None], loss[None])
    model.requires_grad_(False)
    frozen = model(**given, **labels).loss
    assert not frozen.requires_grad
    assert_same_bits(frozen[None], loss[None])


def logits_of(out):
    return out.logits if out.start_logits is None else out.start_logits


@each(EVERY_HEAD)
def test_C48_logits_carry_gradients(family, head):
    model, given, _ = setup(family, head)
    for form in (given, {"input_ids": batch_of(given)}):
        for training in (True, False):
            assert logits_of(model.train(training)(**form)).requires_grad
    with torch.no_grad():
        assert not logits_of(model(**given)).requires_grad
    for last in (next(n for n, _ in model.named_parameters()), "head.out.bias", "head.bias"):
        if last in dict(model.named_parameters()):
            for name, p in model.named_parameters():
                p.requires_grad_(name == last)
            logits = logits_of(model(**given))
            assert logits.requires_grad, f"only {last} is trained"
            logits[0, :1].sum().backward()
            assert list(grads(model)) == [last]
            model.zero_grad()


@each([(f, h) for f, h in EVERY_HEAD if h in IN_RANGE])
def test_C48_own_loss_on_logits_gives_the_built_in_gradients(family, head):
    built_in, given, labels = setup(family, head)
    own, _, _ = setup(family, head)
    built_in(**given, **labels).loss.backward()
    logits = own(**given).logits
    F.cross_entropy(logits.flatten(0, -2), labels["labels"].flatten()).backward()
    assert grads(own).keys() == grads(built_in).keys()
    for name, grad in grads(own).items():
        torch.testing.assert_close(grad, grads(built_in)[name], rtol=1e-4, atol=1e-5)


@each(EVERY_HEAD)
def test_C48_frozen_backbone(family, head):
    model, given, labels = setup(family, head)
    model.encoder.requires_grad_(False)
    model.train()(**given, **labels).loss.backward()
    whole, _, _ = setup(family, head)
    whole.train()(**given, **labels).loss.backward()
    heads = {n: g for n, g in grads(whole).items() if n.startswith("head.")}
    assert heads and grads(model).keys() == heads.keys()
    for name, grad in heads.items():
        torch.testing.assert_close(grads(model)[name], grad, rtol=1e-5, atol=1e-6)
