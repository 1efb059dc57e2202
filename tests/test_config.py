"""config.json: every spelling gives one plan, and what is not understood is refused by name."""

import json

import hub_configs as hub
import pytest
import tiny
import torch
from bad_configs import REFUSED
from tiny import one_thread  # noqa: F401

import encoder_fast as ef
from encoder_fast.architectures import architecture_of
from encoder_fast.config_json import Settings

# Text, then what a wrong default would get wrong.
HUB = {
    "bert-base-uncased": (hub.BERT_BASE, {"norm_eps": 1e-12, "max_length": 512, "type_rows": 2}),
    "bert-base-NER": (hub.BERT_BASE_NER, {"num_labels": 9, "vocab_size": 28996}),
    "star-rating": (hub.STAR_RATING, {"num_labels": 5, "vocab_size": 105879}),
    "MiniLM": (hub.MINILM, {"hidden_size": 384, "num_layers": 6, "head_width": 32}),
    "ms-marco-MiniLM": (
        hub.MS_MARCO_MINILM,
        {"num_labels": 1, "score_activation": "torch.nn.modules.linear.Identity"},
    ),
    "bge-small": (hub.BGE_SMALL, {"num_layers": 12, "classifier_dropout": 0.1}),
    "roberta-base": (hub.ROBERTA_BASE, {"norm_eps": 1e-5, "max_length": 512, "position_offset": 1}),
    "twitter-roberta": (hub.TWITTER_SENTIMENT, {"num_labels": 3, "type_rows": 1}),
    "roberta-squad2": (hub.ROBERTA_SQUAD2, {"num_labels": 2, "max_length": 512}),
    "xlm-roberta-base": (hub.XLM_ROBERTA_BASE, {"vocab_size": 250002, "max_length": 512}),
    "multilingual-e5": (hub.MULTILINGUAL_E5, {"pad_token_id": 1, "classifier_dropout": 0.1}),
    "camembert-base": (hub.CAMEMBERT_BASE, {"type_rows": 1, "max_length": 512}),
    "albert-base-v2": (hub.ALBERT_BASE_V2, {"activation": "gelu_new", "num_layer_weights": 1}),
    "albert-xxlarge-v2": (hub.ALBERT_XXLARGE_V2, {"activation": "gelu", "embedding_size": 128}),
    "electra-small": (hub.ELECTRA_SMALL, {"project_embeddings": True, "embedding_size": 128}),
    "electra-base": (hub.ELECTRA_BASE, {"project_embeddings": False, "embedding_size": 768}),
    "electra-generator": (
        hub.ELECTRA_GENERATOR,
        {"project_embeddings": True, "embedding_size": 768},
    ),
    "ModernBERT-base": (
        hub.MODERNBERT_BASE,
        {"max_length": None, "half_windows": (None, 64), "classifier_pooling": "mean"},
    ),
    "ModernBERT-large": (hub.MODERNBERT_LARGE, {"num_layers": 28, "head_width": 64}),
    "gte-modernbert": (hub.GTE_MODERNBERT, {"num_layers": 22, "pad_token_id": 50283}),
    "mmBERT-base": (hub.MMBERT_BASE, {"vocab_size": 256000, "pad_token_id": 0}),
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
    plan = resolved(json.loads(hub.MODERNBERT_BASE)).plan
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
        "yarn for all layers": (
            NEW | {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
            "rope_parameters.*yarn.*full_attention.*sliding_attention",
        ),
        "bases of all layers": (
            NEW | {"rope_parameters": NEW["rope_parameters"] | {"rope_theta": 1e4}},
            "rope_parameters.*rope_theta.*only 'full_attention'",
        ),
        "bases as a list": (NEW | {"rope_parameters": [1e4, 1e4]}, "rope_parameters.*an object"),
        "one base as a number": (
            NEW | {"rope_parameters": {FULL: 1e4, SLIDING: {"rope_theta": 1e4}}},
            r"rope_parameters\[full_attention\].*10000.*an object",
        ),
        "base as text": (
            NEW | {"rope_parameters": {FULL: {"rope_theta": "1e4"}}},
            r"rope_parameters\[full_attention\] rope_theta.*'1e4'.*positive number",
        ),
        "old base as text": (OLD | {"global_rope_theta": "1e4"}, "global_rope_theta.*'1e4'"),
        "old base as a list": (OLD | {"local_rope_theta": [1e4]}, "local_rope_theta.*1000"),
        "old base zero": (OLD | {"global_rope_theta": 0}, "global_rope_theta.*0.*positive"),
        "layer types as text": (NEW | {"layer_types": FULL}, "layer_types.*a list of 4"),
        "layer types of lists": (NEW | {"layer_types": [[FULL]] * 4}, "layer_types.*a list of 4"),
        "every as text": (
            OLD | {"global_attn_every_n_layers": "3"},
            "global_attn_every_n_layers.*'3'",
        ),
        "window as text": (OLD | {"local_attention": "8"}, "local_attention.*'8'"),
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


@pytest.mark.parametrize("family", tiny.EVERY_TYPE)
def test_unknown_keys_that_are_null_change_nothing(family):
    values = tiny_values(family)
    nulls = {"attention_sinks": None, "quantization_config": None, "is_causal": None}
    assert resolved(values | nulls) == resolved(values)
    assert resolved(values | {"is_causal": False, "causal_mask": False}) == resolved(values)


@pytest.mark.parametrize("family", tiny.EVERY_TYPE)
def test_an_absent_pad_id_is_the_default_of_the_family(family):
    default = type(tiny.hf_config(family))().pad_token_id
    values = tiny_values(family, pad_token_id="absent", vocab_size=60000)
    config = resolved(values)
    assert config.pad_token_id == default
    assert config.position_offset == (default if family in ("RO", "XL", "CA") else None)


@pytest.mark.parametrize("family", [f for f in tiny.FAMILIES if f != "RO"])
def test_a_null_pad_id_is_none(family):
    assert resolved(tiny_values(family, pad_token_id=None)).pad_token_id is None


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("value, tied", [(None, True), ("absent", True), (True, True), (False, 0)])
def test_words_are_scored_by_the_token_table_unless_false(family, value, tied):
    values = tiny_values(family, tie_word_embeddings=value)
    model = ef.from_config(values, head="masked_lm")
    assert model.config.tie_word_embeddings == tied
    assert (model.head.decoder is None) == tied


ODD = (None, True, "2", "", -1, 0, 2.5, float("nan"), float("inf"), [], [1], {}, {"a": 1}, [[]])


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_any_value_of_any_setting_is_understood_or_refused(family):
    values = tiny_values(family)
    keys = [*values, "sentence_transformers", "quantization_config", "global_rope_theta"]
    for key in keys:
        for odd in ODD:
            try:
                config = resolved(values | {key: odd})
                assert config.id2label and config.max_length != 0
            except ef.ConfigError as error:
                assert "\n" not in str(error)
            except Exception as error:
                raise AssertionError(f"{key}={odd!r}: {type(error).__name__}: {error}") from error
