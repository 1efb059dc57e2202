"""The demo: real passages, the right answers, and a comparison that refuses noisy rounds."""

import sys

import numpy as np
import pytest

from encoder_fast import demo
from encoder_fast.demo_compare import Round, difference, median_ratio
from encoder_fast.demo_passages import docstrings


@pytest.fixture(scope="module")
def passages():
    return docstrings()


def test_passages_are_many_real_and_the_same_each_time(passages):
    assert len(passages) >= 2000
    names, texts = zip(*passages, strict=True)
    assert len(set(texts)) == len(texts)
    assert "textwrap.dedent" in names and "heapq" in names
    assert min(map(len, texts)) >= 60
    assert "test" not in {name.split(".")[0] for name in names}
    some = docstrings(50)
    assert len(some) == 50 and set(some) <= set(passages)
    assert docstrings(50) == some


def test_demo_end_to_end(capsys):
    pytest.importorskip("transformers")
    argv = ["--passages", "120", "--compared", "40", "--raced", "10", "--rounds", "2"]
    assert demo.main(argv) == 0
    said = capsys.readouterr().out
    assert "passages  120 docstrings" in said
    for query in demo.QUERIES:
        assert f'"{query}"' in said
    assert "40 passages beside transformers" in said and ": equal\n" in said
    assert "real tokens/s" in said and "\nratio " in said
    assert "\x1b" not in said


def test_demo_searches_without_transformers(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert demo.main(["--passages", "60"]) == 0
    said = capsys.readouterr().out
    assert demo.QUERIES[0] in said
    assert "transformers is not here" in said and "pip install 'encoder-fast[hf]'" in said


def test_demo_fails_where_vectors_differ(capsys, monkeypatch):
    class Peer:
        def encode(self, texts):
            return np.ones((len(texts), 384)) / 384**0.5

    monkeypatch.setattr(demo, "_peer", lambda *_: Peer())
    monkeypatch.setattr(demo, "speed", lambda *_: None)
    assert demo.main(["--passages", "30"]) == 1
    assert "NOT EQUAL" in capsys.readouterr().out


def test_difference():
    a = np.array([[1.0, 0.0], [0.0, 1.0]])
    found = difference(a, np.array([[1.0, 0.0], [0.6, 0.8]]))
    assert found.texts == 2
    assert found.largest == pytest.approx(0.6)
    assert found.smallest_cosine == pytest.approx(0.8)


def test_only_steady_rounds_count():
    steady = Round(ours=1.0, theirs=2.0, controls=(1.0, 1.1, 1.0, 1.4))
    noisy = Round(ours=1.0, theirs=9.0, controls=(1.0, 1.0, 1.0, 1.6))
    assert steady.steady and not noisy.steady
    assert median_ratio([noisy, steady, noisy]) == 2.0
    assert median_ratio([noisy]) is None


@pytest.mark.parametrize("words", [["--passages", "0"], ["--rounds", "-1"], ["--raced", "x"]])
def test_counts_are_positive(words, capsys):
    with pytest.raises(SystemExit) as stop:
        demo.main(words)
    assert stop.value.code == 2
    assert "a positive whole number needed" in capsys.readouterr().err
