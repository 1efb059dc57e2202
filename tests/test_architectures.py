"""Every family against transformers' own code: tiny models, read from the files that it writes."""

import pytest
import torch
import transformers
from closeness import assert_same_bits
from parity import check_against_hf, close
from tiny import (
    EVERY_TYPE,
    FAMILIES,
    LENGTHS,
    PAD,
    alone,
    batch_of,
    exact,
    hf_model,
    ids,
    inputs,
    one_thread,  # noqa: F401
    our_model,
    padded,
    real_rows,
)

pytestmark = pytest.mark.on_device

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BACKENDS = ("torch", "reference")


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("family", EVERY_TYPE)
def test_matches_transformers(family, dtype, backend):
    check_against_hf(family, dtype=dtype, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", EVERY_TYPE)
def test_matches_transformers_in_fp64(family, backend):
    given = inputs(family)
    mask = given["attention_mask"]
    ours = our_model(family, dtype=torch.float64, backend=backend)(**given).last_hidden_state
    assert ours.dtype == torch.float64
    # rotary angles are fp32 by decision, here and in transformers
    theirs = exact(family)(**given).last_hidden_state
    close(real_rows(ours, mask), real_rows(theirs, mask), 1e-5 if family == "MB" else 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", EVERY_TYPE)
def test_C04_padding_changes_no_real_token(family, backend):
    """Lengths 1 to 33: padded to 33 and 64, pad ids and others in padding, packed, alone."""
    model, results = our_model(family, backend=backend), []
    for columns in (33, 64):
        given = inputs(family, columns=columns)
        mask = given["attention_mask"]
        results.append(real_rows(model(**given).last_hidden_state, mask))
        given["input_ids"] = torch.where(mask == 1, given["input_ids"], 3 + ids(5, columns) % 80)
        results.append(real_rows(model(**given).last_hidden_state, mask))
    # token types depend on the padded width, so take those of the narrow form
    given = inputs(family)
    results.append(model(batch_of(given)).last_hidden_state)
    if "token_type_ids" not in given:
        for other in results[1:]:
            assert_same_bits(other, results[0])
    assert_same_bits(results[1], results[0], "other ids in padding, 33 columns")
    assert_same_bits(results[3], results[2], "other ids in padding, 64 columns")
    texts = [alone(model, given, b).last_hidden_state[0] for b in range(len(LENGTHS))]
    close(results[0], torch.cat(texts))


@pytest.mark.parametrize("family", FAMILIES)
def test_C04_left_padding(family):
    lengths, columns = (3, 9, 12), 12
    mask = (torch.arange(columns) >= columns - torch.tensor(lengths)[:, None]).long()
    given = {
        "input_ids": torch.where(mask == 1, ids(3, columns), PAD[family]),
        "attention_mask": mask,
    }
    out = our_model(family)(**given).last_hidden_state
    close(real_rows(out, mask), real_rows(hf_model(family)(**given).last_hidden_state, mask))
    assert (out[mask == 0] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_C02_window_and_padding_together(backend):
    given = inputs("MB", (64, 20))
    mask = given["attention_mask"]
    ours = our_model("MB", backend=backend)(**given).last_hidden_state
    close(real_rows(ours, mask), real_rows(hf_model("MB")(**given).last_hidden_state, mask))
    texts = [alone(hf_model("MB"), given, b).last_hidden_state[0] for b in (0, 1)]
    close(real_rows(ours, mask), torch.cat(texts))
    global_only = our_model("MB", layer_types=["full_attention"] * 4, backend=backend)(
        **given
    ).last_hidden_state
    assert (ours - global_only).abs().max() > 0.1, (
        "the window makes no difference, so this test sees nothing"
    )


@pytest.mark.parametrize("length", [64, 65, 66, 129, 130, 193, 300])
def test_window_of_128_at_its_edges(length):
    """The tiny ModernBERT with a full-size window, at lengths around one and two windows."""
    given = inputs("MB", (length, 5))
    changes = {"local_attention": 128}
    theirs = hf_model("MB", **changes)(**given).last_hidden_state
    ours = our_model("MB", **changes)(**given).last_hidden_state
    close(
        real_rows(ours, given["attention_mask"]), real_rows(theirs, given["attention_mask"]), 2e-5
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_C19_hidden_states(family, backend):
    given = inputs(family, (2, 5, 9))
    mask = given["attention_mask"]
    model = our_model(family, backend=backend)
    out = model(**given, output_hidden_states=True)
    theirs = hf_model(family)(**given, output_hidden_states=True).hidden_states
    assert len(out.hidden_states) == len(theirs) == model.config.num_layers + 1
    for i, (mine, other) in enumerate(zip(out.hidden_states, theirs, strict=True)):
        assert mine.shape == other.shape == (3, 9, 32), i
        close(real_rows(mine, mask), real_rows(other, mask))
        assert (mine[mask == 0] == 0).all(), i
    assert_same_bits(out.hidden_states[-1], out.last_hidden_state)
    assert_same_bits(out.last_hidden_state, model(**given).last_hidden_state)
    assert model(**given).hidden_states is None
    packed = model(batch_of(given), output_hidden_states=True).hidden_states
    assert [tuple(s.shape) for s in packed] == [(16, 32)] * len(theirs)
    for mine, other in zip(packed, out.hidden_states, strict=True):
        close(mine, real_rows(other, mask))


@pytest.mark.parametrize("family", EVERY_TYPE)
def test_pooler(family):
    given = inputs(family)
    theirs, out = hf_model(family)(**given), our_model(family)(**given)
    if family in ("MB", "EL"):
        assert out.pooler_output is None
    else:
        close(out.pooler_output, theirs.pooler_output)
        close(
            our_model(family)(batch_of(given)).pooler_output[1:2],
            alone(our_model(family), given, 1).pooler_output,
        )


@pytest.mark.parametrize("family", EVERY_TYPE)
def test_explicit_positions_and_embeddings(family):
    ids_BS, mask = padded(family, (9, 12))
    positions = torch.arange(12).flip(0).repeat(2, 1) + 2
    theirs, ours = hf_model(family), our_model(family)
    given = {"attention_mask": mask, "position_ids": positions}
    a, b = ours(ids_BS, **given).last_hidden_state, theirs(ids_BS, **given).last_hidden_state
    close(real_rows(a, mask), real_rows(b, mask))
    vectors = theirs.get_input_embeddings()(ids_BS)
    assert_same_bits(ours(inputs_embeds=vectors, **given).last_hidden_state, a)
    one_row = ours(ids_BS, attention_mask=mask, position_ids=positions[:1]).last_hidden_state
    assert_same_bits(one_row, a)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_mask_means_all_real(family):
    ids_BS = ids(3, 11)
    ours = our_model(family)
    out = ours(ids_BS).last_hidden_state
    close(out, hf_model(family)(ids_BS).last_hidden_state)
    for dtype in (torch.bool, torch.int8, torch.uint8, torch.int32, torch.float16, torch.float32):
        mask = torch.ones(3, 11, dtype=dtype)
        assert_same_bits(ours(ids_BS, mask).last_hidden_state, out, f"mask of {dtype}")


@pytest.mark.parametrize("family", FAMILIES)
def test_C44_attention_probabilities_are_refused_by_name(family):
    with pytest.raises(ValueError, match=r"output_attentions.*eager"):
        our_model(family)(ids(1, 4), output_attentions=True)
    with pytest.raises(ValueError, match=r"head_mask.*transformers"):
        our_model(family)(ids(1, 4), head_mask=torch.ones(4))


def test_C19_a_tuple_is_asked_of_the_result():
    with pytest.raises(ValueError, match=r"return_dict: got False.*to_tuple"):
        our_model("BE")(ids(1, 4), return_dict=False)
    out = our_model("BE")(ids(1, 4))
    assert out.to_tuple()[0] is out.last_hidden_state


@pytest.mark.parametrize("family", EVERY_TYPE)
def test_our_files_load_in_transformers(family, tmp_path):
    model = our_model(family)
    model.save_pretrained(tmp_path)
    # Under a device of its own, transformers wants accelerate to read a file.
    with torch.device("cpu"):
        back = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="eager")
    back, given = back.to(torch.get_default_device()), inputs(family)
    assert_same_bits(back(**given).last_hidden_state, hf_model(family)(**given).last_hidden_state)
