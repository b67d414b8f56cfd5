# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterable
from typing import Any, Optional, Union

from .policy import Policy as _Policy

_AnyPolicy = Union[str, tuple[type[_Policy], str, Optional[str]]]

__version__: str
build: str

class PolicyError(RuntimeError): ...

class Results:
    def __len__(self) -> int: ...
    def rows(self) -> list[dict[str, Any]]: ...
    def runs(self) -> list[dict[str, Any]]: ...
    def parquet(self) -> bytes: ...

def run(
    subject: str,
    policies: list[_AnyPolicy],
    agents: list[str],
    memory: Optional[str],
    swap: Optional[str],
    settings: list[str],
    damon: Optional[str],
    options: str,
    seeds: Optional[int],
) -> Results: ...
def curve(
    trace: str,
    policies: list[_AnyPolicy],
    sizes: list[str],
    points: int,
    sampling: Optional[tuple[float, int]],
    options: str,
) -> Results: ...
def sweep(
    spec: str, out: str, prune: bool, advance: Callable[[int, int, float], None]
) -> tuple[int, int, list[tuple[str, str]]]: ...
def write_trace(path: str, accesses: Iterable[tuple[int, int]], format: str) -> int: ...

class TraceReader:
    def __init__(self, trace: str, options: str) -> None: ...
    def next_batch(self) -> Optional[tuple[bytes, bytes, bytes, bytes, bytes]]: ...
