"""The tokenizer of a folder beside transformers', and what its files may and may not do."""

import json
import shutil

import pytest

from encoder_fast.errors import ConfigError
from encoder_fast.tokens import Tokenizer

TEXTS = ["", "Hello, wörld!", "[MASK] 中文 🙂 \x00 e\u0301", "word " * 40]
PAIRS = [("a question", "an answer"), ("", ""), ("one", "")]


@pytest.fixture
def folder(minilm_folder, tmp_path):
    """A copy of the real tokenizer files that a test may change."""
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(minilm_folder / name, tmp_path / name)
    return tmp_path


@pytest.fixture(scope="module")
def theirs(minilm_folder):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(minilm_folder))


def change(folder, **settings):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def test_equals_transformers_and_never_pads(folder, theirs):
    tokens = Tokenizer(folder)(TEXTS)
    assert tokens.ids == theirs(TEXTS)["input_ids"]
    assert tokens.type_ids is None and tokens.truncated == () and len(tokens) == len(TEXTS)


def test_pairs_have_token_types(folder, theirs):
    expected = theirs([list(pair) for pair in PAIRS])
    tokens = Tokenizer(folder)(PAIRS)
    assert tokens.ids == expected["input_ids"]
    assert tokens.type_ids == expected["token_type_ids"]
    mixed = Tokenizer(folder)(["alone", PAIRS[0]])
    assert mixed.type_ids[0] == [0, 0, 0] and 1 in mixed.type_ids[1]
    change(folder, model_input_names=["input_ids", "attention_mask"])
    assert Tokenizer(folder)(PAIRS).type_ids is None


def test_truncation_is_reported(folder, theirs):
    tokenizer = Tokenizer(folder, max_length=6)
    tokens = tokenizer([*TEXTS, ("a b c d", "e f")])
    assert tokens.truncated == (2, 3, 4)
    assert tokens.ids[:4] == theirs(TEXTS, truncation=True, max_length=6)["input_ids"]
    assert len(tokens.ids[4]) == 6 and tokens.type_ids[4].count(1) > 0
    with pytest.raises(ValueError, match=r"texts\[1\] is a pair; max_length 3"):
        Tokenizer(folder, max_length=3)(["a", ("b", "c")])


def test_left_truncation(folder, theirs):
    change(folder, truncation_side="left")
    ids = Tokenizer(folder, max_length=5)(["one two three four five"]).ids[0]
    assert ids == theirs("three four five")["input_ids"]
    change(folder, truncation_side="middle")
    with pytest.raises(ConfigError, match="truncation_side 'middle'"):
        Tokenizer(folder)


def test_the_limit_is_the_smallest_that_is_known(folder):
    assert Tokenizer(folder).max_length == 512
    assert Tokenizer(folder, table_length=300).max_length == 300
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    assert Tokenizer(folder, table_length=300).max_length == 128
    assert Tokenizer(folder, max_length=200, table_length=300).max_length == 200
    (folder / "sentence_bert_config.json").unlink()
    change(folder, model_max_length=int(1e30))
    assert Tokenizer(folder).max_length is None
    assert Tokenizer(folder, table_length=40).max_length == 40
    assert len(Tokenizer(folder)(["word " * 900]).ids[0]) == 902


def test_word_piece_folder_without_tokenizer_json(folder):
    expected = Tokenizer(folder)([*TEXTS, *PAIRS])
    (folder / "tokenizer.json").unlink()
    got = Tokenizer(folder)([*TEXTS, *PAIRS])
    assert got.ids == expected.ids and got.type_ids == expected.type_ids
    change(folder, do_lower_case=False)
    assert Tokenizer(folder)(["hello"]).ids != Tokenizer(folder)(["Hello"]).ids


def test_missing_or_broken_files_are_named(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is not a readable tokenizer"):
        Tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").unlink()
    with pytest.raises(ConfigError, match=r"there is no .*tokenizer\.json; write it with"):
        Tokenizer(folder)
    (folder / "tokenizer_config.json").write_text("[")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json is not valid JSON"):
        Tokenizer(folder)


def test_lower_case_settings(folder):
    change(folder, do_lower_case=False)
    cased = Tokenizer(folder)
    assert cased(["Hello"]).ids != cased(["hello"]).ids
    lower = Tokenizer(folder, lower_case=True)
    assert lower(["Hello"]).ids == lower(["hello"]).ids == cased(["hello"]).ids


def test_prompt_length_and_decode(folder):
    tokenizer = Tokenizer(folder)
    assert tokenizer.prompt_length("") == 1
    assert tokenizer.prompt_length("query: ") == 3
    assert tokenizer.decode(tokenizer(["hello world"]).ids[0]) == "hello world"
    assert "max_length=512" in repr(tokenizer)
