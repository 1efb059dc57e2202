"""Positions: RoBERTa's rule, explicit ones, the ends of tables, and rotary angles that no cast can round."""

import copy
import pickle
import threading

import pytest
import torch
from closeness import assert_same_bits, rows_that_differ
from tiny import (
    FAMILIES,
    PAD,
    hf_model,
    ids,
    inputs,
    one_thread,  # noqa: F401
    our_model,
    padded,
    real_rows,
    saved,
)

import encoder_fast as ef
from encoder_fast.kernels.rope import rope_tables

each_family = pytest.mark.parametrize("family", FAMILIES)
POSITION_LISTS = {
    "5..14": range(5, 15), "2..11": range(2, 12), "all_equal": [7] * 10, "decreasing": range(20, 10, -1),
    "restarting": [0, 1, 2, 3, 0, 1, 2, 0, 1, 2],
}
each_positions = pytest.mark.parametrize(
    "positions", [torch.tensor(list(p)) for p in POSITION_LISTS.values()], ids=POSITION_LISTS
)


def close(a, b, tolerance=1e-5):
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@each_positions
@each_family
def test_C14_positions_never_decide_who_sees_whom(family, positions):
    model, ids_BS = our_model(family), ids(1, 10)
    out = model(ids_BS, position_ids=positions[None]).last_hidden_state
    close(out, hf_model(family)(ids_BS, position_ids=positions[None], attention_mask=torch.ones(1, 10)).last_hidden_state)
    other = ids_BS.clone()
    other[0, 9] = 90
    changed = model(other, position_ids=positions[None]).last_hidden_state
    # every model here has a global layer, so every row sees the last column
    assert rows_that_differ(out[0], changed[0]) == list(range(10))


@each_positions
@each_family
def test_C14_with_offsets_positions_only_change_positions(family, positions):
    model, ids_T = our_model(family), ids(1, 10)[0]
    batch = ef.Batch.from_packed(ids_T, torch.tensor([0, 4, 10]), position_ids=positions)
    out = model(batch).last_hidden_state
    single = [
        model(ids_T[None, a:b], position_ids=positions[None, a:b]).last_hidden_state[0] for a, b in ((0, 4), (4, 10))
    ]
    close(out, torch.cat(single))


@pytest.mark.parametrize("shape", [(10,), (2, 5), (1, 1, 10), (1, 9)], ids=str)
@each_family
def test_C14_positions_of_a_wrong_shape_are_refused(family, shape):
    positions = torch.zeros(shape, dtype=torch.int64)
    with pytest.raises(ValueError, match="position_ids"):
        our_model(family)(ids(1, 10), position_ids=positions)


@pytest.mark.parametrize("pad", [1, 3])
def test_C26_roberta_positions_start_after_the_pad_id_in_packed_texts(pad):
    model, theirs = our_model("RO", pad_token_id=pad), hf_model("RO", pad_token_id=pad)
    rows = [(row[:n] % 90 + 5).tolist() for row, n in zip(ids(3, 12), (1, 5, 12), strict=True)]
    out = model(ef.Batch.from_lists(rows)).last_hidden_state
    close(out, torch.cat([theirs(torch.tensor([row])).last_hidden_state[0] for row in rows]))
    counted = model(ef.Batch.from_lists(rows, position_ids=[list(range(pad + 1, pad + 1 + len(r))) for r in rows]))
    assert_same_bits(counted.last_hidden_state, out)
    from_zero = model(ef.Batch.from_lists(rows, position_ids=[list(range(len(r))) for r in rows]))
    assert (from_zero.last_hidden_state - out).abs().max() > 0.1


def test_C26_a_real_pad_id_shifts_roberta_positions_as_in_transformers():
    ids_BS = ids(2, 12)
    ids_BS[0, 4] = ids_BS[1, 0] = 1
    out = our_model("RO")(ids_BS).last_hidden_state
    close(out, hf_model("RO")(ids_BS, attention_mask=torch.ones(2, 12)).last_hidden_state)
    close(our_model("RO")(ef.Batch.from_lists(ids_BS.tolist())).last_hidden_state, out.flatten(0, 1))


# family, changes, longest text
TABLES = [
    ("RO", {}, 40), ("RO", {"pad_token_id": 3}, 38), ("BE", {}, 42), ("AL", {}, 42), ("EL", {}, 42),
]
each_table = pytest.mark.parametrize(
    ("family", "changes", "longest"), TABLES, ids=[f"{f}-{n}" for f, _, n in TABLES]
)


@each_table
def test_C27_the_longest_text_and_one_more(family, changes, longest):
    model, theirs = our_model(family, **changes), hf_model(family, **changes)
    assert model.config.max_length == longest
    words = 5 + ids(1, longest + 1) % 80
    fits = words[:, :longest]
    close(model(fits).last_hidden_state, theirs(fits).last_hidden_state)
    assert model(ef.Batch.from_lists(fits.tolist())).last_hidden_state.shape == (longest, 32)
    for call in (
        lambda: model(words),
        lambda: model(ef.Batch.from_lists(words.tolist())),
        lambda: model(ef.Batch.from_lists([[5, 6], words[0].tolist()])),
        lambda: model(inputs_embeds=torch.randn(1, longest + 1, model.config.embedding_size)),
    ):
        with pytest.raises(ValueError, match=rf"{longest + 1}.*{longest}"):
            call()
    close(model(fits).last_hidden_state, theirs(fits).last_hidden_state)


@each_table
def test_C27_explicit_positions_are_range_checked(family, changes, longest):
    model = our_model(family, **changes)
    for bad in (42, 2**40, -1):
        positions = torch.tensor([[0, bad, 1]])
        with pytest.raises(ValueError, match=rf"position_ids.*{bad}.*41"):
            model(ids(1, 3), position_ids=positions)
    assert model(ids(1, 3), position_ids=torch.tensor([[0, 41, 1]])).last_hidden_state.isfinite().all()


@each_table
def test_C27_padding_may_go_beyond_the_table(family, changes, longest):
    ids_BS, mask = padded(family, (longest, 3), columns=64)
    ids_BS = torch.where((mask == 1) & (ids_BS < 5), 5, ids_BS)
    model = our_model(family, **changes)
    out = model(ids_BS, mask).last_hidden_state
    close(out[:, :longest], model(ids_BS[:, :longest], mask[:, :longest]).last_hidden_state)


def test_C27_rotary_models_compute_longer_texts():
    ids_BS = ids(1, 520)
    assert our_model("MB").config.max_length is None
    close(our_model("MB")(ids_BS).last_hidden_state, hf_model("MB")(ids_BS).last_hidden_state, 2e-5)


@pytest.mark.parametrize("pad", [1, 3])
def test_C28_roberta_with_inputs_embeds(pad):
    ours, theirs = our_model("RO", pad_token_id=pad), hf_model("RO", pad_token_id=pad)
    words = 5 + ids(2, 9) % 80
    right = torch.tensor([[1] * 9, [1] * 4 + [0] * 5])
    for mask, limit in ((torch.ones(2, 9, dtype=torch.int64), 0), (right, 0), (right.flip(1), None)):
        ids_BS = torch.where(mask == 1, words, pad)
        vectors = theirs.get_input_embeddings()(ids_BS)
        from_ids = ours(ids_BS, mask).last_hidden_state
        from_vectors = ours(inputs_embeds=vectors, attention_mask=mask).last_hidden_state
        reference = theirs(inputs_embeds=vectors, attention_mask=mask).last_hidden_state
        close(real_rows(from_vectors, mask), real_rows(reference, mask))
        difference = (real_rows(from_ids, mask) - real_rows(from_vectors, mask)).abs().max()
        # left padding: without ids nobody can see that the pads are pads, so they are counted
        assert difference == 0 if limit == 0 else difference > 0.1


def phase_error(cos, sin, position, theta, head_width):
    exact = position * theta ** -(torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angle = torch.atan2(sin.double(), cos.double())
    return (torch.remainder(angle - exact + torch.pi, 2 * torch.pi) - torch.pi).abs().max().item()


@pytest.mark.parametrize("theta", [10_000.0, 160_000.0])
@pytest.mark.parametrize("position", [511, 8191])
def test_C31_rotary_angles(position, theta):
    cos, sin = rope_tables(torch.tensor([position]), theta, 64)
    assert cos.dtype == sin.dtype == torch.float32
    assert phase_error(cos[0], sin[0], position, theta, 64) <= 1e-3


def with_rounded_weights():
    """A fresh ModernBERT whose weights are bfloat16 numbers kept in fp32."""
    model = our_model("MB")
    for p in model.parameters():
        p.copy_(p.bfloat16().float())
    return model


def built_on_meta():
    with torch.device("meta"):
        model = ef.from_config(our_model("MB").config.hf, device="meta")
    model = model.to_empty(device="cpu")
    model.load_state_dict(with_rounded_weights().state_dict())
    return model


def refilled_from_config():
    model = ef.from_config(our_model("MB").config.hf)
    model.load_state_dict(with_rounded_weights().state_dict())
    return model


JOURNEYS = {
    "to_bf16_and_back": lambda: our_model("MB").bfloat16().float(),
    "half_after_rounding": lambda: with_rounded_weights().bfloat16().to(torch.float32),
    "load_as_bf16_then_float": lambda: our_model("MB", dtype="bfloat16").float(),
    "deepcopy": lambda: copy.deepcopy(with_rounded_weights()),
    "pickle": lambda: pickle.loads(pickle.dumps(with_rounded_weights())),
    "meta_then_load": built_on_meta,
    "from_config_then_load": refilled_from_config,
}


@pytest.mark.parametrize("journey", JOURNEYS.values(), ids=JOURNEYS)
def test_C31_no_cast_copy_or_meta_device_touches_the_rotary_angles(journey):
    ids_BS = ids(1, 512)
    assert_same_bits(journey()(ids_BS).last_hidden_state, with_rounded_weights()(ids_BS).last_hidden_state)


@each_family
def test_C31_state_dict_holds_parameters_only(family):
    model = our_model(family)
    assert list(model.state_dict()) == [name for name, _ in model.named_parameters()]
    assert list(model.buffers()) == []


@each_family
def test_C32_inference_mode_then_training_then_longer_then_double(family):
    model = our_model(family)
    with torch.inference_mode():
        model(ids(1, 16))
    with torch.enable_grad():
        for length in (16, 40):
            out = model.train()(ids(1, length)).last_hidden_state
            out.sum().backward()
            assert_same_bits(out.detach(), our_model(family)(ids(1, length)).last_hidden_state)
    double = model.double()(ids(1, 40)).last_hidden_state
    assert_same_bits(double, our_model(family, dtype=torch.float64)(ids(1, 40)).last_hidden_state)


@each_family
def test_C32_a_copy_on_another_device_does_not_disturb_the_model(family):
    model = our_model(family)
    expected = model(ids(1, 16)).last_hidden_state
    away = copy.deepcopy(model).to("meta")
    assert away.device.type == "meta"
    with pytest.raises(ValueError, match=r"device cpu.*meta"):
        away(ids(1, 16))
    assert_same_bits(model(ids(1, 16)).last_hidden_state, expected)


@each_family
def test_C32_threads_of_different_lengths(family):
    model, lengths = our_model(family), (5, 40, 17, 33)
    expected = [model(ids(2, n)).last_hidden_state for n in lengths]
    results, wrong = {}, []

    def work(i):
        with torch.no_grad():
            for _ in range(5):
                results[i] = model(ids(2, lengths[i])).last_hidden_state
                if rows_that_differ(results[i], expected[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(lengths))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(lengths) and not wrong


@each_family
def test_two_models_in_one_process_keep_apart(family):
    a = our_model(family)
    b = ef.load(saved(family), dtype=torch.float64)
    given = inputs(family)
    first = a(**given).last_hidden_state
    b(**given)
    assert_same_bits(a(**given).last_hidden_state, first)
    assert PAD[family] == a.config.pad_token_id
