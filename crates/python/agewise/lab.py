# SPDX-License-Identifier: Apache-2.0
"""The simulated machine and miss-ratio curves: what ``agewise lab run`` and ``lab curve`` do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from . import _native

__all__ = ["Results", "curve", "run"]

Path = Union[str, "os.PathLike[str]"]

#: What `run` compares unless told otherwise.
POLICIES = ("classic", "mglru:7.2", "mglru:6.12", "mglru:v6")


class Results:
    """What a study came to. Every row says what was run: see ``docs/use/lab.md`` for the fields."""

    def __init__(self, native: _native.Results) -> None:
        self._native = native

    def rows(self) -> list[dict[str, Any]]:
        """The rows that the command prints with ``--format json``."""
        return self._native.rows()

    def runs(self) -> list[dict[str, Any]]:
        """A row a run with a column a measure, as in ``--format parquet``; of curves, `rows`."""
        return self._native.runs()

    def write_parquet(self, path: Path) -> None:
        """Writes `runs` to a file, for ``agewise lab show``, ``rerun`` and ``check``."""
        with open(path, "wb") as file:
            file.write(self._native.parquet())

    def frame(self) -> Any:
        """The rows as a frame of polars, or of pandas where there is no polars.

        Raises ImportError where neither is installed.
        """
        rows = self.rows()
        try:
            import polars
        except ImportError:
            try:
                import pandas
            except ImportError:
                raise ImportError(
                    "frames need polars or pandas: pip install polars"
                ) from None
            return pandas.DataFrame(rows)
        return polars.DataFrame(rows, infer_schema_length=None)

    def __len__(self) -> int:
        return len(self._native.rows())


def _options(options: Optional[Mapping[str, object]]) -> str:
    def part(key: str, value: object) -> str:
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        if text is True:
            text = 1
        return f"{key}={text}".replace("%", "%25").replace(" ", "%20")

    parts: list[str] = []
    for key, value in (options or {}).items():
        if value is None or value is False:
            continue
        if key == "column" and isinstance(value, Mapping):
            parts += [part(key, f"{column}:{header}") for column, header in value.items()]
        else:
            parts.append(part(key, value))
    return " ".join(parts)


def run(
    workload_or_trace: Path,
    policies: Sequence[str] = POLICIES,
    *,
    proactive: Sequence[str] = (),
    memory: Union[str, int, None] = None,
    swap: Optional[str] = None,
    settings: Optional[Mapping[str, object]] = None,
    damon: Optional[str] = None,
    seeds: Optional[int] = None,
    options: Optional[Mapping[str, object]] = None,
) -> Results:
    """Runs a workload or trace on simulated memory under several policies.

    `memory`: bytes, or a size such as ``"24M"``, ``"5000p"`` (pages) or ``"25%"`` (of a trace).
    `proactive`: agents that reclaim beside each policy. `seeds`: 1 to this number. `options`:
    others of the command, such as ``{"access": "mapped", "trace_format": "csv"}``. What is not
    given is as in ``agewise lab run``. Uses all cores. Ctrl-C stops it.

    Raises ValueError with the nearest name for what does not exist, OSError for unreadable files.
    """
    return Results(
        _native.run(
            os.fspath(workload_or_trace),
            list(policies),
            list(proactive),
            None if memory is None else str(memory),
            swap,
            [f"{key}={value}" for key, value in (settings or {}).items()],
            damon,
            _options(options),
            seeds,
        )
    )


def curve(
    trace: Path,
    policies: Sequence[str] = ("opt", "lru", "clock"),
    *,
    sizes: Sequence[Union[int, str]] = (),
    points: int = 32,
    sampling: Optional[tuple[float, int]] = None,
    options: Optional[Mapping[str, object]] = None,
) -> Results:
    """Miss-ratio curves of a trace.

    `sizes`: pages, or shares such as ``"10%"``; `points` sizes up to the footprint unless given.
    `sampling`: the share of the pages in each sample, and the number of samples; counts all unless
    given. Ctrl-C stops it.

    Raises ValueError for what does not exist, OSError for unreadable files.
    """
    return Results(
        _native.curve(
            os.fspath(trace),
            list(policies),
            [str(size) for size in sizes],
            points,
            sampling,
            _options(options),
        )
    )
