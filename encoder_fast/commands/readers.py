"""Texts from a file or from standard input. All of it is read, and checked, before work begins."""

import json
import sys
from pathlib import Path


def read_texts(
    source: str, field: str | None = None, id_field: str | None = None
) -> tuple[list[str], list | None]:
    """(texts, ids) of a text file, a JSONL file or "-"; ids is None without `id_field`.

    Text: one text per line, empty lines included, so row i is line i + 1. JSONL (a `.jsonl` or
    `.ndjson` name, or a `field`): one record per line, blank lines skipped. ValueError names the
    file and the line of what cannot be used.
    """
    jsonl = field is not None or Path(source).suffix.lower() in (".jsonl", ".ndjson")
    if id_field is not None and not jsonl:
        raise ValueError(f"--id-field {id_field!r} needs JSONL input; {source} is plain text")
    lines = _lines(source)
    if not jsonl:
        return list(lines), None
    field = "text" if field is None else field
    texts, ids = [], []
    for number, line in enumerate(lines, 1):
        if line.strip():
            record = _record(line, source, number)
            texts.append(_string(record, field, source, number))
            if id_field is not None:
                ids.append(_value(record, id_field, source, number))
    return texts, None if id_field is None else ids


def _lines(source):
    """Yields lines without their ends. Split at newlines only: the other separators that Python's
    `splitlines` knows may stand inside a text."""
    if source == "-":
        if sys.stdin is None:
            raise ValueError("standard input is closed")
        yield from _decoded(sys.stdin.buffer, "standard input")
        return
    with open(source, "rb") as file:
        yield from _decoded(file, source)


def _decoded(file, name):
    for number, line in enumerate(file, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}:{number}: not UTF-8: {error.reason}") from None
        yield text.removesuffix("\n").removesuffix("\r")


def _record(line, source, number):
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source}:{number}: not a JSON record: {error}") from None
    if not isinstance(record, dict):
        kind = type(record).__name__
        raise ValueError(f"{source}:{number}: a record must be a JSON object, got {kind}")
    return record


def _value(record, field, source, number):
    if field not in record:
        keys = ", ".join(map(repr, list(record)[:8])) or "nothing"
        raise ValueError(f"{source}:{number}: no field {field!r}; the record has {keys}")
    return record[field]


def _string(record, field, source, number):
    value = _value(record, field, source, number)
    if not isinstance(value, str):
        kind = type(value).__name__
        raise ValueError(f"{source}:{number}: field {field!r} must be a string, got {kind}")
    # A lone surrogate, which only an escape can write: no tokenizer takes it.
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise ValueError(f"{source}:{number}: field {field!r} is not valid Unicode")
    return value
