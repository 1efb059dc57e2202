"""Bad input: one ValueError or TypeError that names the argument, what came and what is allowed; then all works on."""

import numpy as np
import pytest
import tiny
import torch
from tiny import one_thread  # noqa: F401

import encoder_fast as ef
from encoder_fast.encoder import Encoder

IDS = tiny.ids(2, 5)
LONG_MASK = torch.ones(2, 6)
HOLED = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


def of(**arguments):
    return lambda model: model(**({"input_ids": IDS} | arguments))


def changed(b: int, t: int, value: int, base=IDS):
    out = base.clone()
    out[b, t] = value
    return out


def packed(ids, offsets, **more):
    offsets = offsets if isinstance(offsets, torch.Tensor) else torch.tensor(offsets)
    return lambda model: model(ef.Batch.from_packed(ids, offsets, **more))


def lists(*args, **more):
    return lambda model: model(ef.Batch.from_lists(*args, **more))


T6 = tiny.ids(1, 6)[0]

# call, error type, and patterns that its one sentence must contain
BAD = {
    "ids of one dimension": (of(input_ids=IDS[0]), ValueError, [r"input_ids", r"\(5,\)", "2 dim"]),
    "ids of three dimensions": (of(input_ids=IDS[None]), ValueError, ["input_ids", r"\(1, 2, 5\)"]),
    "float ids": (of(input_ids=IDS.float()), TypeError, ["input_ids", "float32", "integer"]),
    "bool ids": (of(input_ids=IDS > 5), TypeError, ["input_ids", "bool", "integer"]),
    "ids as a list": (of(input_ids=IDS.tolist()), TypeError, ["input_ids", "list", "tensor"]),
    "no input": (of(input_ids=None), ValueError, ["input_ids", "inputs_embeds", "neither"]),
    "both inputs": (of(inputs_embeds=torch.ones(2, 5, 32)), ValueError, ["inputs_embeds", "both"]),
    "id of the vocabulary's size": (of(input_ids=changed(1, 2, 97)), ValueError, ["input_ids", "97", "0 to 96"]),
    "negative id": (of(input_ids=changed(0, 0, -1)), ValueError, ["input_ids", "-1", "0 to 96"]),
    "id of 2^31": (of(input_ids=changed(0, 0, 2**31)), ValueError, ["input_ids", str(2**31), "0 to 96"]),
    "mask of another shape": (of(attention_mask=LONG_MASK), ValueError, ["attention_mask", r"\(2, 6\)", r"\(2, 5\)"]),
    "mask of three dimensions": (
        of(attention_mask=torch.ones(2, 5, 5)), ValueError, ["attention_mask", r"\(2, 5, 5\)", r"\(2, 5\)"],
    ),
    "mask of four dimensions": (of(attention_mask=torch.ones(2, 1, 5, 5)), ValueError, ["attention_mask", "packed"]),
    "mask value 2": (of(attention_mask=torch.full((2, 5), 2)), ValueError, ["attention_mask", "2", "0 or 1"]),
    "additive mask": (of(attention_mask=torch.full((2, 5), -1e9)), ValueError, ["attention_mask", "0 or 1"]),
    "NaN in the mask": (of(attention_mask=torch.full((2, 5), float("nan"))), ValueError, ["attention_mask", "nan"]),
    "mask as a list": (of(attention_mask=[[1] * 5] * 2), TypeError, ["attention_mask", "list", "tensor"]),
    "type out of range": (of(token_type_ids=torch.full((2, 5), 2)), ValueError, ["token_type_ids", "2", "0 to 1"]),
    "negative type": (of(token_type_ids=torch.full((2, 5), -1)), ValueError, ["token_type_ids", "-1", "0 to 1"]),
    "types of another shape": (of(token_type_ids=torch.zeros(2, 4).long()), ValueError, ["token_type_ids", r"\(2, 4\)"]),
    "float types": (of(token_type_ids=torch.zeros(2, 5)), TypeError, ["token_type_ids", "float32"]),
    "position beyond the table": (of(position_ids=torch.full((2, 5), 42)), ValueError, ["position_ids", "42", "0 to 41"]),
    "negative position": (of(position_ids=torch.full((2, 5), -1)), ValueError, ["position_ids", "-1", "0 to 41"]),
    "positions of another shape": (of(position_ids=torch.zeros(5).long()), ValueError, ["position_ids", r"\(5,\)"]),
    "C27 text too long": (of(input_ids=tiny.ids(1, 43)), ValueError, ["input_ids", "43", "42"]),
    "C27 packed text too long": (lists([[3] * 5, [3] * 43]), ValueError, ["43", "42"]),
    "embeddings of another width": (
        of(input_ids=None, inputs_embeds=torch.ones(2, 5, 31)), ValueError, ["inputs_embeds", "31", "32"],
    ),
    "integer embeddings": (
        of(input_ids=None, inputs_embeds=torch.ones(2, 5, 32).long()), TypeError, ["inputs_embeds", "int64"],
    ),
    "embeddings of two dimensions": (of(input_ids=None, inputs_embeds=torch.ones(5, 32)), ValueError, ["inputs_embeds"]),
    "mask beside a batch": (
        lambda m: m(ef.Batch.from_lists([[3]]), torch.ones(1, 1)), ValueError, ["attention_mask", "Batch"],
    ),
    "attention probabilities": (of(output_attentions=True), ValueError, ["output_attentions", "True"]),
    "labels without a head": (of(labels=IDS), ValueError, ["labels", "None"]),
    "C18 offsets that start late": (packed(T6, [1, 6]), ValueError, ["cu_seqlens", "1", "0 to 6"]),
    "C18 offsets that end early": (packed(T6, [0, 5]), ValueError, ["cu_seqlens", "5", "0 to 6"]),
    "C18 offsets that end late": (packed(T6, [0, 7]), ValueError, ["cu_seqlens", "7", "0 to 6"]),
    "C18 offsets that decrease": (packed(T6, [0, 4, 2, 6]), ValueError, ["cu_seqlens", "4", "2", "decrease"]),
    "C18 negative offsets": (packed(T6, [0, -2, 6]), ValueError, ["cu_seqlens", "-2"]),
    "C18 no offsets": (packed(T6, torch.zeros(0, dtype=torch.int32)), ValueError, ["cu_seqlens", "no offset"]),
    "C18 float offsets": (packed(T6, [0.0, 6.0]), TypeError, ["cu_seqlens", "float32", "integer"]),
    "C18 offsets of two dimensions": (packed(T6, [[0, 6]]), ValueError, ["cu_seqlens", r"\(1, 2\)"]),
    "C18 max_seqlen too small": (packed(T6, [0, 2, 6], max_seqlen=3), ValueError, ["max_seqlen", "3", "4"]),
    "packed ids of two dimensions": (packed(IDS, [0, 10]), ValueError, ["input_ids", r"\(2, 5\)"]),
    "packed types of another length": (
        packed(T6, [0, 6], token_type_ids=torch.zeros(5).long()), ValueError, ["token_type_ids", r"\(5,\)", r"\(6,\)"],
    ),
    "text in place of ids": (lists("some text"), TypeError, ["input_ids", "str"]),
    "texts in place of ids": (lists(["some text"]), TypeError, ["input_ids", "str"]),
    "float id in a list": (lists([[3, 4.5]]), TypeError, ["input_ids", "4.5", "float"]),
    "None in a list": (lists([[3, None]]), TypeError, ["input_ids", "None"]),
    "bool in a list": (lists([[True]]), TypeError, ["input_ids", "True"]),
    "id beyond 64 bits": (lists([[2**64]]), ValueError, ["input_ids", str(2**64)]),
    "flat list": (lists([3, 4]), TypeError, ["input_ids", "int", "list"]),
    "types of other lengths": (lists([[3, 4]], [[0]]), ValueError, ["token_type_ids", r"\(1,\)", r"\(2,\)"]),
    "unknown pooling": (
        lambda m: m.pool(ef.Batch.from_lists([[3]]), "median"), ValueError, ["pooling", "median", "mean"],
    ),
    "truncate_dim 0": (
        lambda m: m.pool(ef.Batch.from_lists([[3]]), truncate_dim=0), ValueError, ["truncate_dim", "0", "32"],
    ),
    "truncate_dim beyond the width": (
        lambda m: m.pool(ef.Batch.from_lists([[3]]), truncate_dim=33), ValueError, ["truncate_dim", "33", "32"],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def bert():
    return tiny.our_model("BE")


def check(call, error, patterns, model):
    """The one error, then the model still gives the same bits as before."""
    before = model(IDS).last_hidden_state
    with pytest.raises(error) as caught:
        call(model)
    text = str(caught.value)
    assert "\n" not in text.strip()
    for pattern in patterns:
        caught.match(pattern)
    assert torch.equal(model(IDS).last_hidden_state, before)


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_error_before_compute(case, bert, monkeypatch):
    call, error, patterns = BAD[case]
    layers = []
    hook = bert.encoder.layers[0].register_forward_pre_hook(lambda *_: layers.append(1))
    try:
        before = len(layers)
        with pytest.raises(error):
            call(bert)
        assert len(layers) == before, "a layer ran before the input was refused"
    finally:
        hook.remove()
    check(call, error, patterns, bert)


@pytest.mark.parametrize(
    "family, pad, allowed",
    [("BE", 0, 42), ("AL", 0, 42), ("EL", 0, 42), ("RO", 1, 40), ("RO", 3, 38), ("XL", 1, 40)],
)
@pytest.mark.parametrize("form", ["padded", "packed", "embeddings"])
def test_C27_the_last_length_works_and_one_more_does_not(family, pad, allowed, form):
    model = tiny.our_model(family, pad_token_id=pad)
    assert model.config.max_length == allowed

    def call(length):
        ids = tiny.ids(1, length)
        ids[ids == pad] = 5
        if form == "padded":
            return model(ids)
        if form == "packed":
            return model(ef.Batch.from_lists(ids.tolist()))
        return model(inputs_embeds=model.encoder.embeddings.token(ids))

    assert call(allowed).last_hidden_state.isfinite().all()
    with pytest.raises(ValueError, match=rf"{allowed + 1} tokens.*{allowed} \(42 rows"):
        call(allowed + 1)
    assert call(allowed).last_hidden_state.isfinite().all()


def test_C27_rotary_models_take_longer_texts():
    model = tiny.our_model("MB")
    assert model.config.max_length is None
    assert model(tiny.ids(1, 520)).last_hidden_state.isfinite().all()


def test_types_of_a_family_without_types_must_be_zero():
    model = tiny.our_model("MB")
    plain = model(IDS).last_hidden_state
    assert torch.equal(model(IDS, token_type_ids=torch.zeros_like(IDS)).last_hidden_state, plain)
    with pytest.raises(ValueError, match=r"token_type_ids: got 1, allowed are 0 to 0"):
        model(IDS, token_type_ids=torch.ones_like(IDS))


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_C08_numbers_in_padding_do_not_reach_real_tokens(family, value, backend):
    model = tiny.our_model(family, backend=backend)
    embeds = torch.randn(2, 5, model.config.embedding_size)
    dirty = embeds.masked_fill(HOLED[..., None] == 0, value)
    clean = model(attention_mask=HOLED, inputs_embeds=embeds).last_hidden_state
    out = model(attention_mask=HOLED, inputs_embeds=dirty).last_hidden_state
    assert out.isfinite().all()
    assert torch.equal(out, clean)


def test_C08_and_their_gradients_are_zero_there():
    model = tiny.our_model("MB")
    embeds = torch.randn(2, 5, 32).masked_fill(HOLED[..., None] == 0, float("nan")).requires_grad_()
    model(attention_mask=HOLED, inputs_embeds=embeds).last_hidden_state.square().sum().backward()
    assert (embeds.grad[HOLED == 0] == 0).all()
    assert embeds.grad[HOLED == 1].abs().min(-1).values.gt(0).all()


def test_C10_ids_in_padding_may_be_anything():
    model = tiny.our_model("BE")
    wild = torch.where(HOLED == 1, IDS, 2**40)
    assert torch.equal(model(wild, HOLED).last_hidden_state, model(IDS, HOLED).last_hidden_state)


@pytest.mark.parametrize(
    "options, error, named",
    [
        ({"backend": "cudnn"}, ef.BackendError, "backend.*cudnn.*auto.*torch.*reference"),
        ({"head": "summarise"}, ValueError, "head.*summarise.*masked_lm"),
        ({"dtype": "int64"}, ValueError, "dtype.*int64.*float"),
        ({"dtype": "half-ish"}, ValueError, "dtype.*half-ish"),
        ({"dtype": "nn"}, ValueError, "dtype.*nn"),
        ({"head": "sequence_classification", "num_labels": 0}, ValueError, "num_labels.*0.*positive"),
        ({"head": "token_classification", "num_labels": "3"}, ValueError, "num_labels.*'3'.*integer"),
        ({"head": "rerank", "num_labels": 2}, ValueError, "num_labels.*2.*rerank.*1"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "-",
)
def test_bad_options_are_named(options, error, named):
    folder = tiny.saved("BE")
    for build in (lambda: ef.load(folder, **options), lambda: ef.from_config(tiny.hf_config("BE").to_dict(), **options)):
        with pytest.raises(error, match=named):
            build()


@pytest.mark.parametrize("family", ["RO", "MB"])
def test_a_head_the_family_lacks_is_named(family):
    with pytest.raises(ValueError, match=r"head: got 'pretraining', .* has .*masked_lm"):
        ef.load(tiny.saved(family), head="pretraining")


def test_arrays_and_tensors_as_rows_are_lists():
    expected = ef.Batch.from_lists([[3, 4], [5]]).ids_T
    assert torch.equal(ef.Batch.from_lists([np.array([3, 4]), torch.tensor([5])]).ids_T, expected)


def test_the_hook_above_would_see_a_layer(bert):
    """The check that nothing ran could not fail if the hook never fired."""
    seen = []
    hook = bert.encoder.layers[0].register_forward_pre_hook(lambda *_: seen.append(1))
    bert(IDS)
    hook.remove()
    assert seen and isinstance(bert.encoder, Encoder)
