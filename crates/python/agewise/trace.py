# SPDX-License-Identifier: Apache-2.0
"""Traces: read as Arrow batches, whatever their format, and written."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Optional, Union

from . import _native
from ._given import options_text, whole

__all__ = ["open", "write"]

Path = Union[str, "os.PathLike[str]"]

KINDS = ("unknown", "read", "write")
CLASSES = ("unknown", "anon", "file")

#: Up to here, every whole number is one of floating point.
FLOAT_MAX = 2**53


def open(trace: Path, *, options: Optional[Mapping[str, object]] = None) -> Iterator[Any]:
    """The accesses of a trace, as pyarrow batches: page, time_ns, process, kind and class.

    `options` are those of `agewise.lab.run` that say how traces are read, such as
    ``{"trace_format": "csv", "page_shift": 12}``. A batch is a RecordBatch, which polars, pandas
    and DuckDB turn into frames without a copy. Its schema has the metadata ``page_shift``: a page
    is 2 to the power of that many bytes.

    Raises ImportError without pyarrow, OSError and ValueError for unreadable traces.
    """
    try:
        import pyarrow
    except ImportError:
        raise ImportError("traces are read with pyarrow: pip install pyarrow") from None
    reader = _native.TraceReader(os.fspath(trace), options_text(options))
    return _batches(pyarrow, reader)


def _batches(pyarrow: Any, reader: _native.TraceReader) -> Iterator[Any]:
    def named(codes: Any, names: tuple[str, ...]) -> Any:
        indices = codes.cast(pyarrow.int8())
        return pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array(names))

    metadata = {"page_shift": str(reader.page_shift())}
    while (columns := reader.next_batch()) is not None:
        arrays = []
        for column in columns:
            buffers = [None, pyarrow.py_buffer(column)]
            arrays.append(pyarrow.Array.from_buffers(pyarrow.uint64(), len(column) // 8, buffers))
        page, time_ns, process, kind, backing = arrays
        yield pyarrow.RecordBatch.from_arrays(
            [page, time_ns, process, named(kind, KINDS), named(backing, CLASSES)],
            names=["page", "time_ns", "process", "kind", "class"],
        ).replace_schema_metadata(metadata)
    if (note := reader.note()) is not None:
        warnings.warn(note, stacklevel=2)


def write(
    path: Path,
    pages: Any,
    *,
    time_ns: Optional[Iterable[int]] = None,
    format: Optional[str] = None,
    page_shift: Optional[int] = None,
) -> int:
    """Writes pages, in the order of their accesses, and returns how many.

    `pages`: whole numbers, such as a list or a column of a frame, or a frame, table or mapping with
    the columns ``page`` and, if it has times, ``time_ns``; that others of `open` are not written is
    a warning. Whole numbers may be of floating point, up to 2**53. `time_ns`: when each was
    accessed, in nanoseconds; by default 0. Columns of 64 bits are used without conversion,
    everything else number by number. `format`: ``"page"``, ``"csv"``, ``"parquet"`` or ``"lirs"``
    (one page per line); by default the one that the name of the file ends in, or else ``"page"``.
    `page_shift`: a page is 2 to the power of that many bytes; by default that of a table made of
    batches of `open`, and otherwise 12 (4 KiB). ``"lirs"`` keeps neither that nor times.
    A name that ends in .gz or .zst is compressed, which Parquet cannot be. An existing file is
    overwritten.

    Raises ValueError for anything that is not a page (a fraction, NaN, less than 0, nothing) or
    that goes back in time, OSError if the file cannot be written.
    """
    if hasattr(pages, "collect"):
        # A frame of polars that does not exist yet.
        pages = pages.collect()
    if page_shift is None:
        page_shift = _page_shift_of(pages)
    page_shift = whole("page_shift", page_shift)
    names = getattr(pages, "column_names", None) or getattr(pages, "columns", None)
    if isinstance(pages, Mapping):
        names = pages
    if names is not None:
        lost = [name for name in ("process", "kind", "class") if name in names]
        if lost:
            warnings.warn(f"not written: the columns {', '.join(lost)}", stacklevel=2)
        pages, time_ns = _of_frame(pages, list(names), time_ns)
    column, times = _column(pages), None if time_ns is None else _column(time_ns)
    if column is not None and (time_ns is None or times is not None):
        return _native.write_columns(os.fspath(path), column, times, format, page_shift)
    ticks = None if time_ns is None else _numbers(time_ns)

    def accesses() -> Iterator[tuple[Any, Any]]:
        for page in _numbers(pages):
            yield _whole(page), 0 if ticks is None else _whole(next(ticks, None))
        if ticks is not None and next(ticks, None) is not None:
            raise ValueError("more times than pages: each access has both")

    return _native.write_trace(os.fspath(path), accesses(), format, page_shift)


def _page_shift_of(pages: Any) -> int:
    metadata = getattr(getattr(pages, "schema", None), "metadata", None) or {}
    return int(metadata.get(b"page_shift", 12))


def _of_frame(frame: Any, names: list[str], time_ns: Any) -> tuple[Any, Any]:
    if "page" not in names:
        raise ValueError(f"the frame has no column 'page'; it has {names}")
    if time_ns is None and "time_ns" in names:
        time_ns = frame["time_ns"]
    return frame["page"], time_ns


def _column(of: Any) -> Optional[tuple[bytes, bool]]:
    """Numbers of 64 bits, and whether they are signed; None for other types."""
    # A masked array of numpy shows what is under the mask, too.
    if hasattr(of, "filled"):
        return None
    # Columns of polars have the method even without numpy, and then panic.
    try:
        if hasattr(of, "to_numpy") and find_spec("numpy") is not None:
            of = of.to_numpy()
        view = memoryview(of)
    except (TypeError, ValueError, RuntimeError):
        return None
    if view.ndim != 1 or view.itemsize != 8 or view.format not in ("q", "l", "Q", "L"):
        return None
    return view.tobytes(), view.format in ("q", "l")


def _whole(number: Any) -> Any:
    # One value that is missing makes a column of pandas one of floating point.
    if isinstance(number, float) and number.is_integer() and abs(number) <= FLOAT_MAX:
        return int(number)
    return number


def _numbers(of: Iterable[Any]) -> Iterator[Any]:
    # Converts columns of numpy, pandas, polars and pyarrow to Python numbers. numpy makes bare
    # numbers of times in nanoseconds, but also of those in years.
    dtype = getattr(of, "dtype", None)
    if getattr(dtype, "kind", "") in ("m", "M") and not str(dtype).endswith("[ns]"):
        raise ValueError(f"times are whole numbers of nanoseconds, not {dtype}: convert them first")
    for name in ("tolist", "to_list", "to_pylist"):
        convert = getattr(of, name, None)
        if convert is not None:
            return iter(convert())
    try:
        return iter(of)
    except TypeError:
        raise TypeError(f"pages and times are sequences of whole numbers, not {of!r}") from None
