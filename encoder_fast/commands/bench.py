"""`encoder-fast bench`: the benchmark harness, which is installed as encoder_fast.benchmarks."""

import argparse

from encoder_fast.benchmarks import run as harness


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = harness.__doc__
    parser.epilog = "example: encoder-fast bench models --models minilm-l6 --workloads search-log"
    harness.add_arguments(parser)


run = harness.run
