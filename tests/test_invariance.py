"""Who may see whom, through whole models: windows, padding, and masks with holes."""

import pytest
import torch
from closeness import assert_same_bits, rows_that_differ
from hypothesis import given as draws
from hypothesis import settings
from hypothesis import strategies as st
from tiny import (
    FAMILIES,
    LENGTHS,
    PAD,
    hf_model,
    ids,
    inputs,
    one_thread,  # noqa: F401
    our_model,
    padded,
    real_rows,
)

import encoder_fast as ef

pytestmark = pytest.mark.on_device

BACKENDS = ("torch", "reference")
EMBEDDING_WIDTH = {"MB": 32, "BE": 32, "RO": 32, "AL": 16, "EL": 16}
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_family = pytest.mark.parametrize("family", FAMILIES)


def close(a, b, tolerance=1e-5):
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def one_local_layer(width, backend):
    changes = {
        "num_hidden_layers": 1,
        "layer_types": ["sliding_attention"],
        "local_attention": width,
    }
    return our_model("MB", backend=backend, **changes)


# width of the window, length, column that changes: block borders, both ends
WINDOWS = [
    (8, 32, 16),
    (2, 32, 16),
    (9, 32, 16),
    (1, 32, 16),
    (8, 32, 0),
    (8, 32, 31),
    (128, 300, 150),
    (128, 300, 63),
    (128, 300, 64),
    (128, 300, 255),
    (128, 300, 299),
    (8, 300, 0),
    (8, 300, 64),
    (8, 300, 67),
]
each_window = pytest.mark.parametrize(
    ("width", "length", "column"),
    WINDOWS,
    ids=[f"window{w}-of{n}-column{c}" for w, n, c in WINDOWS],
)


@each_backend
@each_window
def test_C01_which_rows_one_column_changes(width, length, column, backend):
    model = one_local_layer(width, backend)
    before = ids(2, length)
    after = before.clone()
    after[0, column] = 3 + (after[0, column] + 40) % 90
    half = width // 2
    expected = list(range(max(0, column - half), min(length, column + half + 1)))
    mask = torch.ones(2, length, dtype=torch.int64)
    mask[1, 20:] = 0
    calls = {
        "padded": lambda x: model(x, mask).last_hidden_state[0],
        "packed": lambda x: model(
            ef.Batch.from_lists([x[1, :20].tolist(), x[0].tolist()])
        ).last_hidden_state[20:],
        "alone": lambda x: model(x[:1]).last_hidden_state[0],
    }
    with torch.no_grad():
        for form, call in calls.items():
            assert rows_that_differ(call(before), call(after)) == expected, form


@each_backend
@each_window
def test_C01_which_inputs_one_row_has_gradients_for(width, length, column, backend):
    model = one_local_layer(width, backend)
    x = torch.randn(1, length, 32).requires_grad_()
    model(inputs_embeds=x).last_hidden_state[0, column].sin().sum().backward()
    rows = x.grad[0].abs().sum(-1).nonzero()[:, 0].tolist()
    half = width // 2
    assert rows == list(range(max(0, column - half), min(length, column + half + 1)))


@each_backend
@pytest.mark.parametrize("family", ("BE", "RO", "AL", "EL"))
def test_C01_global_layers_see_the_whole_text_and_nothing_else(family, backend):
    model = our_model(family, backend=backend, num_hidden_layers=1)
    ids_BS, mask = padded(family, (12, 30))
    other = ids_BS.clone()
    other[0, 5] = 3 + (other[0, 5] + 40) % 90
    with torch.no_grad():
        a, b = (model(i, mask).last_hidden_state for i in (ids_BS, other))
    assert rows_that_differ(a[0], b[0]) == list(range(12)) and rows_that_differ(a[1], b[1]) == []


@each_backend
@each_family
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_C06_a_row_that_is_all_padding(family, backend, training):
    ids_BS, mask = padded(family, (9, 0))
    models = [our_model(family, backend=backend).train(training) for _ in range(2)]
    out = models[0](ids_BS, mask).last_hidden_state
    single = models[1](ids_BS[:1]).last_hidden_state
    assert (out[1] == 0).all()
    close(out[0], single[0], 1e-6)
    out[0].sin().sum().backward()
    single[0].sin().sum().backward()
    for (name, p), q in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(
                p.grad, q.grad, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
            )


@each_backend
@each_family
def test_C06_nothing_but_padding(family, backend):
    model = our_model(family, backend=backend).train()
    ids_BS, mask = torch.full((2, 5), PAD[family]), torch.zeros(2, 5)
    out = model(ids_BS, mask, output_hidden_states=True)
    assert out.last_hidden_state.shape == (2, 5, 32) and (out.last_hidden_state == 0).all()
    if out.pooler_output is not None:
        assert out.pooler_output.isfinite().all()
    out.last_hidden_state.sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is None or (p.grad == 0).all(), name


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)], ids=str)
@each_family
def test_C06_empty_tensors(family, shape):
    model = our_model(family)
    out = model(torch.zeros(shape, dtype=torch.int64))
    assert out.last_hidden_state.shape == (*shape, 32)
    assert model(ef.Batch.from_lists([[]] * shape[0])).last_hidden_state.shape == (0, 32)
    assert model.pool(ef.Batch.from_lists([[]] * shape[0])).shape == (shape[0], 32)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")], ids=["nan", "inf"])
@each_backend
@each_family
def test_C08_poison_in_a_masked_slot(family, backend, poison):
    """NaN in masked slots of `inputs_embeds` changes no bit of a real token."""
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[0, 8:], mask[1, :2], mask[1, 5] = 0, 0, 0
    clean = torch.randn(2, 12, EMBEDDING_WIDTH[family]) * mask[:, :, None]
    dirty = clean.masked_fill(mask[:, :, None] == 0, poison)
    model = our_model(family, backend=backend)
    a, b = (model(inputs_embeds=x, attention_mask=mask).last_hidden_state for x in (clean, dirty))
    assert_same_bits(b, a)
    dirty.requires_grad_()
    model(inputs_embeds=dirty, attention_mask=mask).last_hidden_state.sum().backward()
    assert dirty.grad.isfinite().all() and (dirty.grad[mask == 0] == 0).all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@each_backend
@each_family
def test_C08_memory_full_of_nan_is_never_read(family, backend):
    """torch's deterministic switch also fills every uninitialised tensor with NaN."""
    model, given = our_model(family, "masked_lm", backend=backend), inputs(family, (5, 0, 33, 17))
    expected = model(**given)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(4).isnan().all(), "the switch fills nothing, so this test sees nothing"
        out = model(**given)
        out.logits.square().sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same_bits(out.last_hidden_state, expected.last_hidden_state)
    assert_same_bits(out.logits, expected.logits)
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


HOLES = {
    "hole": [1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1],
    "first_column": [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    "random": [0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 0, 1],
    "only_ends": [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    "one": [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
}


@each_backend
@pytest.mark.parametrize("row", HOLES.values(), ids=HOLES)
@each_family
def test_C10_masks_with_holes(family, row, backend):
    """Positions and window distance are those of the original columns, as in transformers."""
    mask = torch.tensor([row, [1] * 12])
    ids_BS = torch.where(mask == 1, ids(2, 12), PAD[family])
    model = our_model(family, backend=backend)
    with torch.no_grad():
        out = model(ids_BS, mask).last_hidden_state
        theirs = hf_model(family)(ids_BS, attention_mask=mask).last_hidden_state
        close(real_rows(out, mask), real_rows(theirs, mask))
        other = torch.where(mask == 1, ids_BS, 50)
        again = model(other, mask).last_hidden_state
        if family == "RO":  # ids in a hole move RoBERTa's positions, there and here
            theirs = hf_model(family)(other, attention_mask=mask).last_hidden_state
            close(real_rows(again, mask), real_rows(theirs, mask))
        else:
            assert_same_bits(again, out)


@each_backend
def test_C10_a_long_text_with_holes_and_a_window(backend):
    """Several blocks of queries, with the distance measured across the holes."""
    mask = torch.ones(2, 300, dtype=torch.int64)
    mask[0, 40:110], mask[0, 200:203], mask[1, ::3] = 0, 0, 0
    ids_BS = ids(2, 300)
    with torch.no_grad():
        out = our_model("MB", backend=backend)(ids_BS, mask).last_hidden_state
        theirs = hf_model("MB")(ids_BS, attention_mask=mask).last_hidden_state
    close(real_rows(out, mask), real_rows(theirs, mask), 2e-5)


@each_backend
@each_family
def test_permuted_sequences_give_permuted_outputs(family, backend):
    given = inputs(family, (*LENGTHS, 7, 16, 7))
    model, order = our_model(family, backend=backend), torch.tensor([5, 0, 7, 2, 4, 6, 1, 3])
    with torch.no_grad():
        out = model(**given).last_hidden_state
        permuted = model(**{k: v[order] for k, v in given.items()}).last_hidden_state
    close(permuted, out[order], 1e-6)


@settings(max_examples=40)
@draws(
    family=st.sampled_from(FAMILIES),
    backend=st.sampled_from(BACKENDS),
    rows=st.lists(st.lists(st.booleans(), min_size=14, max_size=14), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_any_mask_equals_transformers(family, backend, rows, seed):
    mask = torch.tensor(rows).long()
    torch.manual_seed(seed)
    ids_BS = torch.randint(0, 97, mask.shape)
    with torch.no_grad():
        out = our_model(family, backend=backend)(ids_BS, mask).last_hidden_state
        theirs = hf_model(family)(ids_BS, attention_mask=mask).last_hidden_state
    close(real_rows(out, mask), real_rows(theirs, mask))
    assert (out[mask == 0] == 0).all()


@settings(max_examples=40)
@draws(
    family=st.sampled_from(FAMILIES),
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=8),
)
def test_any_lengths_equal_the_texts_alone(family, lengths):
    rows = [row[:n].tolist() for row, n in zip(ids(len(lengths), 40), lengths, strict=True)]
    model = our_model(family)
    with torch.no_grad():
        batch = ef.Batch.from_lists(rows)
        out = model(batch).last_hidden_state
        single = [model(torch.tensor([row])).last_hidden_state[0] for row in rows if row]
        close(out, torch.cat([*single, torch.zeros(0, 32)]))
        parts = batch.split([len(rows) // 2, len(rows) - len(rows) // 2])
        close(model(ef.Batch.concat(parts)).last_hidden_state, out, 1e-6)
        close(torch.cat([model(p).last_hidden_state for p in parts]), out, 1e-5)
