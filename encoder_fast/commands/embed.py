"""`encoder-fast embed`: a file of texts -> a file of vectors, whole or not at all."""

import argparse
import json
import sys
import time
from pathlib import Path

from encoder_fast import settings
from encoder_fast.commands import readers, writers

DTYPES = ("auto", "float32", "bfloat16", "float16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Turns each line of a text file, or a field of each JSONL record, into a vector.\n"
        "The output has one row per text, in the same order, and appears whole or not at all."
    )
    parser.epilog = (
        "examples:\n"
        "  encoder-fast embed notes.txt --model ./all-MiniLM-L6-v2 --output notes.npy\n"
        "  encoder-fast embed docs.jsonl --field body --id-field doc --model ./m -o docs.parquet\n"
        "  cut -f2 rows.tsv | encoder-fast embed - --model ./m -o rows.npy --dtype auto"
    )
    default = f"default: ENCODER_FAST_BATCH_TOKENS, or {settings.BATCH_TOKENS}"
    add = parser.add_argument
    add("input", help="text file (one text per line), .jsonl file, or - for standard input")
    add("--model", "-m", required=True, help="model folder, or hub id")
    add("--output", "-o", required=True, help="file to write: .npy or .parquet")
    add("--field", help="read JSONL and take this field of each record (.jsonl: default text)")
    add("--id-field", help="JSONL field for the id column of a .parquet (default: the row number)")
    add("--with-text", action="store_true", help="keep the texts in a .parquet")
    add("--dtype", choices=DTYPES, help="default: the model's own; auto: the fastest here")
    add("--device", default="auto", help="auto (default), cpu, cuda, cuda:1, ...")
    add("--backend", default="auto", help="auto (default), or the one that must run every op")
    add("--precision", choices=("int8",), help="linear layers in int8, on a CPU; see verify")
    add("--pooling", help="cls, mean, max, weighted, last, mean_sqrt_len; or several, as cls+mean")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--normalize", action="store_true", default=None, help="scale to length 1")
    group.add_argument("--no-normalize", dest="normalize", action="store_false", help="do not")
    add("--truncate-dim", type=int, help="keep the first numbers of each vector (Matryoshka)")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--prompt", help="text put before each text")
    group.add_argument("--prompt-name", help="name of one of the model's prompts")
    add("--max-length", type=int, help="longest text in tokens (default: the model's)")
    add("--batch-tokens", type=int, help=f"tokens in one forward pass ({default})")
    add("--json", action="store_true", help="print the final numbers as JSON on standard output")


def run(args: argparse.Namespace) -> int:
    writer = writers.choose(args.output)
    _check_columns(args)
    texts, ids = readers.read_texts(args.input, args.field, args.id_field)
    encoder = _encoder(args)
    start = time.perf_counter()
    tokens = 0
    options = _options(args)

    def rows():
        nonlocal tokens
        for rows_CW, count in encoder.stream(texts, **options):
            tokens += count
            yield rows_CW

    width = encoder.width(options["pooling"], options["truncate_dim"])
    extra = {"id": ids, "text": texts if args.with_text else None}
    writer(args.output, rows(), len(texts), width, extra)
    _report(args, encoder, len(texts), tokens, width, time.perf_counter() - start)
    return 0


def _check_columns(args: argparse.Namespace) -> None:
    """An .npy holds vectors only, so options that ask for more would be lost."""
    for name, asked in (("--id-field", args.id_field is not None), ("--with-text", args.with_text)):
        if asked and Path(args.output).suffix.lower() != ".parquet":
            raise ValueError(f"{name} needs a .parquet --output, got {args.output!r}")


def _options(args: argparse.Namespace) -> dict:
    return {
        "pooling": None if args.pooling is None else args.pooling.split("+"),
        "normalize": args.normalize,
        "truncate_dim": args.truncate_dim,
        "batch_tokens": settings.batch_tokens() if args.batch_tokens is None else args.batch_tokens,
        "prompt": args.prompt,
        "prompt_name": args.prompt_name,
    }


def _encoder(args: argparse.Namespace):
    import torch

    from encoder_fast.hardware import fastest_dtype, usable_device
    from encoder_fast.text import TextEncoder

    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = usable_device(device)
    dtype = args.dtype
    if dtype == "auto":
        dtype, reason = fastest_dtype(device)
        print(f"dtype {dtype}: {reason}", file=sys.stderr)
    return TextEncoder(
        args.model,
        dtype=dtype and getattr(torch, dtype),
        device=device,
        backend=args.backend,
        max_length=args.max_length,
        precision=args.precision,
    )


def _report(args, encoder, texts, tokens, width, seconds):
    from encoder_fast.model import backends

    numbers = {
        "output": str(Path(args.output)),
        "texts": texts,
        "tokens": tokens,
        "dimension": width,
        "seconds": round(seconds, 3),
        "texts_per_second": round(texts / seconds, 1),
        "tokens_per_second": round(tokens / seconds, 1),
        "dtype": str(encoder.model.dtype).removeprefix("torch."),
        "device": str(encoder.model.device),
        "backends": sorted({op["runs"] for op in backends(encoder.model).values()}),
    }
    if args.json:
        print(json.dumps(numbers))
    print(
        f"{texts:,} texts, {tokens:,} tokens in {seconds:.1f} s: "
        f"{texts / seconds:,.1f} texts/s, {tokens / seconds:,.0f} real tokens/s "
        f"({numbers['dtype']}, {numbers['device']}, backend {'+'.join(numbers['backends'])}) "
        f"-> {args.output}",
        file=sys.stderr,
    )
