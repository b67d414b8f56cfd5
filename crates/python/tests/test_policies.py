# SPDX-License-Identifier: Apache-2.0
"""Policies written in Python."""

import linecache
import sys
import time
from typing import Any

from agewise import lab, policy
from support import Case, MyFifo, MyLru


class Policies(Case):
    def test_policies_in_python_count_as_ours(self) -> None:
        for trace in (self.trace, self.zipf()):
            rows = lab.curve(trace, ["lru", MyLru, MyFifo, "fifo"], points=5).rows()
            misses: dict[str, list[int]] = {}
            for row in rows:
                misses.setdefault(row["policy"], []).append(row["misses"])
            self.assertEqual(misses["MyLru"], misses["lru"])
            self.assertEqual(misses["my fifo"], misses["fifo"])
        self.assertRegex(rows[-5 - 1]["policy_sha256"], "^[0-9a-f]{64}$")
        runs = lab.run(self.trace, ["lru", MyLru, "classic"], memory="300p").runs()
        faults = {row["policy"]: row["major_faults"] for row in runs}
        self.assertEqual(faults["MyLru"], faults["lru"])
        self.assertIsNone(runs[0]["scanned"])
        self.assertGreater(runs[-1]["scanned"], 0)

    def test_a_class_of_a_notebook_has_a_source(self) -> None:
        def cell(number: int) -> Any:
            # As IPython keeps what was typed into a cell.
            text = f"class Mine(MyLru):\n    number = {number}\n\n"
            text += "    def evict(self, page):\n        return super().evict(page)\n"
            name = f"<cell {number}>"
            linecache.cache[name] = (len(text), None, text.splitlines(True), name)
            names: dict[str, Any] = {"MyLru": MyLru, "__name__": "__main__"}
            exec(compile(text, name, "exec"), names)
            return names["Mine"]

        hashes = set()
        for mine in (cell(1), cell(2), cell(2)):
            [row] = lab.curve(self.trace, mine, sizes=9).rows()
            hashes.add(row["policy_sha256"])
        self.assertNotIn(None, hashes)
        self.assertEqual(len(hashes), 2)

    def test_policies_may_run_studies(self) -> None:
        path = self.trace

        class Nested(MyLru):
            def __init__(self, capacity: int) -> None:
                super().__init__(capacity)
                lab.curve(path, ["lru", "fifo"], points=2)

        rows = lab.curve(path, ["lru", Nested], points=8).rows()
        misses = {
            name: [row["misses"] for row in rows if row["policy"] == name]
            for name in ("lru", "Nested")
        }
        self.assertEqual(misses["Nested"], misses["lru"])

    def test_policies_in_python_are_fast(self) -> None:
        trace = self.zipf()
        # Of the processor: others may be busy on the machine.
        started = time.process_time()
        lab.curve(trace, [MyLru], sizes=["50%"])
        took = time.process_time() - started
        print(f"LRU in Python: {1e6 / took:.0f} accesses per CPU second", file=sys.stderr)
        # A tenth of the measured speed.
        self.assertLess(took, 3.0)

    def test_policies_that_make_no_sense_are_told(self) -> None:
        wrongs: list[tuple[object, str]] = [
            ([], r"Wrong.evict\(\) gave no page, but memory is full \(access \d+, to page \d+\)"),
            (None, r"gave None, which is no page \(access"),
            (10**6, r"gave page 1000000, which is not in memory \(access"),
            (-1, "gave page -1, which is not in memory"),
            ([0, 0], "gave page 0, which is not in memory"),
            (1.5, "gave 1.5, which is no page"),
            (range(10**12), "gave page 50, which is not in memory"),
        ]
        for gives, words in wrongs:

            class Wrong(MyLru):
                def evict(self, page: int) -> Any:
                    return gives

            with self.assertRaisesRegex(policy.PolicyError, words):
                lab.curve(self.trace, [Wrong], sizes=[50])

        class Broken(MyLru):
            def on_fault(self, page: int) -> None:
                raise KeyError("mine")

        for seeds in (1, 2, 10):
            with self.assertRaisesRegex(KeyError, "mine"):
                lab.run(self.trace, [Broken], seeds=seeds)

        class Half(MyLru):
            def evict(self, page: int) -> Any:
                yield super().evict(page)
                raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            lab.curve(self.trace, [Half], sizes=[50])
        with self.assertRaisesRegex(TypeError, "subclasses of agewise.policy.Policy"):
            lab.curve(self.trace, [int])  # type: ignore[list-item]

    def test_policies_have_names_of_their_own(self) -> None:
        class Mine(MyLru):
            name = "lru"

        with self.assertRaisesRegex(ValueError, "several policies are called 'lru'"):
            lab.curve(self.trace, ["lru", Mine])
        with self.assertRaisesRegex(ValueError, "several policies are called 'MyLru'"):
            lab.run(self.trace, [MyLru, type("MyLru", (MyLru,), {})])
        with self.assertRaisesRegex(ValueError, "the policy lru is given twice"):
            lab.curve(self.trace, ["lru", "arc", "lru"])
        with self.assertRaisesRegex(ValueError, "the policy lru is given twice"):
            lab.run(self.trace, ["lru", "lru"])
        with self.assertRaisesRegex(TypeError, "is a text, not 7"):
            lab.curve(self.trace, type("Mine", (MyLru,), {"name": 7}))
