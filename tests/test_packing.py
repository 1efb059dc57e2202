"""Packed documents: apart from each other, empty ones, and large scores in half precision."""

import pytest
import torch
from closeness import assert_as_good_as, assert_same_bits, rows_that_differ
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

pytestmark = pytest.mark.on_device

BACKENDS = ("torch", "reference")
EMBEDDING_WIDTH = {"MB": 32, "BE": 32, "RO": 32, "AL": 16, "EL": 16}
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_family = pytest.mark.parametrize("family", FAMILIES)


def close(a, b, tolerance=1e-5):
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


DOCUMENTS = (4, 1, 6, 17)


def documents(change_first=False):
    rows = [row[:n].tolist() for row, n in zip(ids(4, 17), DOCUMENTS, strict=True)]
    return [[i % 90 + 4 for i in rows[0]], *rows[1:]] if change_first else rows


@each_backend
@each_family
def test_C13_packed_documents_do_not_see_each_other(family, backend):
    model = our_model(family, backend=backend)
    with torch.no_grad():
        before = model(ef.Batch.from_lists(documents())).last_hidden_state
        after = model(ef.Batch.from_lists(documents(True))).last_hidden_state
        assert rows_that_differ(before, after) == [0, 1, 2, 3]
        single = [model(torch.tensor([row])).last_hidden_state[0] for row in documents()]
        close(before, torch.cat(single))
        theirs = [hf_model(family)(torch.tensor([row])).last_hidden_state[0] for row in documents()]
        close(before, torch.cat(theirs))


@each_backend
@each_family
def test_C13_gradients_stay_inside_a_document(family, backend):
    x = torch.randn(sum(DOCUMENTS), EMBEDDING_WIDTH[family]).requires_grad_()
    ends = torch.tensor([0, *DOCUMENTS]).cumsum(0)
    batch = ef.Batch.from_packed(None, ends, inputs_embeds=x)
    our_model(family, backend=backend)(batch).last_hidden_state[11:].sin().sum().backward()
    assert (x.grad[:11] == 0).all() and (x.grad[11:].abs().sum(1) > 0).all()


def test_C13_a_mask_beside_a_batch_is_refused():
    batch = ef.Batch.from_lists(documents())
    with pytest.raises(ValueError, match="attention_mask"):
        our_model("BE")(batch, torch.ones(1, batch.T))


@each_family
def test_C13_two_thousand_short_documents(family):
    rows = [[3 + (7 * b + 11 * t) % 90 for t in range(1 + b % 5)] for b in range(2000)]
    model = our_model(family)
    with torch.no_grad():
        batch = ef.Batch.from_lists(rows)
        out = model(batch).last_hidden_state
        starts = batch.cu_seqlens.tolist()
        for b in (0, 1, 777, 1998, 1999):
            close(
                out[starts[b] : starts[b + 1]], model(torch.tensor([rows[b]])).last_hidden_state[0]
            )
        rows[777] = [9, 8, 7][: len(rows[777])]
        after = model(ef.Batch.from_lists(rows)).last_hidden_state
    assert rows_that_differ(out, after) == list(range(starts[777], starts[778]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@each_backend
@each_family
def test_C15_large_scores_in_half_precision(family, backend, dtype):
    """Queries and keys times 8, 6 of 9 slots padding, a single-token row and an empty row."""
    ids_BS, mask = padded(family, (3, 1, 0, 9))
    ours, theirs = (
        our_model(family, dtype=dtype, backend=backend),
        hf_model(family, attention="sdpa"),
    )
    with torch.no_grad():
        for name, p in [*ours.named_parameters(), *theirs.named_parameters()]:
            if "qkv" in name:
                p[:64].mul_(8)
            elif "query" in name or "key" in name:
                p.mul_(8)
        out = ours(ids_BS, mask).last_hidden_state
        plain = theirs.to(dtype)(ids_BS, attention_mask=mask).last_hidden_state
        oracle = theirs.double()(ids_BS, attention_mask=mask).last_hidden_state
    assert out.isfinite().all()
    assert_as_good_as(*(real_rows(x, mask) for x in (out, plain, oracle)), factor=3)


SEGMENTS = {
    "in_between": [0, 0, 3, 3, 8, 8],
    "all_empty": [0, 0, 0],
    "ones_and_none": [0, 1, 1, 2, 3, 3],
    "no_segment": [0],
}


@each_backend
@pytest.mark.parametrize("ends", SEGMENTS.values(), ids=SEGMENTS)
@each_family
def test_C16_zero_length_segments(family, ends, backend):
    T, models = ends[-1], [our_model(family, backend=backend) for _ in range(2)]
    ids_T = ids(1, 8)[0, :T]
    batches = [ef.Batch.from_packed(ids_T, torch.tensor(e)) for e in (ends, sorted(set(ends)))]
    outs = [m(b).last_hidden_state for m, b in zip(models, batches, strict=True)]
    assert outs[0].shape == (T, 32)
    assert_same_bits(outs[0], outs[1])
    for out in outs:
        out.sin().sum().backward()
    for (name, p), q in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert p.grad is None or (p.grad == q.grad).all(), name
    for mode in ("cls", "mean", "max"):
        pooled = models[0].pool(batches[0], mode)
        empty = [b for b, n in enumerate(batches[0].lengths) if n == 0]
        assert (pooled[empty] == 0).all() and pooled.isfinite().all()
        kept = [b for b, n in enumerate(batches[0].lengths) if n]
        if kept:
            assert_same_bits(pooled[kept], models[1].pool(batches[1], mode))
