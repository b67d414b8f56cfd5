# SPDX-License-Identifier: Apache-2.0
"""The simulated machine and miss-ratio curves, as with ``agewise lab run`` and ``lab curve``."""

from __future__ import annotations

import importlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

from . import _command, _native
from ._given import as_list, file, memory_of, options_text, pairs, sampling_of, whole
from ._progress import Advance, shown
from .policy import Policy, describe

__all__ = [
    "Results",
    "Rows",
    "curve",
    "reproduce",
    "run",
    "size",
    "verify_kernel",
    "whatif",
]

Path = Union[str, "os.PathLike[str]"]
AnyPolicy = Union[str, type[Policy]]

#: Policies that `run` compares by default.
POLICIES = ("classic", "mglru:7.2", "mglru:6.12", "mglru:v6")


class Results:
    """The result of a study. Every row says what was run: ``docs/use/lab.md`` lists the fields."""

    def __init__(self, native: _native.Results) -> None:
        self._native = native

    def rows(self) -> list[dict[str, Any]]:
        """The rows that the command prints with ``--format json``."""
        return self._native.rows()

    def runs(self) -> list[dict[str, Any]]:
        """One row per run, a column per measure, as in ``--format parquet``; for curves, `rows`."""
        return self._native.runs()

    def write_parquet(self, path: Path) -> None:
        """Writes `runs` to a file, for ``agewise lab show``, ``rerun`` and ``check``."""
        with open(os.fspath(path), "wb") as out:
            out.write(self._native.parquet())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows as an Arrow stream: polars, pandas, pyarrow and DuckDB accept `self` as a table,
        without a copy."""
        return self._native.__arrow_c_stream__(requested_schema)

    def frame(self) -> Any:
        """The rows as a polars frame, or a pandas frame if polars is not installed.

        Raises ImportError if neither is installed.
        """
        library = _frames()
        # Before version 3, pandas reads Arrow only through pyarrow.
        if library.__name__ == "pandas":
            if hasattr(library.DataFrame, "from_arrow"):
                return library.DataFrame.from_arrow(self)
            return library.DataFrame(self.rows())
        return library.DataFrame(self)

    def __reduce__(self) -> Any:
        raise TypeError("results cannot be pickled: rows() can, and write_parquet() keeps them")

    def __len__(self) -> int:
        return len(self._native)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows())

    def __repr__(self) -> str:
        return f"<Results: {len(self)} rows; see rows(), frame(), plot()>"

    def plot(self, measure: str = "major_faults") -> Any:
        """An altair chart, or matplotlib axes if altair is not installed.

        For curves, the miss ratio by size, one line per policy, with the 95 % interval if it was
        estimated from samples. For runs, the mean of a measure with its 95 % interval, or its
        range where seeds are orders, one bar per policy that has the measure. Raises ImportError
        if neither is installed, ValueError for an unknown measure.
        """
        rows = self.rows()
        is_curve = bool(rows) and "miss_ratio" in rows[0]
        if not is_curve:
            known = {row["measure"] for row in rows}
            rows = [row for row in rows if row["measure"] == measure]
            if not rows:
                raise ValueError(f"there is no measure {measure!r}; there are {sorted(known)}")
        # A yardstick has few measures, and nothing was missed in a trace without accesses.
        rows = [row for row in rows if row["miss_ratio" if is_curve else "mean"] is not None]
        try:
            import altair
        except ImportError:
            try:
                from matplotlib import pyplot
            except ImportError:
                raise ImportError(
                    "plots need altair or matplotlib: pip install altair"
                ) from None
            return _axes(pyplot, rows, measure, is_curve)
        return _chart(altair, rows, measure, is_curve)


def _results(native: _native.Results) -> Results:
    for note in native.notes():
        warnings.warn(note, stacklevel=3)
    return Results(native)


def _ends(row: dict[str, Any]) -> tuple[float, float]:
    """The 95 % interval of a mean, or the range of what is no sample."""
    half = row["ci95"]
    return (row["min"], row["max"]) if half is None else (row["mean"] - half, row["mean"] + half)


def _ends_of_point(row: dict[str, Any]) -> tuple[float, float]:
    """The 95 % interval of an estimated miss ratio; counted ones have none."""
    ratio, half = row["miss_ratio"], row["miss_ratio_error"]
    return max(0.0, ratio - half), min(1.0, ratio + half)


def _chart(altair: Any, rows: list[dict[str, Any]], measure: str, is_curve: bool) -> Any:
    # Altair accepts dictionaries, so no frame is needed.
    values = []
    for row in rows:
        low, high = _ends_of_point(row) if is_curve else _ends(row)
        shown = ["policy", "size_pages", "miss_ratio"] if is_curve else ["policy", "mean"]
        values.append({**{key: row[key] for key in shown}, "low": low, "high": high})
    base = altair.Chart(altair.Data(values=values))
    if is_curve:
        title = "miss ratio"
        base = base.encode(
            x=altair.X("size_pages:Q", title="pages").scale(type="log"),
            color=altair.Color("policy:N", sort=None),
        )
        lines = base.mark_line(point=True).encode(y=altair.Y("miss_ratio:Q", title=title))
        if not any(row["miss_ratio_error"] for row in rows):
            return lines
        between = altair.Y("low:Q", title=title)
        return base.mark_area(opacity=0.2).encode(y=between, y2="high:Q") + lines
    base = base.encode(y=altair.Y("policy:N", sort=None))
    bars = base.mark_bar().encode(x=altair.X("mean:Q", title=measure))
    return bars + base.mark_rule().encode(x="low:Q", x2="high:Q")


def _axes(pyplot: Any, rows: list[dict[str, Any]], measure: str, is_curve: bool) -> Any:
    _, axes = pyplot.subplots(layout="constrained")
    if is_curve:
        for policy in dict.fromkeys(row["policy"] for row in rows):
            line = [row for row in rows if row["policy"] == policy]
            sizes = [row["size_pages"] for row in line]
            axes.plot(sizes, [row["miss_ratio"] for row in line], marker=".", label=policy)
            if any(row["miss_ratio_error"] for row in line):
                axes.fill_between(sizes, *zip(*map(_ends_of_point, line)), alpha=0.2)
        axes.set(xscale="log", xlabel="pages", ylabel="miss ratio")
        axes.legend()
    else:
        means = [row["mean"] for row in rows]
        ends = [_ends(row) for row in rows]
        below = [mean - low for mean, (low, _) in zip(means, ends)]
        above = [high - mean for mean, (_, high) in zip(means, ends)]
        axes.barh([row["policy"] for row in rows], means, xerr=[below, above])
        axes.invert_yaxis()
        axes.set(xlabel=measure)
    return axes


def run(
    workload_or_trace: Path,
    policies: Union[AnyPolicy, Sequence[AnyPolicy]] = POLICIES,
    *,
    proactive: Union[str, Sequence[str]] = (),
    memory: Union[str, int, None] = None,
    swap: Optional[str] = None,
    settings: Optional[Mapping[str, object]] = None,
    damon: Optional[str] = None,
    seeds: Optional[int] = None,
    options: Optional[Mapping[str, object]] = None,
    trace_memory: Optional[int] = None,
    progress: Optional[Advance] = None,
) -> Results:
    """Runs a workload or trace on simulated memory under several policies.

    `policies`: names, and classes (see `agewise.policy`), which process the same accesses.
    `memory`: bytes, or a size such as ``"24M"``, ``"5000p"`` (pages) or ``"25%"`` (of a trace).
    `proactive`: agents that reclaim beside each policy. `seeds`: 1 to this number. `options`:
    further options, such as ``{"access": "mapped", "trace_format": "csv"}``. `trace_memory`: bytes
    for holding a trace; one that needs more is refused. Defaults are those of ``agewise lab run``.
    `progress` is called with runs done, total runs and seconds left; by default a tqdm bar. Uses
    all cores. Ctrl-C stops it.

    What the command notes on standard error is a warning. Raises ValueError with the nearest name
    for what does not exist, OSError for unreadable files.
    """
    with shown("run", progress) as advance:
        native = _native.run(
            file(workload_or_trace),
            describe(as_list(policies)),
            as_list(proactive),
            None if memory is None else str(memory),
            swap,
            pairs(settings),
            damon,
            options_text(options),
            memory_of(trace_memory),
            None if seeds is None else whole("seeds", seeds),
            advance,
        )
    return _results(native)


def curve(
    trace: Path,
    policies: Union[AnyPolicy, Sequence[AnyPolicy]] = ("opt", "lru", "clock"),
    *,
    sizes: Union[int, str, Sequence[Union[int, str]]] = (),
    points: int = 32,
    sampling: Optional[tuple[float, int]] = None,
    options: Optional[Mapping[str, object]] = None,
    trace_memory: Optional[int] = None,
    progress: Optional[Advance] = None,
) -> Results:
    """Miss-ratio curves of a trace.

    `sizes`: pages, or shares such as ``"10%"``; by default `points` sizes up to the footprint.
    `sampling`: the share of the pages in each sample, and the number of samples; by default counts
    are exact. `options`: how the trace is read. `trace_memory`: bytes for holding it; by default a
    quarter of the memory. `progress`: as in `run`; a size of a policy is a run, and LRU, which one
    pass computes for all sizes, has none. Ctrl-C stops it.

    What the command notes on standard error, such as sizes that a policy cannot have, is a
    warning. Raises ValueError for what does not exist, OSError for unreadable files.
    """
    with shown("run", progress) as advance:
        native = _native.curve(
            file(trace),
            describe(as_list(policies)),
            [str(size) for size in as_list(sizes)],
            whole("points", points),
            sampling_of(sampling),
            options_text(options),
            memory_of(trace_memory),
            advance,
        )
    return _results(native)


def _frames() -> Any:
    for name in ("polars", "pandas"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError("frames need polars or pandas: pip install polars")


class Rows(list[dict[str, Any]]):
    """What the command prints with ``--format json``: one mapping per line."""

    def frame(self) -> Any:
        """A polars frame, or a pandas frame without polars; raises ImportError without either."""
        library = _frames()
        if library.__name__ == "pandas":
            return library.DataFrame(list(self))
        return library.DataFrame(list(self), infer_schema_length=None)


def _rows(text: str) -> Rows:
    return Rows(json.loads(line) for line in text.splitlines())


def whatif(traces: Union[Path, Sequence[Path]], *, sample: float = 1.0) -> Rows:
    """Predictions of ``agewise whatif`` for traces beside exact results: ``agewise lab whatif``.

    `sample`: percent of the pages that are simulated. Raises OSError for unreadable files.
    """
    if isinstance(sample, str) or sample is None or not 0 < sample <= 100:
        raise ValueError(f"{sample!r} is not a share of the pages: above 0, to 100 percent")
    all = as_list(traces)
    if not all:
        raise ValueError("no trace given")
    return _rows(_native.whatif([file(trace) for trace in all], float(sample)))


def size(
    trace: Optional[Path] = None,
    *,
    pid: Optional[int] = None,
    cgroup: Optional[str] = None,
    options: Optional[Mapping[str, object]] = None,
) -> Rows:
    """How much memory a program needs: one row per size, and the answer in the last.

    Runs the installed command ``agewise size``, which measures what pages cost here.
    `options`: further options, such as ``{"target_wait": "2%", "cost_model": "zram"}``. Raises as
    `agewise.report` does.
    """
    given = _command.options({"pid": pid, "cgroup": cgroup}, options, '{"target_wait": "2%"}')
    # Whatever it is called, it is no option and no value of the last one.
    of = [] if trace is None else ["--", file(trace)]
    return Rows(_command.rows("size", *given, *of))


def reproduce(
    name: str,
    *,
    seeds: int = 10,
    benchmark: Optional[str] = None,
    variant: Optional[str] = None,
    settings: Optional[Mapping[str, object]] = None,
    progress: Optional[Advance] = None,
) -> Rows:
    """A document's benchmarks repeated, with verdicts on its claims: ``agewise lab reproduce``.

    One row per claim, and the summary in the last. After Ctrl-C those in progress are finished in
    the background, and no new ones start. Raises ValueError with the nearest name for what does
    not exist.
    """
    with shown("measurement", progress) as advance:
        given = pairs(settings)
        many = whole("seeds", seeds)
        return _rows(_native.reproduce(name, many, benchmark, variant, given, advance))


def verify_kernel(
    *,
    reference: Optional[Path] = None,
    extended: bool = False,
    kernel: Optional[str] = None,
    flush_phases: int = 20,
    single: bool = False,
    mutate: Union[str, bool] = False,
    progress: Optional[Advance] = None,
) -> Rows:
    """Compares the simulated machine with real kernels: ``agewise lab verify-kernel``.

    `extended`: against more cells than the machine was built with. `mutate` breaks rules instead,
    all (True) or those whose line begins with this. After Ctrl-C those in progress are finished in
    the background, and no new ones start. Raises ValueError for an invalid reference.
    """
    wrong = {True: "", False: None}[mutate] if isinstance(mutate, bool) else mutate
    of = None if reference is None else os.fspath(reference)
    if extended and of is not None:
        raise ValueError("extended: another reference than the one given")
    if not 1 <= whole("flush_phases", flush_phases) <= 10_000:
        raise ValueError("flush_phases: from 1 to 10000")
    with shown("run", progress) as advance:
        verdicts = _native.verify_kernel(
            of, extended, kernel, flush_phases, single, wrong, advance
        )
        return _rows(verdicts)
