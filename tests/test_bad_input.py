"""Bad input: one error with the argument, what came and what is allowed; then all works on."""

import numpy as np
import pytest
import tiny
import torch
from bad_inputs import BAD, IDS
from tiny import one_thread  # noqa: F401

import encoder_fast as ef
from encoder_fast.encoder import Encoder

HOLED = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


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
        ({"dtype": torch.float8_e4m3fn}, ValueError, "dtype.*float8_e4m3fn.*bfloat16.*needed"),
        ({"dtype": "float8_e5m2"}, ValueError, "dtype.*float8_e5m2.*bfloat16.*needed"),
        ({"device": "bogus"}, ValueError, "^device: got 'bogus'"),
        ({"device": "mps:-7"}, ValueError, "^device: got 'mps:-7'"),
        ({"device": 2.5}, ValueError, "^device: got 2.5"),
        ({"device": "cuda:99"}, ValueError, "^device: got 'cuda:99'"),
        (
            {"head": "sequence_classification", "num_labels": 0},
            ValueError,
            "num_labels.*0.*positive",
        ),
        (
            {"head": "token_classification", "num_labels": "3"},
            ValueError,
            "num_labels.*'3'.*integer",
        ),
        ({"head": "rerank", "num_labels": 2}, ValueError, "num_labels.*2.*rerank.*1"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "-",
)
def test_bad_options_are_named(options, error, named):
    folder = tiny.saved("BE")
    for build in (
        lambda: ef.load(folder, **options),
        lambda: ef.from_config(tiny.hf_config("BE").to_dict(), **options),
    ):
        with pytest.raises(error, match=named):
            build()


def test_results_are_found_by_name_or_by_place(bert):
    out = bert(IDS)
    assert out["last_hidden_state"] is out[0] is out.last_hidden_state
    assert out["seq_relationship_logits"] is None
    for key in ("bogus", "to_tuple", "__class__", ("logits",)):
        with pytest.raises(KeyError, match=r"key: got .*last_hidden_state.* needed"):
            out[key]
    with pytest.raises(IndexError):
        out[7]


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
