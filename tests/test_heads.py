"""Every head of every family against transformers' own code, its shapes, and its labels."""

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_same_bits
from tiny import (
    EVERY_HEAD,
    FAMILIES,
    HEADS_OF,
    alone,
    batch_of,
    hf_model,
    inputs,
    label_changes,
    one_thread,  # noqa: F401
    our_model,
    packed_targets,
    real_rows,
    targets,
)

import encoder_fast as ef

pytestmark = pytest.mark.on_device

BACKENDS = ("torch", "reference")
FIELDS = (
    "logits",
    "start_logits",
    "end_logits",
    "seq_relationship_logits",
    "sop_logits",
    "prediction_logits",
)
LENGTHS = (1, 2, 7, 16)


def each(cases):
    return pytest.mark.parametrize(("family", "head"), cases, ids=[f"{f}-{h}" for f, h in cases])


def close(a, b, tolerance=1e-5):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def same(loss, expected):
    assert_same_bits(loss[None], expected[None], "loss")


def setup(family, head, lengths=LENGTHS, backend="auto"):
    """Ours, transformers', inputs and labels."""
    changes = label_changes(head)
    given = inputs(family, lengths)
    labels = targets(family, head, given["attention_mask"])
    return (
        our_model(family, head, backend=backend, **changes),
        hf_model(family, head, **changes),
        given,
        labels,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@each(EVERY_HEAD)
def test_logits_equal_transformers(family, head, backend):
    ours, theirs, given, _ = setup(family, head, backend=backend)
    with torch.no_grad():
        out, expected = ours(**given), theirs(**given)
    mask, compared = given["attention_mask"], 0
    for field in FIELDS:
        other = getattr(expected, field, None)
        if other is None:
            continue
        mine = getattr(out, field)
        assert mine.shape == other.shape, field
        per_token = other.shape[:2] == mask.shape
        close(real_rows(mine, mask), real_rows(other, mask)) if per_token else close(mine, other)
        compared += 1
    assert compared >= 1 and out.loss is None


@pytest.mark.parametrize("backend", BACKENDS)
@each([c for c in EVERY_HEAD if c[1] != "question_answering"])
def test_loss_equals_transformers(family, head, backend):
    ours, theirs, given, labels = setup(family, head, backend=backend)
    close(ours(**given, **labels).loss, theirs(**given, **labels).loss)


def qa_oracle(theirs, given, starts, ends):
    """Mean of transformers' losses on each text alone, without texts that hold no position."""
    total = 0.0
    for field, wanted in (("start_logits", starts), ("end_logits", ends)):
        losses = []
        for b, n in enumerate(given["attention_mask"].sum(1).tolist()):
            if wanted[b] < n:
                logits = getattr(alone(theirs, given, b), field)
                losses.append(F.cross_entropy(logits, wanted[b : b + 1].clamp(min=0)))
        total = total + torch.stack(losses).mean()
    return total / 2


@pytest.mark.parametrize("family", FAMILIES)
def test_question_answering_loss(family):
    ours, theirs, given, labels = setup(family, "question_answering")
    expected = qa_oracle(theirs, given, labels["start_positions"], labels["end_positions"])
    close(ours(**given, **labels).loss, expected)
    # without padding, transformers' own loss is the same thing
    given = inputs(family, (7, 7))
    labels = targets(family, "question_answering", given["attention_mask"])
    close(ours(**given, **labels).loss, theirs(**given, **labels).loss)


POSITIONS = {"beyond": 99, "at_S": 16, "in_padding": 12, "negative": -3}


@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_question_answering_positions_out_of_range(family, position):
    ours, theirs, given, labels = setup(family, "question_answering")
    starts, ends = labels["start_positions"].clone(), labels["end_positions"]
    starts[2] = position
    loss = ours(**given, start_positions=starts, end_positions=ends).loss
    close(loss, qa_oracle(theirs, given, starts, ends))
    packed = ours(batch_of(given), start_positions=starts, end_positions=ends).loss
    close(packed, loss)
    if position in (99, -3):
        given, two = inputs(family, (7, 7)), torch.tensor([position, 3])
        expected = theirs(**given, start_positions=two, end_positions=two).loss
        close(ours(**given, start_positions=two, end_positions=two).loss, expected)


def test_question_answering_needs_both_positions():
    ours, _, given, labels = setup("BE", "question_answering")
    with pytest.raises(ValueError, match="both"):
        ours(**given, start_positions=labels["start_positions"])


def make_problem(kind, dtype):
    """Config changes and labels of one problem type."""
    many = torch.arange(12).view(4, 3) % 2
    return {
        "regression_1": ({"num_labels": 1}, torch.tensor([1, 0, 2, -1]).to(dtype)),
        "regression_3": ({"num_labels": 3, "problem_type": "regression"}, many.to(dtype)),
        "single": ({"num_labels": 3}, torch.tensor([0, 2, 1, 1])),
        "single_named": (
            {"num_labels": 2, "problem_type": "single_label_classification"},
            torch.tensor([0, 1, 1, 0]),
        ),
        "multi": ({"num_labels": 3}, many.to(dtype)),
        "multi_named": (
            {"num_labels": 3, "problem_type": "multi_label_classification"},
            many.to(dtype),
        ),
    }[kind]


@pytest.mark.parametrize(
    "kind", ["regression_1", "regression_3", "single", "single_named", "multi", "multi_named"]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_problem_types(family, kind):
    changes, labels = make_problem(kind, torch.float32)
    given = inputs(family, LENGTHS)
    theirs = hf_model(family, "sequence_classification", **changes)(**given, labels=labels)
    out = our_model(family, "sequence_classification", **changes)(**given, labels=labels)
    close(out.loss, theirs.loss)
    close(out.logits, theirs.logits)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["regression_1", "regression_3", "multi_named"])
def test_C54_labels_of_odd_dtype_are_cast(kind, dtype):
    changes, labels = make_problem(kind, dtype)
    _, plain = make_problem(kind, torch.float32)
    given = inputs("BE", LENGTHS)
    model = our_model("BE", "sequence_classification", **changes)
    loss = model(**given, labels=labels).loss
    same(loss, model(**given, labels=plain).loss)
    loss.backward()
    assert model.head.out.weight.grad.isfinite().all()


@each(EVERY_HEAD)
def test_padded_shapes_fills_and_packed(family, head):
    ours, _, given, labels = setup(family, head)
    mask = given["attention_mask"]
    with torch.no_grad():
        out = ours(**given, **labels, return_logits=True)
        packed = ours(batch_of(given), **packed_targets(labels, mask), return_logits=True)
    close(packed.loss, out.loss)
    assert_same_bits(packed.last_hidden_state, real_rows(out.last_hidden_state, mask))
    classes = {"masked_lm": (97,), "token_classification": (3,), "pretraining": (97,)}.get(head)
    shapes = {"logits": (4, 16, *(classes or ()))}
    if head == "sequence_classification":
        shapes = {"logits": (4, 3)}
    elif family == "EL" and head == "pretraining":
        shapes = {"logits": (4, 16)}
    elif head == "pretraining":
        shapes["pair_logits"] = (4, 2)
    elif head == "question_answering":
        shapes = {"start_logits": (4, 16), "end_logits": (4, 16)}
    for field, shape in shapes.items():
        mine, flat = getattr(out, field), getattr(packed, field)
        assert mine.shape == shape, field
        if shape[:2] == (4, 16):
            fill = torch.finfo(torch.float32).min if head == "question_answering" else 0.0
            assert (mine[mask == 0] == fill).all(), field
            assert_same_bits(flat, real_rows(mine, mask))
        else:
            assert_same_bits(flat, mine)


@each(EVERY_HEAD)
def test_labels_of_padding_are_ignored(family, head):
    ours, _, given, labels = setup(family, head)
    mask = given["attention_mask"]
    other = {
        k: torch.where(mask == 1, v, 1) if v.shape == mask.shape else v for k, v in labels.items()
    }
    same(ours(**given, **other).loss, ours(**given, **labels).loss)


@each([(f, h) for f, h in EVERY_HEAD if h == "masked_lm" or (h == "pretraining" and f != "EL")])
def test_masked_lm_logits_only_when_asked(family, head):
    ours, _, given, labels = setup(family, head)
    assert ours(**given, **labels).logits is None
    plain = ours(**given).logits
    assert_same_bits(ours(**given, **labels, return_logits=True).logits, plain)
    assert ours(**given, return_logits=False).logits is None


@pytest.mark.parametrize("family", ["BE", "AL"])
def test_pretraining_with_either_label(family):
    ours, theirs, given, labels = setup(family, "pretraining")
    words, pair = labels["labels"], next(v for k, v in labels.items() if k != "labels")
    name = next(k for k in labels if k != "labels")
    both = ours(**given, **labels).loss
    only_words, only_pair = ours(**given, labels=words).loss, ours(**given, **{name: pair}).loss
    close(both, only_words + only_pair)
    close(both, theirs(**given, **labels).loss)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_C45_modernbert_pooling(pooling, backend):
    changes = {"classifier_pooling": pooling}
    ours = our_model("MB", "sequence_classification", backend=backend, **changes)
    theirs = hf_model("MB", "sequence_classification", **changes)
    given = inputs("MB", LENGTHS)
    out = ours(**given).logits
    close(out, theirs(**given).logits)
    close(out, torch.cat([alone(theirs, given, b).logits for b in range(4)]))
    full = given["input_ids"][-1:]
    assert_same_bits(ours(full).logits, ours(full, torch.ones_like(full)).logits)
    close(ours(full).logits, theirs(full).logits)
    mask = given["attention_mask"].clone()
    mask[1] = 0
    empty = ours(given["input_ids"], mask)
    zero = ours.head.classify(torch.zeros(1, 32))
    close(empty.logits[1:2], zero)
    close(empty.logits[[0, 2, 3]], out[[0, 2, 3]])


def test_C45_pooling_sums_in_fp32():
    model = our_model("MB", dtype=torch.float16)
    x_TW = torch.full((8192, 4), 60.0, dtype=torch.float16)
    pooled = model.ops.pool(x_TW, torch.tensor([0, 8192], dtype=torch.int32), "mean")
    assert (pooled == 60).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_that_a_family_lacks_is_refused(family):
    with pytest.raises(ValueError, match=r"head.*summarisation"):
        ef.from_config(our_model(family).config.hf, head="summarisation")
    if "pretraining" not in HEADS_OF[family]:
        with pytest.raises(ValueError, match=r"pretraining.*masked_lm"):
            ef.from_config(our_model(family).config.hf, head="pretraining")


@pytest.mark.parametrize("name", ["labels", "start_positions", "next_sentence_label"])
def test_labels_that_no_head_takes_are_refused(name):
    with pytest.raises(ValueError, match=name):
        our_model("BE")(**inputs("BE", (4,)), **{name: torch.zeros(1, dtype=torch.int64)})
