"""What `TextEncoder` refuses, by name and before any work."""

import numpy as np
import pytest

from encoder_fast import text as text_module
from encoder_fast.text import TextEncoder


@pytest.fixture(scope="module")
def ours(minilm_folder):
    return TextEncoder(minilm_folder)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"texts": ["a", 3]}, TypeError, r"texts\[1\] must be a string.*int 3"),
        ({"texts": [None]}, TypeError, r"texts\[0\]"),
        ({"texts": 7}, TypeError, "texts must be a string or a list"),
        ({"texts": b"bytes"}, TypeError, "got bytes"),
        ({"texts": ["a", "b\ud800"]}, ValueError, r"texts\[1\] is not valid Unicode"),
        ({"texts": ["a"], "pooling": "median"}, ValueError, "median.*allowed: cls"),
        ({"texts": ["a"], "truncate_dim": 0}, ValueError, "truncate_dim is 0; allowed: 1 to 384"),
        ({"texts": ["a"], "truncate_dim": 385}, ValueError, "truncate_dim is 385"),
        ({"texts": ["a"], "truncate_dim": 1.5}, TypeError, "truncate_dim"),
        ({"texts": ["a"], "batch_tokens": 0}, ValueError, "batch_tokens is 0"),
        ({"texts": ["a"], "prompt_name": "q"}, ValueError, "prompt_name 'q'.*'query', 'document'"),
        ({"texts": ["a"], "prompt": "p", "prompt_name": "query"}, ValueError, "not both"),
        ({"texts": ["a"], "prompt": 3}, TypeError, "prompt must be a string"),
        ({"texts": ["a"], "prompt_name": ["q"]}, TypeError, "prompt_name must be a string"),
        ({"texts": ["a"], "batch_tokens": None}, TypeError, "batch_tokens must be a whole number"),
        ({"texts": ["a"], "pooling": 5}, ValueError, "pooling must be a name or several, got 5"),
        ({"texts": ["a"], "normalize": "no"}, TypeError, "normalize must be True, False or None"),
        ({"texts": ["a"], "progress": "x"}, TypeError, "progress must be True, False or None"),
        ({"texts": np.array("a")}, TypeError, "texts must be a string or a list"),
    ],
)
def test_bad_arguments_are_named_before_any_work(ours, monkeypatch, arguments, error, words):
    monkeypatch.setattr(text_module, "Batch", None)
    with pytest.raises(error, match=words):
        ours.encode(**arguments)


def test_stream_checks_its_arguments_when_called(ours):
    with pytest.raises(ValueError, match="batch_tokens is 0"):
        ours.stream(["a"], batch_tokens=0)


def test_numpy_integers_are_whole_numbers(ours):
    got = ours.encode(["a"], truncate_dim=np.int64(8), batch_tokens=np.int32(9))
    assert got.shape == (1, 8)


def test_what_is_no_vector_and_what_are_no_tokens_is_refused(ours):
    with pytest.raises(ValueError, match=r"shapes \(2, 3\) and \(2, 4\)"):
        ours.similarity(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(TypeError, match="tokens must be Tokens, got list"):
        ours.encode_tokens([[101, 102]])
    with pytest.raises(TypeError, match="texts must be a list, got str"):
        ours.tokenizer("a")


@pytest.mark.parametrize("device", ["nope", "meta", "cpu:x"])
def test_a_device_that_is_not_here_is_refused(minilm_folder, device):
    with pytest.raises(ValueError, match=f"device: got '{device}', not usable here"):
        TextEncoder(minilm_folder, device=device)
