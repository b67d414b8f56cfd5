# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Optional, Union

from .policy import Policy as _Policy

_Class = tuple[type[_Policy], str, Optional[str]]
_AnyPolicy = Union[str, _Class]

__version__: str
build: str

class PolicyError(RuntimeError): ...

class Results:
    def __len__(self) -> int: ...
    def rows(self) -> list[dict[str, Any]]: ...
    def runs(self) -> list[dict[str, Any]]: ...
    def notes(self) -> list[str]: ...
    def parquet(self) -> bytes: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...

def run(
    subject: str,
    policies: list[_AnyPolicy],
    proactive: list[str],
    memory: Optional[str],
    swap: Optional[str],
    settings: list[str],
    damon: Optional[str],
    options: str,
    trace_memory: Optional[int],
    seeds: Optional[int],
    advance: Callable[[int, int, float], None],
) -> Results: ...
def curve(
    trace: str,
    policies: list[_AnyPolicy],
    sizes: list[str],
    points: int,
    sampling: Optional[tuple[float, int]],
    options: str,
    trace_memory: Optional[int],
    advance: Callable[[int, int, float], None],
) -> Results: ...
def sweep(
    spec: str,
    out: str,
    prune: bool,
    trace_memory: Optional[int],
    own: list[_Class],
    advance: Callable[[int, int, float], None],
) -> tuple[int, int, list[tuple[str, str]], list[str]]: ...
def whatif(traces: list[str], percent: float) -> str: ...
def reproduce(
    name: str,
    seeds: int,
    benchmark: Optional[str],
    variant: Optional[str],
    settings: list[str],
    advance: Callable[[int, int, float], None],
) -> str: ...
def verify_kernel(
    reference: Optional[str],
    extended: bool,
    kernel: Optional[str],
    flush_phases: int,
    single: bool,
    wrong: Optional[str],
    advance: Callable[[int, int, float], None],
) -> str: ...

_Errand = tuple[str, dict[str, str], str, Optional[Path]]

class OpenSweep:
    def __init__(self, spec: str, out: str, prune: bool, own: list[_Class]) -> None: ...
    def found(self) -> int: ...
    def notes(self) -> list[str]: ...
    def missing(self) -> list[_Errand]: ...
    def put(self, id: str, partition: Path, bytes: bytes, notes: list[str]) -> None: ...
    def close(self) -> None: ...

def run_cell(
    errand: _Errand, file: Optional[str], trace_memory: Optional[int], own: list[_Class]
) -> tuple[Path, bytes, list[str]]: ...
# 64-bit numbers as bytes, and whether they are signed.
_Column = tuple[bytes, bool]

def write_columns(
    path: str, pages: _Column, times: Optional[_Column], format: Optional[str], page_shift: int
) -> int: ...
def write_trace(
    path: str, accesses: Iterable[tuple[int, int]], format: Optional[str], page_shift: int
) -> int: ...

class TraceReader:
    def __init__(self, trace: str, options: str) -> None: ...
    def page_shift(self) -> int: ...
    def note(self) -> Optional[str]: ...
    def next_batch(self) -> Optional[tuple[bytes, bytes, bytes, bytes, bytes]]: ...
