"""Vectors to a file, chunk by chunk, through a temporary that is renamed at the end."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from encoder_fast.files import atomic_path


def choose(path: str) -> Callable:
    """The writer for a file name, checked before any work: a function of
    (path, chunks of (C, W) float32 rows, N, W, {column: list of N or None})."""
    suffix = Path(path).suffix.lower()
    if suffix not in _WRITERS:
        raise ValueError(f"--output {path!r} must end in {' or '.join(_WRITERS)}")
    if not Path(path).resolve().parent.is_dir():
        raise FileNotFoundError(f"--output {path}: there is no folder {Path(path).parent}")
    if suffix == ".parquet":
        _pyarrow()
    return _WRITERS[suffix]


def _write_npy(path, chunks, count, width, extra):
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
    # Plain writes in order, not a memory map: a full disk is then an error and not a signal.
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for rows_CW in chunks:
            file.write(np.ascontiguousarray(rows_CW, dtype="<f4").data)


def _write_parquet(path, chunks, count, width, extra):
    pa, parquet = _pyarrow()
    ids = pa.array(range(count), pa.int64()) if extra["id"] is None else _id_column(pa, extra["id"])
    columns = {"id": ids}
    if extra["text"] is not None:
        columns["text"] = pa.array(extra["text"], pa.string())
    vector = pa.list_(pa.float32(), width)
    fields = [(name, column.type) for name, column in columns.items()] + [("embedding", vector)]
    schema = pa.schema(fields)
    with atomic_path(path) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        start = 0
        for rows_CW in chunks:
            stop = start + len(rows_CW)
            flat = pa.array(np.ascontiguousarray(rows_CW).reshape(-1), pa.float32())
            vectors = pa.FixedSizeListArray.from_arrays(flat, width)
            part = [column[start:stop] for column in columns.values()]
            writer.write_table(pa.Table.from_arrays([*part, vectors], schema=schema))
            start = stop


def _id_column(pa, ids):
    try:
        return pa.array(ids)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"--id-field: the ids are not of one type: {error}") from None
    except (OverflowError, UnicodeError) as error:
        raise ValueError(f"--id-field: an id does not fit a .parquet: {error}") from None


def _pyarrow():
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(f"a .parquet needs pyarrow (pip install pyarrow): {error}") from None
    return pyarrow, pyarrow.parquet


_WRITERS = {".npy": _write_npy, ".parquet": _write_parquet}
