"""TextEncoder beside sentence-transformers, on the real model and on small folders made from it."""

import random
import shutil
import warnings

import numpy as np
import pytest
import torch

from encoder_fast.chunks import token_batches
from encoder_fast.errors import WeightsError
from encoder_fast.text import TextEncoder

CLOSE = 1e-5
ODD_TEXTS = [
    "",
    " ",
    "a",
    "naïve café, 中文字符, Ελληνικά, עברית, 🙂🙃",
    "tabs\tand\nnewlines\r\n and   spaces",
    "[MASK] [SEP] [CLS] written as text",
    "zero\u200bwidth and null \x00 and e\u0301",
    "UPPER case And lower",
]


def some_texts(count, seed=0):
    draw = random.Random(seed)
    words = ["the", "quick", "fox", "reads", "packed", "tokens", "while", "padding", "waits"]
    return [" ".join(draw.choices(words, k=draw.randint(1, 40))) for _ in range(count)]


TEXTS = [*some_texts(12), *ODD_TEXTS]


@pytest.fixture(scope="module")
def ours(minilm_folder):
    return TextEncoder(minilm_folder)


@pytest.fixture(scope="module")
def theirs(minilm_folder):
    st = pytest.importorskip("sentence_transformers")
    return st.SentenceTransformer(str(minilm_folder), device="cpu")


@pytest.fixture(scope="module")
def make_folder(theirs, tmp_path_factory):
    """Saves a SentenceTransformer of the real encoder and more modules -> model, folder."""
    from sentence_transformers import SentenceTransformer

    def make(*modules, **options):
        torch.manual_seed(1)
        model = SentenceTransformer(modules=[theirs[0], *modules], device="cpu", **options).eval()
        folder = tmp_path_factory.mktemp("st")
        model.save(str(folder), create_model_card=False)
        return model, folder

    return make


def assert_close(a, b):
    assert a.shape == b.shape
    assert np.abs(a - b).max() <= CLOSE


def test_equals_sentence_transformers(ours, theirs):
    got = ours.encode(TEXTS)
    assert got.dtype == np.float32 and got.shape == (len(TEXTS), 384)
    assert_close(got, theirs.encode(TEXTS))
    assert ours.dimension == 384
    assert ours.max_length == theirs.max_seq_length == 256
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-6)


def test_order_does_not_depend_on_batches_or_chunks(ours, monkeypatch):
    whole = ours.encode(TEXTS)
    assert_close(ours.encode(TEXTS, batch_tokens=64), whole)
    assert_close(ours.encode(TEXTS[::-1])[::-1], whole)
    assert_close(np.stack([ours.encode(one) for one in TEXTS[-9:]]), whole[-9:])
    monkeypatch.setattr("encoder_fast.chunks.CHUNK_TEXTS", 7)
    assert_close(ours.encode(TEXTS), whole)
    blocks = list(ours.stream(TEXTS))
    assert len(blocks) == -(-len(TEXTS) // 7)
    assert_close(np.concatenate([rows for rows, _ in blocks]), whole)
    assert sum(count for _, count in blocks) == sum(map(len, ours.tokenizer(TEXTS).ids))


def test_token_batches_keep_every_text_once_within_the_budget():
    draw = random.Random(0)
    lengths = [draw.randint(0, 90) for _ in range(200)] + [500]
    batches = token_batches(lengths, 100)
    assert sorted(index for rows in batches for index in rows) == list(range(201))
    assert all(len(rows) == 1 or sum(lengths[i] for i in rows) <= 100 for rows in batches)
    assert token_batches([], 100) == []


def test_single_text_empty_list_and_other_sequences(ours):
    one = ours.encode("a single text")
    assert one.shape == (384,)
    assert_close(ours.encode(("a single text",))[0], one)
    assert_close(ours.encode(np.array(["a single text"]))[0], one)
    assert_close(ours.encode(iter(["a single text"]))[0], one)
    assert ours.encode([]).shape == (0, 384)
    assert ours.encode([], truncate_dim=8, pooling=["cls", "max"]).shape == (0, 8)


def test_tensor_result_may_be_trained_on(ours):
    got = ours.encode(TEXTS[:3], convert_to_tensor=True)
    assert isinstance(got, torch.Tensor) and not got.is_inference()
    weight = torch.zeros(384, requires_grad=True)
    (got @ weight).sum().backward()
    assert_close(got.numpy(), ours.encode(TEXTS[:3]))


def test_training_mode_is_left_as_it_was_and_has_no_dropout(ours):
    expected = ours.encode(TEXTS[:3])
    ours.model.train()
    try:
        assert_close(ours.encode(TEXTS[:3]), expected)
        assert ours.model.training
    finally:
        ours.model.eval()


@pytest.mark.parametrize("name", ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean"])
def test_pooling_argument(ours, theirs, name, make_folder):
    from sentence_transformers.sentence_transformer.modules import Pooling

    model = type(theirs)(modules=[theirs[0], Pooling(384, name)], device="cpu")
    got = ours.encode(TEXTS, pooling=name, normalize=False)
    expected = model.encode(TEXTS)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=CLOSE)


def test_truncation_comes_before_normalising(ours, theirs):
    expected = theirs.encode(TEXTS, truncate_dim=64, normalize_embeddings=True)
    got = ours.encode(TEXTS, truncate_dim=64)
    assert_close(got, expected)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-6)


def test_long_texts_are_cut_with_one_warning(ours, theirs):
    texts = ["short", "word " * 400, "other " * 255, "also " * 254]
    with pytest.warns(UserWarning, match=r"2 of 4 texts are longer than 256 .* texts\[1\]") as seen:
        got = ours.encode(texts)
    assert len(seen) == 1
    assert_close(got, theirs.encode(texts))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.encode(texts[-1:])


def test_max_length(minilm_folder, theirs):
    encoder = TextEncoder(minilm_folder, max_length=12)
    assert encoder.max_length == 12
    try:
        theirs.max_seq_length = 12
        with pytest.warns(UserWarning, match="longer than 12"):
            assert_close(encoder.encode(TEXTS), theirs.encode(TEXTS))
    finally:
        theirs.max_seq_length = 256
    encoder.max_length = 512
    assert encoder.encode("word " * 510).shape == (384,)
    for wrong in (513, 2, None):
        with pytest.raises(ValueError, match="max_length is"):
            encoder.max_length = wrong
    with pytest.raises(TypeError, match="max_length"):
        encoder.max_length = 12.0


def test_modules_after_pooling(make_folder):
    from sentence_transformers.sentence_transformer import modules as st

    dense = st.Dense(768, 16, activation_function=torch.nn.GELU())
    model, folder = make_folder(
        st.Pooling(384, ("cls", "mean")), dense, st.LayerNorm(16), st.Dropout(0.5), st.Normalize()
    )
    encoder = TextEncoder(folder)
    assert encoder.dimension == 16 and encoder.recipe.pooling == ("cls", "mean")
    assert_close(encoder.encode(TEXTS), model.encode(TEXTS))
    assert encoder.encode(TEXTS[:2], truncate_dim=4).shape == (2, 4)
    with pytest.raises(ValueError, match="gives 1 vectors"):
        encoder.encode(TEXTS, pooling="mean")


def test_dense_with_residual_and_old_pickle_weights(make_folder):
    from sentence_transformers.sentence_transformer import modules as st

    model, folder = make_folder(st.Pooling(384, "mean"), st.Dense(384, 8, use_residual=True))
    weights = folder / "2_Dense" / "model.safetensors"
    torch.save(model[2].state_dict(), folder / "2_Dense" / "pytorch_model.bin")
    weights.unlink()
    encoder = TextEncoder(folder)
    np.testing.assert_allclose(encoder.encode(TEXTS), model.encode(TEXTS), atol=CLOSE)
    assert not encoder.recipe.normalize
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(b"not a pickle")
    with pytest.raises(WeightsError, match="2_Dense"):
        TextEncoder(folder)


@pytest.mark.parametrize("include", [True, False])
def test_prompts(make_folder, include):
    from sentence_transformers.sentence_transformer.modules import Pooling

    modes = ("mean", "cls", "weightedmean", "lasttoken", "max", "mean_sqrt_len_tokens")
    model, folder = make_folder(
        Pooling(384, modes, include_prompt=include),
        prompts={"query": "find the passage: ", "passage": "text: ", "task": "sort by topic, "},
        default_prompt_name="task",
    )
    encoder = TextEncoder(folder)
    texts = TEXTS[-10:]
    for method, options in (
        ("encode", {}),
        ("encode_query", {}),
        ("encode_document", {}),
        ("encode", {"prompt": "x y: "}),
        ("encode", {"prompt_name": "passage"}),
    ):
        expected = getattr(model, method)(texts, **options)
        got = getattr(encoder, method)(texts, **options)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=CLOSE)


def test_plain_transformers_folder_is_mean_pooled(minilm_folder, theirs, tmp_path):
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm_folder / name, tmp_path / name)
    encoder = TextEncoder(tmp_path)
    assert encoder.max_length == 512 and encoder.recipe.pooling == ("mean",)
    got = encoder.encode(TEXTS)
    assert np.abs(np.linalg.norm(got, axis=1) - 1).max() > 0.1
    assert_close(encoder.encode(TEXTS, normalize=True), theirs.encode(TEXTS))


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity(ours, theirs, name, monkeypatch):
    a, b = (torch.randn(n, 6) for n in (3, 4))
    monkeypatch.setattr(ours.recipe, "similarity", name)
    monkeypatch.setattr(theirs, "similarity_fn_name", name)
    expected = theirs.similarity(a, b)
    torch.testing.assert_close(ours.similarity(a, b), expected)
    got = ours.similarity(a[0].numpy(), b.numpy())
    assert isinstance(got, np.ndarray) and got.shape == (1, 4)
