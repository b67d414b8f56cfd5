# SPDX-License-Identifier: Apache-2.0
"""Sweeps, as done by ``agewise lab sweep``."""

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

from . import _native, _ray
from ._given import memory_of
from ._progress import Advance, shown
from .policy import Class, Policy, describe, name_of

Path = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Sweep:
    """The result of a sweep."""

    #: The directory of Parquet files.
    directory: str
    #: Number of cells run.
    ran: int
    #: Number of cells that already had results.
    found: int
    #: Cells that failed, each with its error.
    failed: list[tuple[str, str]]

    def frame(self) -> Any:
        """All rows as a polars frame: runs, or points. Raises ImportError without polars."""
        try:
            import polars
        except ImportError:
            raise ImportError("frames of sweeps need polars: pip install polars") from None
        files = []
        for root, _, names in sorted(os.walk(self.directory)):
            cells = sorted(name for name in names if name.endswith(".parquet"))
            files += [os.path.join(root, name) for name in cells]
        frames = [polars.read_parquet(file, hive_partitioning=False) for file in files]
        return polars.concat(frames, how="diagonal") if frames else polars.DataFrame()


def _tables(spec: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    tables = spec.get(name, [])
    tables = [tables] if isinstance(tables, Mapping) else tables
    if not isinstance(tables, (list, tuple)) or not all(isinstance(of, Mapping) for of in tables):
        raise TypeError(f"{name} is a mapping, or a list of them, not {tables!r}")
    return list(tables)


def _classes(spec: Mapping[str, Any]) -> list[Class]:
    """The classes among its policies."""
    policies: dict[Union[str, type[Policy]], None] = {}
    for table in [spec, *_tables(spec, "grid")]:
        of = table.get("policy", ())
        of = of.tolist() if hasattr(of, "tolist") else of
        for one in of if isinstance(of, (list, tuple)) else [of]:
            # Anything else is refused as a value.
            if isinstance(one, (str, type)):
                policies[one] = None
    classes = [of for of in describe(policies) if not isinstance(of, str)]
    for _, name, sha256 in classes:
        if sha256 is None:
            raise ValueError(
                f"the source of {name} cannot be read, so that its results could not be told from "
                "those of another version: write the class in a file, or give it a `version`"
            )
    return classes


def _toml(spec: Mapping[str, Any]) -> str:
    """A description as TOML; TOML has no value for None."""

    def value(of: Any) -> str:
        # Numbers and arrays of numpy.
        of = of.tolist() if hasattr(of, "tolist") else of
        if isinstance(of, bool):
            return "true" if of else "false"
        if isinstance(of, int) and of.bit_length() > 63:
            raise ValueError(f"spec: {of} does not fit in 64 bits")
        if isinstance(of, (int, float)):
            return repr(of)
        if isinstance(of, Mapping):
            return "{ " + ", ".join(line(*item) for item in of.items()) + " }"
        if isinstance(of, (list, tuple, range)):
            return "[" + ", ".join(value(inner) for inner in of) + "]"
        if isinstance(of, type) and issubclass(of, Policy):
            of = name_of(of)
        if not isinstance(of, (str, os.PathLike)):
            raise TypeError(f"a sweep has no values such as {of!r}")
        return quoted(os.fspath(of))

    def quoted(text: str) -> str:
        # What JSON escapes, TOML does too.
        return json.dumps(text, ensure_ascii=False)

    def line(key: Any, of: Any) -> str:
        # As it is, `set.swappiness` is a key of a key.
        is_bare = re.fullmatch(r"[\w.-]+", str(key), re.ASCII)
        return f"{key if is_bare else quoted(str(key))} = {value(of)}"

    lines = [line(*item) for item in spec.items() if item[0] not in ("grid", "skip")]
    for name in ("grid", "skip"):
        for table in _tables(spec, name):
            lines.append(f"[[{name}]]")
            lines += [line(*item) for item in table.items()]
    return "\n".join(lines)


def sweep(
    spec: Union[Path, Mapping[str, Any]],
    directory: Path,
    *,
    on: str = "local",
    prune: bool = False,
    trace_memory: Optional[int] = None,
    progress: Optional[Advance] = None,
) -> Sweep:
    """Runs many combinations on all cores, into a directory of Parquet files; resumes where an
    earlier sweep was interrupted.

    `spec`: a TOML file as ``agewise lab sweep`` takes it (see ``docs/use/lab.md``), or the same as
    a mapping: ``{"seeds": 3, "grid": {"workload": ["kv"], "policy": ["classic", "mglru:7.2"]}}``.
    In a mapping, policies can be classes too (see `agewise.policy`). A cell is run again when the
    source or an attribute of its class has changed, such as its `version`.
    `on`: ``"local"``, or ``"ray"`` for the Ray cluster that this process is connected to
    (``ray.init``), that of RAY_ADDRESS, or one started here. A cell is a task; workloads and traces
    go to the workers through the object store, profiles of policies (``mglru:FILE.toml``) and
    modules of classes have to exist there under the same name. A cell whose worker dies is run
    again, at most twice, with a warning. The files are the same, byte for byte.

    `trace_memory`: bytes for holding each trace; one that needs more fails its cells. By default a
    quarter of the memory, shared by the traces that are held at once; on Ray, by the processors of
    a worker's machine.

    `prune`: deletes results in the directory that do not belong to this sweep. `progress` is called
    with cells done, total cells and seconds left; by default a tqdm bar. Ctrl-C stops the sweep.
    A cell whose file is damaged is run again. That, cells that failed, and what else the command
    notes on standard error, such as a rule of `skip` that skips nothing or programs killed in a
    cell, is a warning.

    Raises ValueError for what does not exist, OSError for unreadable files, ImportError if Ray is
    requested but not installed.
    """
    if on not in ("local", "ray"):
        raise ValueError(f"sweeps run on \"local\" or \"ray\", not {on!r}")
    trace_memory = memory_of(trace_memory)
    out = os.fspath(directory)
    if not isinstance(spec, Mapping):
        return _run(os.fspath(spec), [], out, on, prune, trace_memory, progress)
    own = _classes(spec)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(_toml(spec))
        file.flush()
        try:
            return _run(file.name, own, out, on, prune, trace_memory, progress)
        except ValueError as error:
            # Nobody can look into a file that is gone.
            raise ValueError(str(error).replace(f"{file.name}: ", "spec: ")) from None


def _run(
    spec: str,
    own: list[Class],
    out: str,
    on: str,
    prune: bool,
    trace_memory: Optional[int],
    progress: Optional[Advance],
) -> Sweep:
    with shown("cell", progress) as advance:
        if on == "local":
            ran, found, failed, notes = _native.sweep(
                spec, out, prune, trace_memory, own, advance
            )
        else:
            opened = _native.OpenSweep(spec, out, prune, own)
            try:
                ran, failed = _ray.sweep(opened, trace_memory, own, advance)
                found, notes = opened.found(), opened.notes()
            finally:
                opened.close()
    if failed:
        cell, why = failed[0]
        notes.append(f"{len(failed)} cells failed, such as {cell}: {why}")
    for note in notes:
        warnings.warn(note, stacklevel=3)
    return Sweep(out, ran, found, failed)
