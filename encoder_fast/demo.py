"""`python -m encoder_fast.demo`: a real model, real texts, a search, and an honest comparison.

Embeds the docstrings of Python's standard library, answers five questions with them, shows that the
vectors equal those of transformers, and times both engines in one interleaved run.
"""

import argparse
import statistics
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from encoder_fast.commands import tables
from encoder_fast.demo_compare import STEADY, Peer, difference, median_ratio, race
from encoder_fast.demo_model import minilm_folder
from encoder_fast.demo_passages import docstrings
from encoder_fast.text import TextEncoder

QUERIES = (
    "compress data so that it takes less space",
    "measure how long a small piece of code takes to run",
    "wait for several tasks to finish at the same time",
    "read a date written as text",
    "show the differences between two lists of lines",
)
TOP = 3
# float32 on both sides, so only the order of sums differs: about 1e-7 in numbers below 0.3.
CLOSE = 1e-5


def main(argv: list[str] | None = None) -> int:
    """Returns 0, or 1 where the vectors differ from those of transformers."""
    args = _arguments(argv)
    folder = minilm_folder()
    encoder = TextEncoder(folder)
    say(f"model     {encoder}")
    passages = docstrings(args.passages)
    vectors_NW = embed(encoder, [text for _, text in passages])
    search(encoder, passages, vectors_NW)
    peer = _peer(folder, encoder.max_length)
    if peer is None:
        return 0
    equal = compare(encoder, peer, passages, vectors_NW, args.compared)
    speed(encoder, peer, passages, args)
    return 0 if equal else 1


def embed(encoder: TextEncoder, texts: list[str]) -> np.ndarray:
    """Embeds the passages and says how fast. -> (N, W) float32"""
    start = time.perf_counter()
    tokens, blocks = 0, []
    with warnings.catch_warnings():
        # Long docstrings are cut at 256 tokens, as this model's folder says; told below.
        warnings.simplefilter("ignore")
        for rows_CW, count in encoder.stream(texts):
            tokens += count
            blocks.append(rows_CW)
    seconds = time.perf_counter() - start
    say(
        f"passages  {len(texts):,} docstrings of the standard library, {tokens:,} tokens "
        f"(cut at {encoder.max_length}), embedded in {seconds:.1f} s"
    )
    return np.concatenate(blocks)


def search(encoder: TextEncoder, passages: list[tuple], vectors_NW: np.ndarray) -> None:
    """Prints the best passages for each query."""
    scores_QN = encoder.similarity(encoder.encode_query(list(QUERIES)), vectors_NW)
    for query, scores_N in zip(QUERIES, scores_QN, strict=True):
        best = scores_N.argsort()[::-1][:TOP]
        rows = [
            (f"{scores_N[index]:.3f}", passages[index][0], _first_line(passages[index][1]))
            for index in best
        ]
        say_table(f'"{query}"', ("score", "where", "what it says"), rows)


def compare(
    encoder: TextEncoder, peer: Peer, passages: list[tuple], vectors_NW: np.ndarray, count: int
) -> bool:
    """Prints how far our vectors are from transformers' -> whether they are equal in float32."""
    step = max(1, len(passages) // count)
    rows = range(0, len(passages), step)
    theirs_NW = peer.encode([passages[row][1] for row in rows])
    found = difference(vectors_NW[list(rows)], theirs_NW)
    equal = found.largest <= CLOSE
    say(
        f"equality  {found.texts} passages beside transformers: largest difference "
        f"{found.largest:.1e}, smallest cosine {found.smallest_cosine:.7f}: "
        f"{'equal' if equal else 'NOT EQUAL'}"
    )
    return equal


def speed(
    encoder: TextEncoder, peer: Peer, passages: list[tuple], args: argparse.Namespace
) -> None:
    """Prints real (non-padding) tokens per second of both engines, from interleaved rounds."""
    step = max(1, len(passages) // args.raced)
    tokens = encoder.tokenizer([text for _, text in passages[::step]][: args.raced])
    count = sum(map(len, tokens.ids))
    rounds, rows = [], []
    start = time.perf_counter()
    for one in race(encoder, peer, tokens, args.rounds):
        rounds.append(one)
        verdict = f"{one.ratio:.2f}x" if one.steady else "no ratio"
        spread = max(one.controls) / min(one.controls)
        rows.append(
            (
                len(rounds),
                f"{count / one.ours:,.0f}",
                f"{count / one.theirs:,.0f}",
                verdict,
                f"{spread:.2f}",
            )
        )
        if time.perf_counter() - start > args.seconds:
            break
    say_table(
        f"speed: {len(tokens):,} passages, {count:,} real tokens, float32, "
        f"{torch.get_num_threads()} threads, cpu",
        ("round", "encoder_fast tokens/s", "transformers tokens/s", "ratio", "control spread"),
        rows,
    )
    padded = peer.computed_tokens(tokens.ids)
    say(f"padding   transformers computes {padded:,} tokens for these {count:,}, encoder_fast none")
    ours = count / statistics.median(one.ours for one in rounds)
    theirs = count / statistics.median(one.theirs for one in rounds)
    ratio = median_ratio(rounds)
    say(f"medians   encoder_fast {ours:,.0f}, transformers {theirs:,.0f} real tokens/s")
    steady = sum(one.steady for one in rounds)
    if ratio is None:
        say(f"ratio     none: in every round the same matmul changed by more than {STEADY}x")
    else:
        say(f"ratio     {ratio:.2f}x, the median of {steady} steady rounds of {len(rounds)}")


def say(text: str) -> None:
    """One line; the first word bold on a terminal."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.text import Text
        except ImportError:
            pass
        else:
            line = Text(text)
            line.stylize("bold cyan", 0, len(text.split(" ")[0]))
            Console().print(line)
            return
    print(text, flush=True)


def say_table(title: str, header: tuple, rows: list[tuple]) -> None:
    """A table with a title."""
    print()
    tables.show(title, header, rows)


def _peer(folder: Path, max_length: int) -> Peer | None:
    try:
        return Peer(folder, max_length)
    except ImportError as error:
        say(f"transformers is not here ({error}), so there is nothing to compare with")
        say("get it with: pip install 'encoder-fast[hf]'")
        return None


def _first_line(text: str) -> str:
    line = " ".join(text.split("\n\n")[0].split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) == 0:
        raise argparse.ArgumentTypeError(f"got {word!r}, a positive whole number needed")
    return int(word)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m encoder_fast.demo",
        description=__doc__,
        epilog="example: python -m encoder_fast.demo --rounds 9",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--passages", type=_count, default=2000, help="passages to search, at most")
    add("--compared", type=_count, default=300, help="passages compared with transformers")
    add("--raced", type=_count, default=256, help="passages in each timed block")
    add("--rounds", type=_count, default=7, help="timed rounds, at most")
    add("--seconds", type=float, default=75, help="no new round after so long")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
