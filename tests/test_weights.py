"""Weights: every legal spelling of a checkpoint on disk loads to the same bits."""

import json
import shutil
import warnings

import pytest
import tiny
import torch
import transformers
from safetensors.torch import load_file
from tiny import one_thread  # noqa: F401
from weight_files import hf_logits, rewrite_fixture, same  # noqa: F401

import encoder_fast as ef


def renamed(change):
    return lambda tensors: {change(name): value for name, value in tensors.items()}


def old_norms(name: str) -> str:
    if "LayerNorm" in name or "layer_norm" in name or "norm" in name.lower():
        return (
            name.removesuffix("weight") + "gamma" if name.endswith("weight") else name[:-4] + "beta"
        )
    return name


# ---- C50: names on disk


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_C50_gamma_and_beta(family, rewrite):
    folder = rewrite(family, "masked_lm", renamed(old_norms))
    assert any(name.endswith(".gamma") for name in load_file(folder / "model.safetensors"))
    assert same(ef.load(folder, "masked_lm"), tiny.our_model(family, "masked_lm"))


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."]
)
@pytest.mark.parametrize("head", [None, "masked_lm"])
def test_C50_wrapper_prefixes(prefix, head, rewrite):
    folder = rewrite("BE", head, renamed(lambda name: prefix + name))
    assert same(ef.load(folder, head), tiny.our_model("BE", head))


def test_C50_a_wrapper_inside_the_name(rewrite):
    """torch.compile of the backbone alone."""
    folder = rewrite(
        "MB", "masked_lm", renamed(lambda n: n.replace("model.", "model._orig_mod.", 1))
    )
    assert same(ef.load(folder, "masked_lm"), tiny.our_model("MB", "masked_lm"))


@pytest.mark.parametrize("family", ["BE", "RO", "AL", "EL"])
def test_C50_position_ids_of_old_files_are_not_weights(family, rewrite):
    prefix = load_file(tiny.saved(family, "masked_lm") / "model.safetensors")
    start = next(n for n in prefix if n.endswith("word_embeddings.weight")).removesuffix(
        "word_embeddings.weight"
    )
    extra = {
        f"{start}position_ids": torch.arange(42)[None],
        f"{start}token_type_ids": torch.zeros(1, 42).long(),
    }
    folder = rewrite(family, "masked_lm", lambda tensors: tensors | extra)
    assert same(ef.load(folder, "masked_lm"), tiny.our_model(family, "masked_lm"))


DECODERS = {
    "BE": (
        "cls.predictions.decoder",
        "bert.embeddings.word_embeddings.weight",
        "cls.predictions.bias",
    ),
    "RO": ("lm_head.decoder", "roberta.embeddings.word_embeddings.weight", "lm_head.bias"),
    "AL": ("predictions.decoder", "albert.embeddings.word_embeddings.weight", "predictions.bias"),
    "EL": ("generator_lm_head", "electra.embeddings.word_embeddings.weight", None),
    "MB": ("decoder", "model.embeddings.tok_embeddings.weight", None),
}


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("present", [True, False], ids=["on disk", "absent"])
def test_C50_a_tied_decoder_may_be_on_disk(family, present, rewrite):
    decoder, table, bias = DECODERS[family]

    def change(tensors):
        tensors.pop(f"{decoder}.weight", None)
        if bias:
            tensors.pop(f"{decoder}.bias", None)
        if present:
            tensors[f"{decoder}.weight"] = tensors[table]
            if bias:
                tensors[f"{decoder}.bias"] = tensors[bias]
        return tensors

    assert same(
        ef.load(rewrite(family, "masked_lm", change), "masked_lm"),
        tiny.our_model(family, "masked_lm"),
    )


@pytest.mark.parametrize("family", ["BE", "RO", "AL"])
def test_C50_a_bias_under_the_decoders_name_alone(family, rewrite):
    decoder, _, bias = DECODERS[family]

    def change(tensors):
        tensors[f"{decoder}.bias"] = tensors.pop(bias)
        return tensors

    assert same(
        ef.load(rewrite(family, "masked_lm", change), "masked_lm"),
        tiny.our_model(family, "masked_lm"),
    )


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_C50_an_untied_decoder_is_its_own_weight(family, tmp_path):
    changes = {"tie_word_embeddings": False}
    ours = tiny.our_model(family, "masked_lm", **changes)
    assert not torch.equal(ours.head.decoder.weight, ours.encoder.embeddings.token.weight)
    expected = hf_logits(tiny.hf_model(family, "masked_lm", **changes))["logits"]
    torch.testing.assert_close(ours(tiny.ids(2, 9)).logits, expected, rtol=0, atol=2e-5)
    ours.save_pretrained(tmp_path)
    assert same(ef.load(tmp_path, "masked_lm"), ours)
    hf_class = getattr(transformers, tiny.CLASS_PREFIX[family] + "ForMaskedLM")
    theirs = hf_logits(hf_class.from_pretrained(tmp_path, attn_implementation="eager").eval())
    torch.testing.assert_close(theirs["logits"], expected, rtol=0, atol=2e-5)
    with torch.no_grad():
        ours.encoder.embeddings.token.weight.mul_(2)
    assert not torch.equal(ours.head.decoder.weight, ours.encoder.embeddings.token.weight / 2)


@pytest.mark.parametrize("head", ["masked_lm", "question_answering"])
def test_C50_a_new_head_without_a_choice_of_outputs(head):
    folder = tiny.saved("BE")
    with pytest.warns(UserWarning, match="new head: .*random") as caught:
        model = ef.load(folder, head, new_head=True)
    assert caught[0].filename == __file__
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("head", ["masked_lm", "pretraining", "question_answering", "embedding"])
def test_num_labels_is_refused_where_it_means_nothing(head):
    with pytest.raises(ValueError, match=f"num_labels: got 5, but head '{head}'"):
        ef.load(tiny.saved("BE"), head, num_labels=5)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_C50_a_backbone_file_in_a_head(family):
    folder = tiny.saved(family)
    with pytest.raises(ef.WeightsError, match=r"missing .*(classifier|head).*new_head=True"):
        ef.load(folder, "token_classification")
    with pytest.warns(UserWarning, match=r"new head: .*head\.out\.weight.*random"):
        model = ef.load(folder, "token_classification", num_labels=5)
    out = model(tiny.ids(2, 9))
    assert out.logits.shape == (2, 9, 5)
    assert torch.equal(
        out.last_hidden_state, tiny.our_model(family)(tiny.ids(2, 9)).last_hidden_state
    )
    assert all(p.isfinite().all() for p in model.parameters())
    assert model.head.out.bias.eq(0).all() and model.head.out.weight.std() > 0.01


@pytest.mark.parametrize("family, head", tiny.EVERY_HEAD)
def test_C50_a_head_file_in_a_backbone(family, head):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ef.load(tiny.saved(family, head))
    x = tiny.our_model(family, head)(tiny.ids(2, 9)).last_hidden_state
    assert torch.equal(model(tiny.ids(2, 9)).last_hidden_state, x)


def test_C50_a_classifier_of_another_size_is_refused():
    folder = tiny.saved("BE", "sequence_classification")
    with pytest.raises(ef.WeightsError, match=r"classifier\.\w+ has shape.*2.*7"):
        ef.load(folder, "sequence_classification", num_labels=7)


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("format", ["safetensors", "bin"])
def test_C50_sharded_files(family, format, tmp_path):
    model = tiny.hf_model(family, "masked_lm")
    if format == "safetensors":
        model.save_pretrained(tmp_path, max_shard_size="8KB")
        assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    else:
        tensors = load_file(tiny.saved(family, "masked_lm") / "model.safetensors")
        shutil.copy(tiny.saved(family, "masked_lm") / "config.json", tmp_path)
        shards = {name: f"pytorch_model-{i % 3}.bin" for i, name in enumerate(tensors)}
        for shard in set(shards.values()):
            torch.save({n: t for n, t in tensors.items() if shards[n] == shard}, tmp_path / shard)
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": shards}))
    assert same(ef.load(tmp_path, "masked_lm"), tiny.our_model(family, "masked_lm"))


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_C50_the_files_dtype_is_kept_or_cast(stored, rewrite):
    folder = rewrite("BE", None, lambda t: {name: value.to(stored) for name, value in t.items()})
    assert {p.dtype for p in ef.load(folder).parameters()} == {stored}
    wide = ef.load(folder, dtype="float32")
    assert {p.dtype for p in wide.parameters()} == {torch.float32}
    expected = tiny.our_model("BE").state_dict()
    for name, value in wide.state_dict().items():
        assert torch.equal(value, expected[name].to(stored).float()), name


def test_C50_a_pickle_of_tensors_loads(tmp_path):
    source = tiny.saved("BE", "masked_lm")
    shutil.copy(source / "config.json", tmp_path)
    torch.save(load_file(source / "model.safetensors"), tmp_path / "pytorch_model.bin")
    assert same(ef.load(tmp_path, "masked_lm"), tiny.our_model("BE", "masked_lm"))
