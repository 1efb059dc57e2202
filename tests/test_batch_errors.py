"""What the door refuses, each time in one sentence that names the argument."""

import math

import pytest
import torch

from encoder_fast import Batch

MASK = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
IDS = torch.arange(15).reshape(3, 5)


def embeds(width):
    return Batch.from_padded(None, inputs_embeds=torch.ones(1, 2, width))


@pytest.mark.parametrize("value", [0.5, 2.0, -1.0, -math.inf, math.inf, math.nan, -1e4], ids=str)
def test_C11_mask_value_other_than_0_and_1_is_named(value):
    mask_BS = MASK.float()
    mask_BS[1, 3] = value
    with pytest.raises(ValueError, match=rf"^attention_mask: got value {value}, 0 or 1 needed$"):
        Batch.from_padded(IDS, mask_BS)


@pytest.mark.parametrize("shape", [(3, 5, 5), (3, 1, 5, 5), (5,), (3, 4), (2, 5)], ids=str)
def test_C12_mask_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"^attention_mask: got shape .*\(3, 5\) needed"):
        Batch.from_padded(IDS, torch.ones(shape))


@pytest.mark.parametrize(
    "offsets, said",
    [
        ([1, 4, 8], r"got 1 to 8, 0 to 8 \(the number of tokens\) needed"),
        ([0, 5, 3, 8], r"got 5 before 3 at index 1, it must not decrease"),
        ([0, 4, 9], r"got 0 to 9, 0 to 8"),
        ([0, 4], r"got 0 to 4, 0 to 8"),
        ([0, 9, 8], r"got 9 before 8"),
        ([-1, 8], r"got -1 to 8"),
        ([0, -1, 8], r"got 0 before -1"),
        ([0], r"got 0 to 0, 0 to 8"),
        ([], r"got no offset"),
        ([[0, 8]], r"got shape \(1, 2\), 1 dimensions needed"),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_C18_malformed_offsets_are_refused(offsets, said, dtype):
    with pytest.raises(ValueError, match=rf"^cu_seqlens: {said}"):
        Batch.from_packed(torch.arange(8), torch.tensor(offsets, dtype=dtype))


def test_C18_offsets_of_a_wrong_kind_and_max_seqlen_too_small():
    ids_T = torch.arange(8)
    with pytest.raises(TypeError, match=r"^cu_seqlens: got dtype torch.float32, an integer"):
        Batch.from_packed(ids_T, torch.tensor([0.0, 8.0]))
    with pytest.raises(TypeError, match=r"^cu_seqlens: got list, a tensor needed"):
        Batch.from_packed(ids_T, [0, 8])
    with pytest.raises(ValueError, match=r"^max_seqlen: got 3, the longest sequence has 5"):
        Batch.from_packed(ids_T, torch.tensor([0, 3, 8]), max_seqlen=3)


@pytest.mark.parametrize("name", ["position_ids", "token_type_ids"])
@pytest.mark.parametrize("shape", [(5,), (3, 5, 1), (2, 5), (3, 4), ()], ids=str)
def test_C14_wrong_rank_or_shape_is_named(name, shape):
    value = torch.zeros(shape, dtype=torch.int64)
    with pytest.raises(ValueError, match=rf"^{name}: got shape .* needed$"):
        Batch.from_padded(IDS, MASK, **{name: value})


@pytest.mark.parametrize(
    "error, said, make",
    [
        (TypeError, "input_ids: got str", lambda: Batch.from_lists("text")),
        (TypeError, r"input_ids\[0\]: got int", lambda: Batch.from_lists([1, 2])),
        (TypeError, r"input_ids\[1\]: got str", lambda: Batch.from_lists([[1], "a"])),
        (TypeError, r"input_ids: got 1.5 \(float\)", lambda: Batch.from_lists([[1, 1.5]])),
        (TypeError, r"input_ids: got True \(bool\)", lambda: Batch.from_lists([[True]])),
        (TypeError, "input_ids: got None", lambda: Batch.from_lists([[None]])),
        (ValueError, "input_ids: got 9223372036854775808", lambda: Batch.from_lists([[2**63]])),
        (
            ValueError,
            r"token_type_ids: got lengths \(1,\), input_ids have \(2,\)",
            lambda: Batch.from_lists([[1, 2]], token_type_ids=[[0]]),
        ),
        (
            TypeError,
            "input_ids: got dtype torch.float32",
            lambda: Batch.from_padded(torch.ones(2, 3)),
        ),
        (TypeError, "input_ids: got list", lambda: Batch.from_packed([1], torch.tensor([0, 1]))),
        (
            ValueError,
            r"input_ids: got shape \(8,\), 2 dimensions",
            lambda: Batch.from_padded(torch.arange(8)),
        ),
        (
            ValueError,
            r"input_ids: got shape \(1, 8\), 1 dimensions",
            lambda: Batch.from_packed(torch.arange(8)[None], torch.tensor([0, 8])),
        ),
        (ValueError, "input_ids, inputs_embeds: got neither", lambda: Batch.from_padded(None)),
        (
            ValueError,
            "input_ids, inputs_embeds: got both",
            lambda: Batch.from_padded(torch.ones(1, 2).long(), inputs_embeds=torch.ones(1, 2, 3)),
        ),
        (
            TypeError,
            "inputs_embeds: got dtype torch.int64",
            lambda: Batch.from_padded(None, inputs_embeds=torch.ones(1, 2, 3).long()),
        ),
        (
            ValueError,
            r"inputs_embeds: got shape \(1, 2\), 3 dimensions",
            lambda: Batch.from_padded(None, inputs_embeds=torch.ones(1, 2)),
        ),
        (ValueError, r"sizes: got \[1, 3\]", lambda: Batch.from_lists([[1], [2]]).split([1, 3])),
        (ValueError, r"sizes: got \[3, -1\]", lambda: Batch.from_lists([[1], [2]]).split([3, -1])),
        (TypeError, r"sizes: got 0.5", lambda: Batch.from_lists([[1], [2]]).split([0.5, 1.5])),
        (TypeError, r"sizes: got '2'", lambda: Batch.from_lists([[1], [2]]).split(["2"])),
        (TypeError, r"sizes: got 2, a list", lambda: Batch.from_lists([[1], [2]]).split(2)),
        (
            ValueError,
            r"batches: got inputs_embeds of widths \[3, 4\]",
            lambda: Batch.concat([embeds(3), embeds(4)]),
        ),
        (TypeError, "batches: got int", lambda: Batch.concat([Batch.from_lists([[1]]), 3])),
        (ValueError, "batches: got none", lambda: Batch.concat([])),
        (
            ValueError,
            "batches: explicit_positions_T",
            lambda: Batch.concat([Batch.from_lists([[1]]), Batch.from_lists([[1]], None, [[0]])]),
        ),
        (
            ValueError,
            r"x_T: got shape \(3,\)",
            lambda: Batch.from_lists([[1, 2]]).to_padded(torch.ones(3)),
        ),
        (
            ValueError,
            r"x_BS: got shape \(2, 1\)",
            lambda: Batch.from_lists([[1, 2]]).pack(torch.ones(2, 1)),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_refused_in_one_sentence(error, said, make):
    with pytest.raises(error, match=rf"^{said}") as caught:
        make()
    text = str(caught.value)
    assert "\n" not in text
    assert any(word in text for word in ("needed", "must", "have", "fit", "missing")), text
