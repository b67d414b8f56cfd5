# SPDX-License-Identifier: Apache-2.0
"""Traces: read as Arrow batches, whatever their format, and written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional, Union

from . import _native

__all__ = ["open", "write"]

Path = Union[str, "os.PathLike[str]"]

KINDS = ("unknown", "read", "write")
CLASSES = ("unknown", "anon", "file")


def open(trace: Path, *, options: Optional[Mapping[str, object]] = None) -> Iterator[Any]:
    """The accesses of a trace, as batches of pyarrow: page, time_ns, process, kind and class.

    `options` are those of `agewise.lab.run` that say how traces are read, such as
    ``{"trace_format": "csv", "page_shift": 12}``. A batch is a RecordBatch, of which polars, pandas
    and DuckDB make frames without a copy.

    Raises ImportError without pyarrow, OSError and ValueError for what cannot be read.
    """
    try:
        import pyarrow
    except ImportError:
        raise ImportError("traces are read with pyarrow: pip install pyarrow") from None
    from .lab import _options

    reader = _native.TraceReader(os.fspath(trace), _options(options))
    return _batches(pyarrow, reader)


def _batches(pyarrow: Any, reader: _native.TraceReader) -> Iterator[Any]:
    def named(codes: Any, names: tuple[str, ...]) -> Any:
        indices = codes.cast(pyarrow.int8())
        return pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array(names))

    while (columns := reader.next_batch()) is not None:
        arrays = []
        for column in columns:
            buffers = [None, pyarrow.py_buffer(column)]
            arrays.append(pyarrow.Array.from_buffers(pyarrow.uint64(), len(column) // 8, buffers))
        page, time_ns, process, kind, backing = arrays
        yield pyarrow.RecordBatch.from_arrays(
            [page, time_ns, process, named(kind, KINDS), named(backing, CLASSES)],
            names=["page", "time_ns", "process", "kind", "class"],
        )


def write(
    path: Path,
    pages: Iterable[int],
    *,
    time_ns: Optional[Iterable[int]] = None,
    format: str = "page",
) -> int:
    """Writes pages, in the order of their accesses, and returns how many.

    `pages`: whole numbers, such as a list or a column of a frame; `time_ns`: when each was accessed,
    in nanoseconds; 0 unless given. `format`: ``"page"``, ``"csv"`` or ``"lirs"`` (a page a line).
    A name that ends in .gz or .zst is compressed. What was there is lost.

    Raises ValueError for what is no page (a fraction, NaN, less than 0, nothing) or goes back in
    time, OSError for what cannot be written.
    """
    times = _numbers(time_ns) if time_ns is not None else None

    def accesses() -> Iterator[tuple[Any, Any]]:
        for page in _numbers(pages):
            yield page, 0 if times is None else next(times, None)

    return _native.write_trace(os.fspath(path), accesses(), format)


def _numbers(of: Iterable[Any]) -> Iterator[Any]:
    # Columns of numpy, pandas, polars and pyarrow as numbers of Python.
    for name in ("tolist", "to_list", "to_pylist"):
        convert = getattr(of, name, None)
        if convert is not None:
            return iter(convert())
    return iter(of)
