# SPDX-License-Identifier: Apache-2.0
from typing import Any, Optional

__version__: str
build: str

class Results:
    def rows(self) -> list[dict[str, Any]]: ...
    def runs(self) -> list[dict[str, Any]]: ...
    def parquet(self) -> bytes: ...

def run(
    subject: str,
    policies: list[str],
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
    policies: list[str],
    sizes: list[str],
    points: int,
    sampling: Optional[tuple[float, int]],
    options: str,
) -> Results: ...
