"""config.json: every spelling gives one plan, and what is not understood is refused by name."""

import json

import pytest
import tiny
import torch
from hub_configs import (
    ALBERT_BASE_V2,
    BERT_BASE,
    CAMEMBERT_BASE,
    ELECTRA_GENERATOR,
    ELECTRA_SMALL,
    MINILM,
    MODERNBERT_BASE,
    ROBERTA_BASE,
    XLM_ROBERTA_BASE,
)
from tiny import one_thread  # noqa: F401

import encoder_fast as ef
from encoder_fast.architectures import architecture_of
from encoder_fast.config import Settings

# Text, then what a wrong default would get wrong.
HUB = {
    "bert-base-uncased": (BERT_BASE, {"norm_eps": 1e-12, "max_length": 512, "type_rows": 2}),
    "MiniLM": (MINILM, {"hidden_size": 384, "num_layers": 6, "head_width": 32}),
    "roberta-base": (ROBERTA_BASE, {"norm_eps": 1e-5, "max_length": 512, "position_offset": 1}),
    "xlm-roberta-base": (XLM_ROBERTA_BASE, {"vocab_size": 250002, "max_length": 512}),
    "camembert-base": (CAMEMBERT_BASE, {"type_rows": 1, "max_length": 512}),
    "albert-base-v2": (ALBERT_BASE_V2, {"activation": "gelu_new", "num_layer_weights": 1}),
    "electra-small": (ELECTRA_SMALL, {"project_embeddings": True, "embedding_size": 128}),
    "electra-generator": (ELECTRA_GENERATOR, {"project_embeddings": True, "embedding_size": 768}),
    "ModernBERT-base": (
        MODERNBERT_BASE,
        {"max_length": None, "half_windows": (None, 64), "classifier_pooling": "mean"},
    ),
}


def resolved(values: dict, ignore=()):
    """`EncoderConfig` of a config.json, all keys accounted for."""
    settings = Settings(values, ignore)
    config = architecture_of(values.get("model_type")).config(settings)
    settings.finish()
    return config


def tiny_values(family: str, **changes) -> dict:
    values = tiny.hf_config(family).to_dict()
    values.update(changes)
    return {k: v for k, v in values.items() if v != "absent"}


@pytest.mark.parametrize("name", HUB)
def test_configs_of_the_hub_are_understood(name):
    text, expected = HUB[name]
    config = resolved(json.loads(text))
    assert {field: getattr(config, field) for field in expected} == expected


def test_C29_modernbert_base_has_its_published_plan():
    plan = resolved(json.loads(MODERNBERT_BASE)).plan
    assert len(plan) == 22
    for i, layer in enumerate(plan):
        expected = (None, 160000.0) if i % 3 == 0 else (64, 10000.0)
        assert (layer.half_window, layer.rope_theta) == expected, i


FULL, SLIDING = "full_attention", "sliding_attention"
NEW = {
    "rope_parameters": {
        FULL: {"rope_theta": 160000.0, "rope_type": "default"},
        SLIDING: {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "layer_types": [FULL, SLIDING, SLIDING, FULL],
}
OLD = {
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "global_attn_every_n_layers": 3,
}


def modernbert(**changes) -> dict:
    """A tiny ModernBERT's values without any spelling of its plan, then `changes`."""
    values = tiny_values("MB")
    for key in (*NEW, *OLD, "rope_theta"):
        values.pop(key, None)
    return values | changes


def test_C29_both_spellings_are_one_plan_and_bit_equal():
    models = []
    for spelling in (OLD, NEW):
        torch.manual_seed(0)
        models.append(ef.from_config(modernbert(**spelling)))
    old, new = models
    assert old.config.plan == new.config.plan
    assert [layer.rope_theta for layer in old.config.plan] == [160000.0, 10000.0, 10000.0, 160000.0]
    assert [layer.half_window for layer in old.config.plan] == [None, 4, 4, None]
    ids = tiny.ids(1, 200)
    assert torch.equal(old(ids).last_hidden_state, new(ids).last_hidden_state)


def test_C29_null_local_base_is_the_global_one():
    config = resolved(modernbert(**OLD | {"local_rope_theta": None}))
    assert {layer.rope_theta for layer in config.plan} == {160000.0}


def test_C29_the_base_changes_the_result():
    """The comparison above could not fail if the base had no influence."""
    torch.manual_seed(0)
    model = ef.from_config(modernbert(**OLD))
    torch.manual_seed(0)
    other = ef.from_config(modernbert(**OLD | {"local_rope_theta": 160000.0}))
    ids = tiny.ids(1, 40)
    assert not torch.equal(model(ids).last_hidden_state, other(ids).last_hidden_state)


def test_C29_unknown_keys_are_named_and_can_be_ignored():
    values = modernbert(**NEW, sliding_window_pattern=6)
    with pytest.raises(ef.ConfigError, match=r"sliding_window_pattern.*ignore_config_keys"):
        ef.from_config(values)
    assert (
        ef.from_config(values, ignore_config_keys=["sliding_window_pattern"]).config.num_layers == 4
    )


@pytest.mark.parametrize(
    "changes, named",
    {
        "neither base": ({"layer_types": NEW["layer_types"]}, "rope_parameters.*global_rope_theta"),
        "neither plan": (
            {"rope_parameters": NEW["rope_parameters"]},
            "layer_types.*global_attn_every_n_layers",
        ),
        "yarn": (
            NEW | {"rope_parameters": {FULL: {"rope_theta": 1e4, "rope_type": "yarn"}}},
            "rope_type.*yarn",
        ),
        "rope factor": (
            NEW | {"rope_parameters": {FULL: {"rope_theta": 1e4, "factor": 2.0}}},
            "rope_parameters.*factor",
        ),
        "rope_scaling": (NEW | {"rope_scaling": {"type": "linear"}}, "rope_scaling.*linear"),
        "base of one layer type": (
            NEW | {"rope_parameters": {FULL: {"rope_theta": 1e4}}},
            "sliding_attention",
        ),
        "layer type": (
            NEW | {"layer_types": [FULL, "chunked", FULL, FULL]},
            "layer_types.*chunked",
        ),
        "too few layer types": (NEW | {"layer_types": [FULL]}, "layer_types.*4"),
        "no window": (NEW | {"local_attention": None}, "local_attention"),
        "every 0": (OLD | {"global_attn_every_n_layers": 0}, "global_attn_every_n_layers.*0"),
        "negative base": (
            NEW | {"rope_parameters": {FULL: {"rope_theta": -1.0}, SLIDING: {"rope_theta": 1.0}}},
            "rope_theta.*-1",
        ),
    }.values(),
    ids=lambda value: value if isinstance(value, str) else "-",
)
def test_C29_bad_plans_are_refused_by_name(changes, named):
    with pytest.raises(ef.ConfigError, match=named):
        resolved(modernbert(**changes))


REFUSED = {
    "decoder": ("BE", {"is_decoder": True}, "is_decoder.*True"),
    "cross attention": ("BE", {"add_cross_attention": True}, "add_cross_attention.*True"),
    "relative positions": (
        "BE",
        {"position_embedding_type": "relative_key"},
        "position_embedding_type.*relative_key.*absolute",
    ),
    "relative positions in RoBERTa": (
        "RO",
        {"position_embedding_type": "relative_key_query"},
        "position_embedding_type.*relative_key_query",
    ),
    "activation": ("BE", {"hidden_act": "mish"}, "activation.*mish.*gelu"),
    "ModernBERT activation": ("MB", {"hidden_activation": "mish"}, "activation.*mish.*gelu"),
    "model type": ("BE", {"model_type": "t5"}, "model_type.*t5.*modernbert"),
    "no model type": ("BE", {"model_type": "absent"}, "model_type.*None.*bert"),
    "heads": ("BE", {"num_attention_heads": 5}, "hidden_size.*32.*5"),
    "odd rotary head width": (
        "MB",
        {"hidden_size": 20, "num_attention_heads": 4},
        "head width.*5.*even",
    ),
    "groups": ("AL", {"num_hidden_layers": 4, "num_hidden_groups": 3}, "num_hidden_groups.*3.*4"),
    "memory blocks": ("AL", {"num_memory_blocks": 2}, "num_memory_blocks.*2"),
    "pruned heads": ("BE", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
    "missing width": ("BE", {"hidden_size": "absent"}, "hidden_size.*missing.*bert"),
    "missing table": ("EL", {"max_position_embeddings": "absent"}, "max_position_embeddings"),
    "no layers": ("BE", {"num_hidden_layers": 0}, "num_hidden_layers"),
    "negative width": ("BE", {"intermediate_size": -3}, "intermediate_size.*-3.*positive"),
    "width as text": ("BE", {"vocab_size": "97"}, "vocab_size.*'97'.*integer"),
    "layers as text": ("BE", {"num_hidden_layers": "2"}, "num_hidden_layers.*'2'"),
    "dropout above 1": ("BE", {"hidden_dropout_prob": 1.5}, "dropout.*1.5"),
    "dropout as text": ("BE", {"hidden_dropout_prob": "0.1"}, "dropout.*'0.1'"),
    "eps as text": ("BE", {"layer_norm_eps": "1e-12"}, "eps.*'1e-12'.*positive"),
    "table as text": ("BE", {"max_position_embeddings": "42"}, "position.*'42'"),
    "pad id beyond the table": ("BE", {"pad_token_id": 97}, "pad_token_id.*97"),
    "problem type": ("BE", {"problem_type": "ranking"}, "problem_type.*ranking"),
    "pooling": ("MB", {"classifier_pooling": "max"}, "classifier_pooling.*max"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_is_refused_by_name(case):
    family, changes, named = REFUSED[case]
    with pytest.raises(ef.ConfigError, match=named):
        ef.from_config(tiny_values(family, **changes))


@pytest.mark.parametrize("family", tiny.EVERY_TYPE)
def test_unknown_keys_are_named_in_every_family(family):
    values = tiny_values(family, attention_sinks=4)
    with pytest.raises(ef.ConfigError, match="attention_sinks"):
        ef.from_config(values)
    ef.from_config(values, ignore_config_keys=("attention_sinks",))
