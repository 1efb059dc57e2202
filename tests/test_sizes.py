"""Parameter counts of the published checkpoints, built without memory from their config.json."""

import pytest
import torch
import transformers

import encoder_fast as ef

BERT = {
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
ROBERTA = BERT | {
    "model_type": "roberta",
    "vocab_size": 50265,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
ALBERT = BERT | {
    "model_type": "albert",
    "vocab_size": 30000,
    "embedding_size": 128,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0,
    "attention_probs_dropout_prob": 0,
    "classifier_dropout_prob": 0.1,
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "gap_size": 0,
    "net_structure_type": 0,
    "num_memory_blocks": 0,
    "down_scale_factor": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
ELECTRA = BERT | {"model_type": "electra", "embedding_size": 768}
ELECTRA_SMALL = {
    "embedding_size": 128,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
MODERNBERT = {
    "model_type": "modernbert",
    "vocab_size": 50368,
    "hidden_size": 768,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "intermediate_size": 1152,
    "hidden_activation": "gelu",
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "decoder_bias": True,
    "classifier_bias": False,
    "classifier_pooling": "mean",
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "local_attention": 128,
    "pad_token_id": 50283,
    "cls_token_id": 50281,
    "sep_token_id": 50282,
    "bos_token_id": 50281,
    "eos_token_id": 50282,
    "position_embedding_type": "absolute",
    "layer_norm_eps": 1e-5,
}
MODERNBERT_LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "intermediate_size": 2624,
}

# config.json; parameters of the encoder, with its pooler where the family has one
PUBLISHED = {
    "bert-base-uncased": (BERT, 109_482_240),
    "bert-large-uncased": (BERT | LARGE, 335_141_888),
    "roberta-base": (ROBERTA, 124_645_632),
    "roberta-large": (ROBERTA | LARGE, 355_359_744),
    "albert-base-v2": (ALBERT, 11_683_584),
    "albert-large-v2": (ALBERT | LARGE, 17_683_968),
    "albert-xlarge-v2": (
        ALBERT | LARGE | {"hidden_size": 2048, "intermediate_size": 8192},
        58_724_864,
    ),
    "albert-xxlarge-v2": (
        ALBERT | {"hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 64},
        222_595_584,
    ),
    "electra-small-discriminator": (ELECTRA | ELECTRA_SMALL, 13_483_008),
    "electra-base-discriminator": (ELECTRA, 108_891_648),
    "electra-large-discriminator": (ELECTRA | LARGE | {"embedding_size": 1024}, 334_092_288),
    "electra-small-generator": (ELECTRA | ELECTRA_SMALL, 13_483_008),
    "electra-base-generator": (ELECTRA | ELECTRA_SMALL | {"embedding_size": 768}, 33_511_168),
    "modernbert-base": (MODERNBERT, 149_014_272),
    "modernbert-large": (MODERNBERT | MODERNBERT_LARGE, 394_781_696),
}

# the same with the masked-LM head, whose decoder is the token table
WITH_MASKED_LM = {
    "bert-base-uncased": 109_514_298,
    "roberta-base": 124_697_433,
    "albert-base-v2": 11_221_680,
    "electra-small-generator": 13_546_682,
    "modernbert-base": 149_655_232,
    "modernbert-large": 395_881_664,
}


def count(module) -> int:
    return sum(p.numel() for p in module.parameters())


def theirs(values: dict, kind: str):
    config = transformers.AutoConfig.for_model(**values)
    with torch.device("meta"):
        return getattr(transformers, kind).from_config(config)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_published_checkpoints(name):
    values, expected = PUBLISHED[name]
    ours = ef.from_config(values, device="meta")
    assert all(p.is_meta for p in ours.parameters())
    assert count(ours) == expected
    assert count(theirs(values, "AutoModel")) == expected


@pytest.mark.parametrize("name", WITH_MASKED_LM)
def test_parameters_with_the_masked_lm_head(name):
    values, expected = PUBLISHED[name][0], WITH_MASKED_LM[name]
    assert count(ef.from_config(values, head="masked_lm", device="meta")) == expected
    assert count(theirs(values, "AutoModelForMaskedLM")) == expected


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_of_published_checkpoints(name):
    """Head widths and layer plans that the tiny models do not have."""
    values, _ = PUBLISHED[name]
    config = ef.from_config(values, device="meta").config
    widths = {"albert-xlarge-v2": 128}
    assert config.head_width == widths.get(name, 64)
    assert config.num_layers == values["num_hidden_layers"]
    assert config.num_layer_weights == (1 if name.startswith("albert") else config.num_layers)
    lengths = {"roberta": 512, "modernbert": None}
    assert config.max_length == lengths.get(values["model_type"], 512)
    if name.startswith("modernbert"):
        full = [i for i, layer in enumerate(config.plan) if layer.half_window is None]
        assert full == list(range(0, config.num_layers, 3))
        assert {layer.half_window for layer in config.plan} == {None, 64}
        assert all(
            layer.rope_theta == (160000.0 if i in full else 10000.0)
            for i, layer in enumerate(config.plan)
        )
