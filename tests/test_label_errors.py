"""What a call refuses as labels, each time in one sentence that names the argument."""

import re

import pytest
import torch
from test_labels import LENGTHS, each, setup
from tiny import (
    EVERY_HEAD,
    hf_model,
    inputs,
    one_thread,  # noqa: F401
    our_model,
)


def sequence_logits(classes, **changes):
    given = inputs("BE", LENGTHS)
    model = our_model("BE", "sequence_classification", num_labels=classes, **changes)
    return model, given


SHAPES = {
    "transposed": (4, "multi_label_classification", (4, 3)),
    "flat": (4, "multi_label_classification", (12,)),
    "one extra dimension": (4, "multi_label_classification", (3, 4, 1)),
    "transposed numbers": (4, "regression", (4, 3)),
    "one row": (1, "regression", (1, 3)),
    "one row of one output": (1, "multi_label_classification", (1, 3)),
    "one number for all": (1, "regression", ()),
    "too few": (1, "regression", (2,)),
}


@pytest.mark.parametrize("case", SHAPES)
def test_C54_labels_of_several_outputs_have_the_shape_of_the_logits(case):
    classes, problem, shape = SHAPES[case]
    model, given = sequence_logits(classes, problem_type=problem)
    with pytest.raises(ValueError, match=rf"labels: got shape {re.escape(str(shape))}, .*needed"):
        model(**given, labels=torch.ones(shape))


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
@pytest.mark.parametrize("classes, shapes", [(1, [(3,), (3, 1)]), (4, [(3, 4)])])
def test_C54_labels_that_fit_give_the_loss_of_transformers(problem, classes, shapes):
    changes = {"num_labels": classes, "problem_type": problem}
    model, given = sequence_logits(classes, problem_type=problem)
    theirs = hf_model("BE", "sequence_classification", **changes)
    labels = (torch.arange(3 * classes) % 2).float()
    if problem == "multi_label_classification":
        shapes = [shape for shape in shapes if len(shape) == 2]
    for shape in shapes:
        expected = theirs(**given, labels=labels.reshape(shape)).loss
        torch.testing.assert_close(model(**given, labels=labels.reshape(shape)).loss, expected)


@pytest.mark.parametrize("value", [1.5, -0.25, float("nan")], ids=str)
def test_C54_several_labels_are_between_0_and_1(value):
    model, given = sequence_logits(4, problem_type="multi_label_classification")
    labels = torch.zeros(3, 4)
    labels[1, 2] = value
    with pytest.raises(ValueError, match=rf"labels: got {value}, 0 to 1 needed"):
        model(**given, labels=labels)
    for inside in (0.0, 0.3, 1.0):
        labels[1, 2] = inside
        assert model(**given, labels=labels).loss.isfinite()


ITEMS = {
    "zero": 0,
    "negative": -3,
    "nan": float("nan"),
    "infinite": float("inf"),
    "text": "3",
    "true": True,
    "tensor of zero": torch.tensor(0),
    "negative tensor": torch.tensor(-1.5),
    "two numbers": torch.tensor([1, 2]),
}


@pytest.mark.parametrize("case", ITEMS)
@pytest.mark.parametrize("head", ["masked_lm", "sequence_classification"])
def test_C53_num_items_is_a_positive_number(case, head):
    model, given, labels = setup("BE", head)
    error = TypeError if case in ("text", "true") else ValueError
    with pytest.raises(error, match=r"^num_items_in_batch: got .*a positive number needed$"):
        model(**given, **labels, num_items_in_batch=ITEMS[case])


@each([case for case in EVERY_HEAD if case[0] == "BE"] + [("EL", "pretraining")])
def test_C54_labels_that_are_no_tensor_are_named(family, head):
    model, given, labels = setup(family, head)
    for name, value in labels.items():
        with pytest.raises(TypeError, match=rf"^{name}: got list, a tensor needed$"):
            model(**given, **labels | {name: value.tolist()})


NEXT, ORDER = "next_sentence_label", "sentence_order_label"


@pytest.mark.parametrize("name", [NEXT, ORDER])
@pytest.mark.parametrize("family", ["BE", "AL"])
def test_C54_pair_labels_are_named_as_they_were_given(name, family):
    model, given, _ = setup(family, "pretraining")
    for bad, error, said in (
        (torch.tensor([0, 1, 2]), ValueError, "got 2, allowed are 0 to 1 and -100"),
        (torch.tensor([0, 1]), ValueError, "got 2 labels, 3 needed"),
        (torch.tensor([0.0, 1.0, 0.0]), TypeError, "got dtype torch.float32, an integer dtype"),
    ):
        with pytest.raises(error, match=rf"^{name}: {said}"):
            model(**given, **{name: bad})
    plain = model(**given, **{name: torch.tensor([0, 1, -100])}).loss
    assert plain.isfinite() and plain > 0
    with pytest.raises(ValueError, match=rf"^{name}: got labels, but head 'masked_lm' takes none"):
        our_model(family, "masked_lm")(**given, **{name: torch.tensor([0, 1, 0])})


def test_C54_pair_labels_are_given_once():
    model, given, _ = setup("AL", "pretraining")
    pair = torch.tensor([0, 1, 0])
    with pytest.raises(ValueError, match=rf"^{NEXT}, {ORDER}: got both, one needed$"):
        model(**given, next_sentence_label=pair, sentence_order_label=pair)
