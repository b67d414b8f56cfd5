# SPDX-License-Identifier: Apache-2.0
"""The installed package: its examples, its types, its errors, and that it gives the command's rows.

Run by scripts/test-wheel, which names the command in AGEWISE and the page in EXAMPLES.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agewise import lab

AGEWISE = os.environ["AGEWISE"]
EXAMPLES = os.environ["EXAMPLES"]


def command(*arguments: str) -> list[dict[str, Any]]:
    """The rows that the command prints."""
    line = [AGEWISE, "lab", *arguments, "--format", "json"]
    printed = subprocess.run(line, check=True, capture_output=True)
    return [json.loads(line) for line in printed.stdout.splitlines()]


def without_build(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The build of the command need not be that of the wheel."""
    return [{key: value for key, value in row.items() if key != "build"} for row in rows]


class Package(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.trace = os.path.join(self.directory.name, "one.trace")
        Path(self.trace).write_text("".join(f"{n * n % 1009}\n" for n in range(20000)))

    def test_runs_give_the_rows_of_the_command(self) -> None:
        ours = lab.run(
            "kv",
            ["classic", "mglru"],
            memory="24M",
            swap="nvme",
            settings={"swappiness": 10},
            seeds=2,
        )
        theirs = command(
            "run", "kv", "--policy", "classic,mglru", "--memory", "24M", "--swap", "nvme",
            "--set", "swappiness=10", "--seeds", "2",
        )
        self.assertEqual(without_build(ours.rows()), without_build(theirs))
        self.assertEqual([list(row) for row in ours.rows()], [list(row) for row in theirs])

    def test_curves_give_the_rows_of_the_command(self) -> None:
        ours = lab.curve(self.trace, ["lru", "arc"], points=4).rows()
        theirs = command("curve", self.trace, "--policy", "lru,arc", "--points", "4")
        self.assertEqual(without_build(ours), without_build(theirs))

    def test_parquet_can_be_run_again(self) -> None:
        path = os.path.join(self.directory.name, "r.parquet")
        lab.run(self.trace, ["classic"], options={"access": "mapped"}).write_parquet(path)
        again = subprocess.run([AGEWISE, "lab", "rerun", path], capture_output=True, text=True)
        self.assertTrue(again.stdout.startswith("the same "), again.stdout + again.stderr)

    def test_errors_have_the_words_of_the_command(self) -> None:
        mistakes: list[tuple[Callable[[], object], str]] = [
            (lambda: lab.run("kv", ["mglru:7.3"]), "did you mean `mglru:7.2`"),
            (lambda: lab.run("kw"), "did you mean `kv`"),
            (lambda: lab.run("kv", swap="nmve"), "did you mean `nvme`"),
            (lambda: lab.run("kv", settings={"swapiness": 1}), "did you mean `swappiness`"),
            (lambda: lab.run("kv", options={"acess": "fd"}), "did you mean `access`"),
            (lambda: lab.run("kv", seeds=0), "1 at least"),
            (lambda: lab.curve(self.trace, ["lruu"]), "there is no policy 'lruu'"),
        ]
        for wrong, words in mistakes:
            with self.assertRaises(ValueError) as raised:
                wrong()
            self.assertIn(words, str(raised.exception))
        with self.assertRaises(FileNotFoundError):
            lab.curve("/nonexistent")

    def test_frames_need_polars_or_pandas(self) -> None:
        results = lab.run("kv", ["classic"], seeds=1)
        without = {"polars": None, "pandas": None}
        with unittest.mock.patch.dict(sys.modules, without):
            with self.assertRaisesRegex(ImportError, "pip install polars"):
                results.frame()

    @unittest.skipUnless(find_spec("polars"), "polars is not installed")
    def test_frames_hold_the_rows(self) -> None:
        results = lab.run("kv", ["classic"], seeds=1)
        self.assertEqual(results.frame().to_dicts(), results.rows())

    def test_ctrl_c_stops_at_once(self) -> None:
        timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
        timer.start()
        started = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            lab.run("kv", seeds=100_000)
        self.assertLess(time.monotonic() - started, 5.0)

    def test_examples_of_the_page_run(self) -> None:
        examples = re.findall(r"```python\n(.*?)```", Path(EXAMPLES).read_text(), re.S)
        self.assertEqual(len(examples), 3)
        for example in examples:
            line = [sys.executable, "-c", example]
            done = subprocess.run(line, cwd=self.directory.name, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(done.stdout.strip(), example)


if __name__ == "__main__":
    unittest.main()
