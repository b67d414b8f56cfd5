# SPDX-License-Identifier: Apache-2.0
"""Sweeps: what ``agewise lab sweep`` does."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

from . import _native

Path = Union[str, "os.PathLike[str]"]

#: Cells done, cells there are, seconds left.
Advance = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Sweep:
    """What a sweep came to."""

    #: The directory of Parquet files.
    directory: str
    #: Cells run.
    ran: int
    #: Cells that were there already.
    found: int
    #: Cells that could not be run, each with why.
    failed: list[tuple[str, str]]

    def frame(self) -> Any:
        """All runs as a frame of polars, a row a run. Raises ImportError without polars."""
        try:
            import polars
        except ImportError:
            raise ImportError("frames of sweeps need polars: pip install polars") from None
        files = []
        for root, _, names in sorted(os.walk(self.directory)):
            cells = sorted(name for name in names if name.endswith(".parquet"))
            files += [os.path.join(root, name) for name in cells]
        frames = [polars.read_parquet(file, hive_partitioning=False) for file in files]
        return polars.concat(frames, how="diagonal")


def _bar() -> Advance:
    """A bar in notebooks and terminals, where tqdm is installed."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return lambda done, total, left: None
    bar = tqdm(unit="cell", bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} cells{postfix}")

    def advance(done: int, total: int, left: float) -> None:
        bar.total, bar.n = total, done
        bar.set_postfix_str(f"{left:.0f} s left")
        if done == total:
            bar.close()

    return advance


def _toml(spec: Mapping[str, Any]) -> str:
    """A description as TOML; TOML has no word for None."""

    def value(of: Any) -> str:
        if isinstance(of, bool):
            return "true" if of else "false"
        if isinstance(of, (int, float)):
            return repr(of)
        if isinstance(of, Mapping):
            return "{ " + ", ".join(f"{key} = {value(inner)}" for key, inner in of.items()) + " }"
        if isinstance(of, (list, tuple, range)):
            return "[" + ", ".join(value(inner) for inner in of) + "]"
        text = os.fspath(of)
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'

    lines = [f"{key} = {value(of)}" for key, of in spec.items() if key not in ("grid", "skip")]
    for name in ("grid", "skip"):
        tables = spec.get(name, [])
        for table in [tables] if isinstance(tables, Mapping) else tables:
            lines.append(f"[[{name}]]")
            lines += [f"{key} = {value(of)}" for key, of in table.items()]
    return "\n".join(lines)


def sweep(
    spec: Union[Path, Mapping[str, Any]],
    directory: Path,
    *,
    on: str = "local",
    prune: bool = False,
    progress: Optional[Advance] = None,
) -> Sweep:
    """Runs many combinations on all cores, into a directory of Parquet files; goes on where an
    earlier one was interrupted.

    `spec`: a TOML file as ``agewise lab sweep`` takes it (see ``docs/use/lab.md``), or the same as a
    mapping: ``{"seeds": 3, "grid": {"workload": ["kv"], "policy": ["classic", "mglru:7.2"]}}``.
    `prune`: deletes results in the directory that are not of this sweep. `progress` is called with
    cells done, cells there are and seconds left; a bar of tqdm unless given. Ctrl-C stops it.

    Raises ValueError for what does not exist, OSError for unreadable files.
    """
    if on != "local":
        raise ValueError(f"sweeps run on \"local\", not {on!r}")
    advance = progress or _bar()
    out = os.fspath(directory)
    if not isinstance(spec, Mapping):
        ran, found, failed = _native.sweep(os.fspath(spec), out, prune, advance)
        return Sweep(out, ran, found, failed)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(_toml(spec))
        file.flush()
        ran, found, failed = _native.sweep(file.name, out, prune, advance)
    return Sweep(out, ran, found, failed)
