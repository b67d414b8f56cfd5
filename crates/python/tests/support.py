# SPDX-License-Identifier: Apache-2.0
"""What the tests share: the command to compare with, two policies, a trace."""

import json
import os
import random
import subprocess
import tempfile
import unittest
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

from agewise import policy

AGEWISE = os.environ["AGEWISE"]


def command(*arguments: str) -> list[dict[str, Any]]:
    """The rows that the command prints."""
    line = [AGEWISE, "lab", *arguments, "--format", "json"]
    printed = subprocess.run(line, check=True, capture_output=True)
    return [json.loads(line) for line in printed.stdout.splitlines()]


def without_build(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The build of the command need not be that of the wheel."""
    return [{key: value for key, value in row.items() if key != "build"} for row in rows]


def files(directory: str) -> dict[str, bytes]:
    """The files of a data set by name."""
    found = Path(directory).rglob("*.parquet")
    return {str(file.relative_to(directory)): file.read_bytes() for file in found}


class MyLru(policy.Policy):
    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.order: OrderedDict[int, None] = OrderedDict()

    def on_access(self, pages: list[int]) -> None:
        move = self.order.move_to_end
        for page in pages:
            move(page)

    def on_fault(self, page: int) -> None:
        self.order[page] = None

    def evict(self, page: int) -> int:
        return self.order.popitem(last=False)[0]


class MyFifo(policy.Policy):
    name = "my fifo"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.queue: deque[int] = deque()

    def on_fault(self, page: int) -> None:
        self.queue.append(page)

    def evict(self, page: int) -> list[int]:
        return [self.queue.popleft()]


def in_a_table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as a table has them, in which no row can leave out a column."""
    return [{**row, "policy_profile": row.get("policy_profile")} for row in rows]


class Case(unittest.TestCase):
    """A test with a directory of its own, and a trace in it."""

    def setUp(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.trace = os.path.join(self.directory.name, "one.trace")
        Path(self.trace).write_text("".join(f"{n * n % 1009}\n" for n in range(20000)))

    def zipf(self) -> str:
        """A million accesses, half of them of a fiftieth of the pages."""
        path = os.path.join(self.directory.name, "zipf.trace")
        if not os.path.exists(path):
            draw = random.Random(1)
            pages = (int(50_000 ** draw.random()) for _ in range(1_000_000))
            Path(path).write_text("".join(f"{page}\n" for page in pages))
        return path
