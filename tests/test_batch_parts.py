"""Taking batches apart and joining them costs what the parts hold, not that times their number."""

from dataclasses import replace

import torch

from encoder_fast import Batch

HOST_FIELDS = ("lengths", "spans", "source_lengths")


class Counted(tuple):
    """A tuple that counts the elements that were read of it or copied beside it."""

    read = 0

    def __getitem__(self, key):
        found = super().__getitem__(key)
        Counted.read += len(found) if isinstance(key, slice) else 1
        return found

    def __iter__(self):
        Counted.read += len(self)
        return super().__iter__()

    def __radd__(self, other):
        Counted.read += len(other) + len(self)
        return Counted((*other, *tuple(self)))


def counted(batch: Batch) -> Batch:
    return replace(batch, **{name: Counted(getattr(batch, name)) for name in HOST_FIELDS})


def test_split_and_concat_read_every_length_a_few_times():
    B = 200
    batch = counted(Batch.from_lists([[1 + b % 5] * (b % 4) for b in range(B)]))
    Counted.read = 0
    parts = batch.split([1] * B)
    assert Counted.read <= 10 * len(HOST_FIELDS) * B
    parts = [counted(part) for part in parts]
    Counted.read = 0
    whole = Batch.concat(parts)
    assert Counted.read <= 10 * len(HOST_FIELDS) * B
    assert torch.equal(whole.ids_T, batch.ids_T)
    assert torch.equal(whole.cu_seqlens, batch.cu_seqlens)
    for name in HOST_FIELDS:
        assert getattr(whole, name) == tuple(getattr(batch, name)), name


def test_the_count_would_see_a_quadratic_sum():
    lengths = Counted([1] * 200)
    Counted.read = 0
    for b in range(200):
        sum(lengths[:b])
    assert Counted.read > 30 * 200
    Counted.read = 0
    parts = [Counted([1]) for _ in range(200)]
    sum(parts, Counted())
    assert Counted.read > 30 * 200


def test_parts_of_a_padded_batch_keep_their_source_slots():
    ids = torch.arange(1, 16).reshape(3, 5)
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0, 0, 0, 1, 1]])
    batch = Batch.from_padded(ids, mask)
    for b, part in enumerate(batch.split((1, 1, 1))):
        assert torch.equal(part.ids_T, ids[b][mask[b] == 1])
        assert torch.equal(part.source_ids_R, ids[b])
        assert torch.equal(part.source_ids_R[part.source_rows_T], part.ids_T)
