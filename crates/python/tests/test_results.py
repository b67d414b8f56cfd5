# SPDX-License-Identifier: Apache-2.0
"""Results as frames, Arrow tables and plots."""

import pickle
import sys
import unittest
import unittest.mock
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import agewise
from agewise import lab, policy
from support import Case, MyLru, in_a_table


class Results(Case):
    def test_results_show_what_they_are(self) -> None:
        results = lab.curve(self.trace, "lru", points=2)
        self.assertEqual(list(results), results.rows())
        self.assertIn(f"{len(results)} rows", repr(results))

    def test_frames_need_polars_or_pandas(self) -> None:
        results = lab.run("kv", ["classic"], seeds=1)
        without = {"polars": None, "pandas": None}
        with unittest.mock.patch.dict(sys.modules, without):
            with self.assertRaisesRegex(ImportError, "pip install polars"):
                results.frame()

    @unittest.skipUnless(find_spec("polars"), "polars is not installed")
    def test_frames_hold_the_rows(self) -> None:
        results = lab.run("kv", ["classic"], seeds=1)
        self.assertEqual(results.frame().to_dicts(), in_a_table(results.rows()))
        curves = lab.curve(self.trace, ["lru"], points=3)
        self.assertEqual(curves.frame().to_dicts(), in_a_table(curves.rows()))

    @unittest.skipUnless(find_spec("pyarrow"), "pyarrow is not installed")
    def test_results_are_tables_of_arrow(self) -> None:
        pyarrow = import_module("pyarrow")
        results = lab.run("kv", ["classic"], seeds=1)
        table = pyarrow.table(results)
        self.assertEqual(table.to_pylist(), in_a_table(results.rows()))
        kinds = {field.name: str(field.type) for field in table.schema}
        some = [kinds[name] for name in ("policy", "n", "mean")]
        self.assertEqual(some, ["string", "int64", "double"])
        # Again: a stream can be read once, results more than once.
        self.assertEqual(len(pyarrow.table(results)), len(results))

    def test_plots_need_altair_or_matplotlib(self) -> None:
        results = lab.curve(self.trace, ["lru"], points=3)
        self.assertEqual(len(results), 3)
        without = {"altair": None, "matplotlib": None}
        with unittest.mock.patch.dict(sys.modules, without):
            with self.assertRaisesRegex(ImportError, "pip install altair"):
                results.plot()
        with self.assertRaisesRegex(ValueError, "no measure 'faults'"):
            lab.run("kv", ["classic"], seeds=1).plot("faults")

    @unittest.skipUnless(find_spec("altair"), "altair is not installed")
    def test_plots_are_drawn(self) -> None:
        curve = lab.curve(self.trace, ["lru", "opt"], points=3).plot().to_dict()
        self.assertEqual(len(curve["data"]["values"]), 6)
        bars = lab.run("kv", ["classic", "lru"], seeds=2).plot().to_dict()
        self.assertEqual(len(bars["layer"]), 2)
        self.assertEqual(bars["layer"][0]["encoding"]["y"]["field"], "policy")
        self.assertNotIn("layer", curve)
        sampled = lab.curve(self.trace, ["lru", "opt"], points=3, sampling=(0.2, 4))
        drawn = sampled.plot().to_dict()
        self.assertEqual([layer["mark"]["type"] for layer in drawn["layer"]], ["area", "line"])
        for row, point in zip(sampled, drawn["data"]["values"]):
            half = row["miss_ratio_error"]
            self.assertGreater(half, 0.0)
            self.assertEqual(point["low"], max(0.0, row["miss_ratio"] - half))
            self.assertEqual(point["high"], min(1.0, row["miss_ratio"] + half))
        # A yardstick has no value of this measure.
        few = lab.run("kv", ["classic", "lru"], seeds=2).plot("scanned").to_dict()
        self.assertEqual([bar["policy"] for bar in few["data"]["values"]], ["classic"])

    @unittest.skipUnless(find_spec("matplotlib"), "matplotlib is not installed")
    def test_plots_of_matplotlib_are_drawn(self) -> None:
        import_module("matplotlib").use("agg")
        with unittest.mock.patch.dict(sys.modules, {"altair": None}):
            exact = lab.curve(self.trace, ["lru", "opt"], points=3).plot()
            self.assertEqual((len(exact.lines), len(exact.collections)), (2, 0))
            sampled = lab.curve(self.trace, ["lru", "opt"], points=3, sampling=(0.2, 4))
            axes = sampled.plot()
            self.assertEqual((len(axes.lines), len(axes.collections)), (2, 2))
            corners = axes.collections[0].get_paths()[0].vertices[:, 1]
            first = sampled.rows()[0]
            self.assertIn(first["miss_ratio"] - first["miss_ratio_error"], corners)
            bars = lab.run("kv", ["classic", "lru"], seeds=2).plot("scanned")
            self.assertEqual(len(bars.patches), 1)

    def test_what_can_be_pickled_is(self) -> None:
        results = lab.curve(self.trace, "lru", sizes=5)
        with self.assertRaisesRegex(TypeError, r"rows\(\) can"):
            pickle.dumps(results)
        kept: list[Any] = [
            results.rows(),
            lab.whatif(self.trace, sample=50),
            agewise.Sweep("out", 1, 2, [("a", "b")]),
            MyLru,
            MyLru(5).capacity,
        ]
        for one in kept:
            self.assertEqual(pickle.loads(pickle.dumps(one)), one)
        error = pickle.loads(pickle.dumps(agewise.CommandError("gone", 3)))
        self.assertEqual((str(error), error.status), ("gone", 3))
        raised = pickle.loads(pickle.dumps(policy.PolicyError("none")))
        self.assertEqual((type(raised), str(raised)), (policy.PolicyError, "none"))
