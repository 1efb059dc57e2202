"""Positions: RoBERTa's rule, explicit ones, ends of tables, and angles that no cast can round."""

import pytest
import torch
from closeness import assert_same_bits, rows_that_differ
from tiny import (
    FAMILIES,
    hf_model,
    ids,
    one_thread,  # noqa: F401
    our_model,
    padded,
    real_rows,
)

import encoder_fast as ef

each_family = pytest.mark.parametrize("family", FAMILIES)
POSITION_LISTS = {
    "5..14": range(5, 15),
    "2..11": range(2, 12),
    "all_equal": [7] * 10,
    "decreasing": range(20, 10, -1),
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
    close(
        out,
        hf_model(family)(
            ids_BS, position_ids=positions[None], attention_mask=torch.ones(1, 10)
        ).last_hidden_state,
    )
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
        model(ids_T[None, a:b], position_ids=positions[None, a:b]).last_hidden_state[0]
        for a, b in ((0, 4), (4, 10))
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
    counted = model(
        ef.Batch.from_lists(
            rows, position_ids=[list(range(pad + 1, pad + 1 + len(r))) for r in rows]
        )
    )
    assert_same_bits(counted.last_hidden_state, out)
    from_zero = model(ef.Batch.from_lists(rows, position_ids=[list(range(len(r))) for r in rows]))
    assert (from_zero.last_hidden_state - out).abs().max() > 0.1


def test_C26_a_real_pad_id_shifts_roberta_positions_as_in_transformers():
    ids_BS = ids(2, 12)
    ids_BS[0, 4] = ids_BS[1, 0] = 1
    out = our_model("RO")(ids_BS).last_hidden_state
    close(out, hf_model("RO")(ids_BS, attention_mask=torch.ones(2, 12)).last_hidden_state)
    close(
        our_model("RO")(ef.Batch.from_lists(ids_BS.tolist())).last_hidden_state, out.flatten(0, 1)
    )


# family, changes, longest text
TABLES = [
    ("RO", {}, 40),
    ("RO", {"pad_token_id": 3}, 38),
    ("BE", {}, 42),
    ("AL", {}, 42),
    ("EL", {}, 42),
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
    assert (
        model(ids(1, 3), position_ids=torch.tensor([[0, 41, 1]])).last_hidden_state.isfinite().all()
    )


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
    for mask, limit in (
        (torch.ones(2, 9, dtype=torch.int64), 0),
        (right, 0),
        (right.flip(1), None),
    ):
        ids_BS = torch.where(mask == 1, words, pad)
        vectors = theirs.get_input_embeddings()(ids_BS)
        from_ids = ours(ids_BS, mask).last_hidden_state
        from_vectors = ours(inputs_embeds=vectors, attention_mask=mask).last_hidden_state
        reference = theirs(inputs_embeds=vectors, attention_mask=mask).last_hidden_state
        close(real_rows(from_vectors, mask), real_rows(reference, mask))
        difference = (real_rows(from_ids, mask) - real_rows(from_vectors, mask)).abs().max()
        # left padding: without ids nobody can see that the pads are pads, so they are counted
        assert difference == 0 if limit == 0 else difference > 0.1
