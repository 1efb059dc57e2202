"""Every family against transformers' own code, tiny models, weights read from the files that it writes."""

import pytest
import torch
import transformers
from closeness import assert_as_good_as, assert_same_bits
from tiny import (
    EVERY_TYPE, FAMILIES, LENGTHS, PAD, alone, batch_of, exact, hf_model, ids, inputs,
    one_thread,  # noqa: F401
    our_model, padded, real_rows,
)

import encoder_fast as ef

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BACKENDS = ("torch", "reference")


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def close(a, b, tolerance=1e-5):
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def check_against_hf(family, head=None, lengths=LENGTHS, dtype=torch.float32, backend="auto", **changes):
    """Real tokens of the padded call, and the packed call, by the accuracy law; returns our padded output."""
    given = inputs(family, lengths)
    mask = given["attention_mask"]
    oracle = real_rows(exact(family, head, **changes)(**given).last_hidden_state, mask)
    # sdpa, because eager ModernBERT in fp16 overflows where sdpa does not
    plain = real_rows(
        hf_model(family, head, dtype, "sdpa", **changes)(**given).last_hidden_state, mask
    )
    model = our_model(family, head, dtype, backend, **changes)
    out = model(**given)
    assert out.last_hidden_state.dtype == dtype
    assert_as_good_as(real_rows(out.last_hidden_state, mask), plain, oracle, factor=3, name="padded")
    packed = model(batch_of(given)).last_hidden_state
    assert_same_bits(packed, real_rows(out.last_hidden_state, mask), "packed")
    return out


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
    """Lengths 1 to 33, padded to 33 and 64, pad slots with the pad id and with other ids, packed, and alone."""
    model, results = our_model(family, backend=backend), []
    for columns in (33, 64):
        given = inputs(family, columns=columns)
        mask = given["attention_mask"]
        results.append(real_rows(model(**given).last_hidden_state, mask))
        given["input_ids"] = torch.where(mask == 1, given["input_ids"], 3 + ids(5, columns) % 80)
        results.append(real_rows(model(**given).last_hidden_state, mask))
    # texts by themselves: token types depend on the padded width in `types`, so take them from there
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
    given = {"input_ids": torch.where(mask == 1, ids(3, columns), PAD[family]), "attention_mask": mask}
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
    global_only = our_model("MB", layer_types=["full_attention"] * 4, backend=backend)(**given).last_hidden_state
    assert (ours - global_only).abs().max() > 0.1, "the window makes no difference, so this test sees nothing"


@pytest.mark.parametrize("length", [64, 65, 66, 129, 130, 193, 300])
def test_window_of_128_at_its_edges(length):
    """The tiny ModernBERT with a full-size window, at lengths around one and two windows."""
    given = inputs("MB", (length, 5))
    changes = {"local_attention": 128}
    theirs = hf_model("MB", **changes)(**given).last_hidden_state
    ours = our_model("MB", **changes)(**given).last_hidden_state
    close(real_rows(ours, given["attention_mask"]), real_rows(theirs, given["attention_mask"]), 2e-5)


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
        close(our_model(family)(batch_of(given)).pooler_output[1:2],
              alone(our_model(family), given, 1).pooler_output)


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_C36_activation_is_the_named_one(family, name):
    key = "hidden_activation" if family == "MB" else "hidden_act"
    check_against_hf(family, lengths=(9, 4), **{key: name})
    other = our_model(family, **{key: "gelu" if name == "gelu_new" else "gelu_new"})
    given = inputs(family, (9, 4))
    same = name in ("gelu_new", "gelu_pytorch_tanh") and other.config.activation == "gelu_new"
    difference = other(**given).last_hidden_state - our_model(family, **{key: name})(**given).last_hidden_state
    assert same or difference.abs().max() > 1e-4


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "relu", "silu"])
def test_C36_classifier_activation_of_modernbert(name):
    given, changes = inputs("MB", (9, 4)), {"classifier_activation": name}
    theirs = hf_model("MB", "sequence_classification", **changes)(**given).logits
    close(our_model("MB", "sequence_classification", **changes)(**given).logits, theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_C36_unknown_activation_is_refused(family):
    values = our_model(family).config.hf
    key = "hidden_activation" if family == "MB" else "hidden_act"
    with pytest.raises(ValueError, match="gleu"):
        ef.from_config(values | {key: "gleu"})


@pytest.mark.parametrize("head_width", [5, 6, 8, 24, 40, 64, 72, 80, 96, 128])
@pytest.mark.parametrize("family", FAMILIES)
def test_C23_head_widths(family, head_width):
    changes = {"hidden_size": 4 * head_width, "num_hidden_layers": 2}
    if family == "MB" and head_width % 2:
        with pytest.raises(ValueError, match="even"):
            ef.from_config(our_model("MB").config.hf | {"hidden_size": 20, "num_attention_heads": 4})
        return
    check_against_hf(family, lengths=(9, 12), **changes)


@pytest.mark.parametrize("family", FAMILIES)
def test_C23_width_must_divide_by_heads(family):
    with pytest.raises(ValueError, match=r"30.*4"):
        ef.from_config(our_model(family).config.hf | {"hidden_size": 30})


@pytest.mark.parametrize("width", [16, 32])
@pytest.mark.parametrize("inner", [1, 2])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_C52_albert_groups(groups, inner, width):
    changes = {"num_hidden_layers": 6, "num_hidden_groups": groups, "inner_group_num": inner, "embedding_size": width}
    out = check_against_hf("AL", lengths=(9, 4), **changes)
    model = our_model("AL", **changes)
    assert model.config.num_layers == 6 * inner and len(model.encoder.layers) == groups * inner
    given = inputs("AL", (9, 4))
    theirs = hf_model("AL", **changes)(**given, output_hidden_states=True).hidden_states
    mine = model(**given, output_hidden_states=True).hidden_states
    assert len(mine) == len(theirs) == 6 * inner + 1
    for a, b in zip(mine, theirs, strict=True):
        close(real_rows(a, given["attention_mask"]), real_rows(b, given["attention_mask"]))
    assert_same_bits(mine[-1], out.last_hidden_state)


def test_C52_albert_groups_must_divide_layers():
    with pytest.raises(ValueError, match="num_hidden_groups"):
        ef.from_config(our_model("AL").config.hf | {"num_hidden_layers": 6, "num_hidden_groups": 4})


@pytest.mark.parametrize("width", [16, 32, 48])
def test_C52_electra_projects_only_other_widths(width):
    check_against_hf("EL", embedding_size=width)
    assert (our_model("EL", embedding_size=width).encoder.embeddings.project is None) == (width == 32)


RELATIVES = {
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True},
    "norm_bias": {"norm_bias": True},
    "every_bias": {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True},
    "silu": {"hidden_activation": "silu", "classifier_activation": "silu"},
    "window_2": {"local_attention": 2},
    "window_11": {"local_attention": 11},
    "window_16": {"local_attention": 16},
    "every_2nd_layer_global": {"global_attn_every_n_layers": 2},
    "all_layers_local": {"layer_types": ["sliding_attention"] * 4},
    "all_layers_global": {"layer_types": ["full_attention"] * 4},
    "last_layer_global": {"layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    "thetas": {"rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 777.0}}},
    "pad_96": {"pad_token_id": 96},
    "norm_eps": {"norm_eps": 1e-2},
    "one_layer": {"num_hidden_layers": 1},
}


@pytest.mark.parametrize("changes", RELATIVES.values(), ids=RELATIVES)
def test_modernbert_relatives(changes):
    out = check_against_hf("MB", **changes)
    if next(iter(changes)) not in ("pad_token_id",):
        given = inputs("MB")
        usual = our_model("MB")(**given).last_hidden_state
        assert (usual - out.last_hidden_state).abs().max() > 1e-3, "the setting makes no difference"


@pytest.mark.parametrize("head", ["masked_lm", "sequence_classification", "token_classification"])
@pytest.mark.parametrize("setting", ["every_bias", "norm_bias", "silu"])
def test_modernbert_relatives_with_heads(setting, head):
    given, changes = inputs("MB", (9, 4)), RELATIVES[setting]
    theirs, mine = hf_model("MB", head, **changes)(**given).logits, our_model("MB", head, **changes)(**given).logits
    real = slice(None) if mine.ndim == 2 else given["attention_mask"] == 1
    close(mine[real], theirs[real])


def test_modernbert_without_decoder_bias():
    given, changes = inputs("MB", (9, 4)), {"decoder_bias": False}
    theirs = hf_model("MB", "masked_lm", **changes)(**given).logits
    mine = our_model("MB", "masked_lm", **changes)
    assert mine.head.bias is None
    real = given["attention_mask"] == 1
    close(mine(**given).logits[real], theirs[real])


@pytest.mark.parametrize("spelling", ["old", "new"])
def test_C29_rotary_bases_from_either_spelling(spelling):
    new = our_model("MB").config.hf
    values = {k: v for k, v in new.items() if k not in ("layer_types", "rope_parameters")}
    old = values | {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    plan = ef.from_config(old if spelling == "old" else new).config.plan
    assert [layer.rope_theta for layer in plan] == [160000.0, 10000.0, 10000.0, 160000.0]
    assert [layer.half_window for layer in plan] == [None, 4, 4, None]


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


@pytest.mark.parametrize("family", EVERY_TYPE)
def test_our_files_load_in_transformers(family, tmp_path):
    model = our_model(family)
    model.save_pretrained(tmp_path)
    back = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="eager")
    given = inputs(family)
    assert_same_bits(back(**given).last_hidden_state, hf_model(family)(**given).last_hidden_state)
