"""Settings that change what a family computes: activations, widths, sharing, biases, windows."""

import pytest
import torch
from closeness import assert_same_bits
from parity import check_against_hf, close
from tiny import (
    FAMILIES,
    hf_model,
    inputs,
    one_thread,  # noqa: F401
    our_model,
    real_rows,
)

import encoder_fast as ef


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_C36_activation_is_the_named_one(family, name):
    key = "hidden_activation" if family == "MB" else "hidden_act"
    check_against_hf(family, lengths=(9, 4), **{key: name})
    other = our_model(family, **{key: "gelu" if name == "gelu_new" else "gelu_new"})
    given = inputs(family, (9, 4))
    same = name in ("gelu_new", "gelu_pytorch_tanh") and other.config.activation == "gelu_new"
    difference = (
        other(**given).last_hidden_state
        - our_model(family, **{key: name})(**given).last_hidden_state
    )
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
            ef.from_config(
                our_model("MB").config.hf | {"hidden_size": 20, "num_attention_heads": 4}
            )
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
    changes = {
        "num_hidden_layers": 6,
        "num_hidden_groups": groups,
        "inner_group_num": inner,
        "embedding_size": width,
    }
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
    assert (our_model("EL", embedding_size=width).encoder.embeddings.project is None) == (
        width == 32
    )


RELATIVES = {
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True},
    "norm_bias": {"norm_bias": True},
    "every_bias": {
        "attention_bias": True,
        "mlp_bias": True,
        "norm_bias": True,
        "classifier_bias": True,
    },
    "silu": {"hidden_activation": "silu", "classifier_activation": "silu"},
    "window_2": {"local_attention": 2},
    "window_11": {"local_attention": 11},
    "window_16": {"local_attention": 16},
    "every_2nd_layer_global": {"global_attn_every_n_layers": 2},
    "all_layers_local": {"layer_types": ["sliding_attention"] * 4},
    "all_layers_global": {"layer_types": ["full_attention"] * 4},
    "last_layer_global": {"layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    "thetas": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 777.0},
        }
    },
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
    theirs, mine = (
        hf_model("MB", head, **changes)(**given).logits,
        our_model("MB", head, **changes)(**given).logits,
    )
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
    old = values | {
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
    }
    plan = ef.from_config(old if spelling == "old" else new).config.plan
    assert [layer.rope_theta for layer in plan] == [160000.0, 10000.0, 10000.0, 160000.0]
    assert [layer.half_window for layer in plan] == [None, 4, 4, None]
