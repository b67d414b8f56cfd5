# SPDX-License-Identifier: Apache-2.0
"""Sweeps, here and on Ray."""

import json
import os
import subprocess
import sys
import unittest
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import agewise
from agewise import _sweep
from support import AGEWISE, Case, MyFifo, MyLru, files, without_build


class Sweeps(Case):
    def test_sweeps_are_those_of_the_command(self) -> None:
        spec = {
            "seeds": 2,
            "grid": [
                {"workload": self.trace, "policy": ["classic", "arc"], "memory": ["300p", "400p"]},
                {"workload": ["kv"], "policy": "mglru", "set": {"swappiness": [10]}},
            ],
            "skip": {"policy": "arc", "memory": "300p"},
        }
        seen: list[tuple[int, int]] = []
        out = os.path.join(self.directory.name, "ours")

        def progress(done: int, total: int, left: float) -> None:
            seen.append((done, total))

        swept = agewise.sweep(spec, out, progress=progress)
        self.assertEqual((swept.ran, swept.found, swept.failed), (4, 0, []))
        self.assertEqual(seen[-1], (4, 4))
        self.assertEqual(agewise.sweep(spec, out).found, 4)
        file = os.path.join(self.directory.name, "sweep.toml")
        Path(file).write_text(
            f"seeds = 2\n[[grid]]\nworkload = '{self.trace}'\npolicy = ['classic', 'arc']\n"
            "memory = ['300p', '400p']\n[[grid]]\nworkload = 'kv'\npolicy = 'mglru'\n"
            "set.swappiness = 10\n[[skip]]\npolicy = 'arc'\nmemory = '300p'\n"
        )
        theirs = os.path.join(self.directory.name, "theirs")
        line = [AGEWISE, "lab", "sweep", file, "-o", theirs]
        subprocess.run(line, check=True, capture_output=True)

        def rows(directory: str) -> list[str]:
            line = [AGEWISE, "lab", "show", directory, "--format", "json"]
            shown = subprocess.run(line, check=True, capture_output=True).stdout
            cells = [json.loads(line) for line in shown.splitlines()]
            return sorted(str(row) for row in without_build(cells))

        self.assertEqual(rows(out), rows(theirs))
        if find_spec("ray"):
            on_ray = os.path.join(self.directory.name, "on-ray")
            self.on_ray(spec, out, on_ray)
            self.assertEqual(rows(on_ray), rows(theirs))
        else:
            print("SKIPPED sweeps on Ray: ray is not installed", file=sys.stderr)
        with self.assertRaisesRegex(TypeError, "no values such as None"):
            agewise.sweep({"grid": {"trace": self.trace, "policy": "lru", "points": None}}, out)
        with self.assertRaisesRegex(ValueError, "sweeps run on"):
            agewise.sweep(spec, out, on="slurm")
        with self.assertRaisesRegex(ValueError, "did you mean `workload`"):
            agewise.sweep({"grid": {"worklod": "kv"}}, out)
        with self.assertRaisesRegex(ValueError, "not of this sweep"):
            agewise.sweep({"grid": {"workload": "kv", "policy": "classic"}}, out)

    def on_ray(self, spec: dict[str, Any], local: str, out: str) -> None:
        """The files of a sweep on Ray are those of the local one, whoever dies meanwhile."""
        import ray
        from agewise import _native, _ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=40)
        self.addCleanup(ray.shutdown)
        seen: list[tuple[int, int]] = []

        def progress(done: int, total: int, left: float) -> None:
            seen.append((done, total))

        swept = agewise.sweep(spec, out, on="ray", progress=progress)
        self.assertEqual((swept.ran, swept.found, swept.failed), (4, 0, []))
        self.assertEqual(seen[-1], (4, 4))
        self.assertEqual(files(out), files(local))
        self.assertEqual(agewise.sweep(spec, out, on="ray").found, 4)

        curves = {"grid": {"trace": self.trace, "policy": ["arc", "lru"], "sizes": "10%,40%"}}
        here, there = (os.path.join(self.directory.name, name) for name in ("here", "there"))
        self.assertEqual(agewise.sweep(curves, here).ran, 2)
        self.assertEqual(agewise.sweep(curves, there, on="ray").ran, 2)
        self.assertEqual(files(there), files(here))

        marker = os.path.join(self.directory.name, "died")

        def mortal(errand: _ray.Errand, content: Any, memory: Any, own: Any) -> _ray.Done:
            # The first cell kills its worker once, the cell of kv each time.
            if errand[1]["workload"] == "kv":
                os._exit(9)
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return _ray.run_cell(errand, content, memory, own)
            os._exit(9)

        # An exception keeps no directory locked.
        def broken(done: int, total: int, left: float) -> None:
            raise ZeroDivisionError

        failed = os.path.join(self.directory.name, "failed")
        try:
            agewise.sweep(spec, failed, on="ray", progress=broken)
            self.fail("the exception was lost")
        except ZeroDivisionError as error:
            kept = error
        self.assertEqual(agewise.sweep(spec, failed).failed, [])
        self.assertIsNotNone(kept.__traceback__)

        described = os.path.join(self.directory.name, "described.toml")
        Path(described).write_text(_sweep._toml(spec))
        again = os.path.join(self.directory.name, "again")
        opened = _native.OpenSweep(described, again, False, [])
        with self.assertWarnsRegex(UserWarning, "its worker died, it is run again"):
            ran, [(cell, why)] = _ray.sweep(opened, None, [], progress, mortal)
        self.assertEqual(ran, 3)
        self.assertIn("workload=kv", cell)
        self.assertIn("3 workers died of it", why)
        self.assertTrue(set(files(again).items()) < set(files(local).items()))

    def test_traces_may_be_given_memory(self) -> None:
        out = os.path.join(self.directory.name, "swept")
        spec = {"grid": {"trace": self.trace, "policy": "lru", "points": 2}}
        for on in ["local", "ray"] if find_spec("ray") else ["local"]:
            swept = agewise.sweep(spec, out, on=on, trace_memory=1)
            [(_, why)] = swept.failed
            self.assertIn("memory", why)
        self.assertEqual(agewise.sweep(spec, out, trace_memory=1 << 30).ran, 1)
        with self.assertRaisesRegex(ValueError, "1 byte at least"):
            agewise.sweep(spec, out, trace_memory=0)

    def test_classes_are_policies_of_sweeps(self) -> None:
        runs = {"workload": "kv", "policy": ["lru", MyLru], "memory": ["12M", "16M"], "seeds": 2}
        curves = {"trace": self.trace, "policy": [MyFifo, "fifo", MyLru, "lru"], "points": 3}
        for name, grid in (("runs", runs), ("curves", curves)):
            spec = {"grid": grid, "skip": {"policy": MyLru, "memory": "16M"}}
            skips = name == "runs"
            if not skips:
                del spec["skip"]
            out = os.path.join(self.directory.name, name)
            swept = agewise.sweep(spec, out)
            self.assertEqual((swept.ran, swept.failed), (4 - skips, []))
            self.assertEqual(agewise.sweep(spec, out).found, 4 - skips)
            self.assertEqual(agewise.sweep({"grid": grid}, out).ran, skips)
            if find_spec("ray"):
                on_ray = out + "-on-ray"
                self.assertEqual(agewise.sweep({"grid": grid}, on_ray, on="ray").failed, [])
                self.assertEqual(files(on_ray), files(out))
            if find_spec("polars"):
                rows = agewise.sweep({"grid": grid}, out).frame().to_dicts()
                number = "major_faults" if skips else "misses"
                ours = [row[number] for row in rows if row["policy"] in ("MyLru", "my fifo")]
                theirs = [row[number] for row in rows if row["policy"] in ("lru", "fifo")]
                self.assertEqual(sorted(ours), sorted(theirs))

    def test_a_class_that_changed_is_run_again(self) -> None:
        out = os.path.join(self.directory.name, "swept")

        class Base(MyFifo):
            share: Any = 1

        def ran(of: Any) -> tuple[int, int]:
            grid = {"trace": self.trace, "policy": ["lru", of], "points": 2}
            swept = agewise.sweep({"grid": grid}, out, prune=True)
            return swept.ran, swept.found

        self.assertEqual(ran(Base), (2, 0))
        self.assertEqual(ran(Base), (0, 2))
        Base.share = 2
        self.assertEqual(ran(Base), (1, 1))

        class Base(MyFifo):  # type: ignore[no-redef]
            share: Any = 2

            def on_fault(self, page: int) -> None:
                """Another source."""
                super().on_fault(page)

        self.assertEqual(ran(Base), (1, 1))
        # One made of attributes needs no source; one of methods does, or a version.
        self.assertEqual(ran(type("Base", (MyFifo,), {"share": 3})), (1, 1))
        names: dict[str, Any] = {"MyFifo": MyFifo}
        exec("class Typed(MyFifo):\n    def on_fault(self, page): self.queue.append(page)", names)
        typed = names["Typed"]
        with self.assertRaisesRegex(ValueError, "source of my fifo cannot be read.*a `version`"):
            ran(typed)
        typed.version = 1
        self.assertEqual(ran(typed), (1, 1))

    def test_a_class_that_fails_fails_its_cells(self) -> None:
        class Picky(MyLru):
            def __init__(self, capacity: int) -> None:
                super().__init__(capacity)
                if capacity > 100:
                    raise KeyError("too large")

        class Wrong(MyLru):
            def evict(self, page: int) -> int:
                return -1

        sizes = {"sizes": ["50", "400"]}
        grid = {"trace": self.trace, "policy": ["lru", Picky, Wrong], **sizes}
        told = []
        for on in ["local", "ray"] if find_spec("ray") else ["local"]:
            with self.assertWarnsRegex(UserWarning, "3 cells failed, such as policy="):
                swept = agewise.sweep({"grid": grid}, os.path.join(self.directory.name, on), on=on)
            self.assertEqual(swept.ran, 3)
            told.append(sorted(why for _, why in swept.failed))
        self.assertEqual(told, told[:1] * len(told))
        picky, *wrong = told[0]
        self.assertRegex(picky, r"Picky: KeyError: 'too large' \(.*test_sweeps.py, line \d+\)")
        self.assertEqual(len(wrong), 2)
        self.assertIn("Wrong.evict() gave page -1, which is not in memory", wrong[0])
        with self.assertRaisesRegex(ValueError, "several policies are called 'lru'"):
            named = type("Named", (MyLru,), {"name": "lru"})
            agewise.sweep({"policy": "lru", "grid": {"trace": self.trace, "policy": named}}, "out")

    def test_damaged_cells_are_told(self) -> None:
        out = os.path.join(self.directory.name, "swept")
        spec = {"grid": {"trace": self.trace, "policy": ["lru", "fifo"], "points": 2}}
        for on in ["local", "ray"] if find_spec("ray") else ["local"]:
            agewise.sweep(spec, out, on=on)
            whole = files(out)
            first = sorted(whole)[0]
            Path(out, first).write_bytes(whole[first][:-100])
            with self.assertWarnsRegex(UserWarning, f"{first} is damaged: its cell is run again"):
                swept = agewise.sweep(spec, out, on=on)
            self.assertEqual((swept.ran, swept.found, files(out)), (1, 1, whole))

    def test_what_the_command_notes_on_a_sweep_is_a_warning(self) -> None:
        out = os.path.join(self.directory.name, "swept")
        grid = {"trace": self.trace, "policy": "lru", "points": 2}
        spec = {"grid": grid, "skip": {"policy": "arc"}}
        for on in ["local", "ray"] if find_spec("ray") else ["local"]:
            with self.assertWarnsRegex(UserWarning, "leaves out no cell"):
                agewise.sweep(spec, out, on=on)

    def test_workers_refuse_cells_of_others(self) -> None:
        from agewise import _native, _ray

        spec = os.path.join(self.directory.name, "one.toml")
        Path(spec).write_text(f"[[grid]]\nworkload = '{self.trace}'\npolicy = 'lru'\n")
        opened = _native.OpenSweep(spec, os.path.join(self.directory.name, "one"), False, [])
        [(name, values, sha256, file)] = opened.missing()
        self.assertEqual(str(file), self.trace)
        other = os.path.join(self.directory.name, "other.trace")
        Path(other).write_text("1\n2\n")
        with self.assertRaisesRegex(ValueError, "another build of agewise, or another file"):
            _native.run_cell((name, values, sha256, file), other, None, [])
        # A class that was imported here, whose source was another where the sweep is.
        Path(spec).write_text(f"[[grid]]\nworkload = '{self.trace}'\npolicy = 'MyLru'\n")
        own: Any = [(MyLru, "MyLru", "another")]
        opened = _native.OpenSweep(spec, os.path.join(self.directory.name, "two"), False, own)
        with self.assertRaisesRegex(ValueError, "another file, manifest or policy"):
            _ray.run_cell(opened.missing()[0], Path(self.trace).read_bytes(), None, own)

    @unittest.skipUnless(find_spec("polars"), "polars is not installed")
    def test_sweeps_are_read_in_place(self) -> None:
        import polars

        out = os.path.join(self.directory.name, "swept")
        spec = {"seeds": 1, "grid": {"workload": "kv", "policy": ["mglru:7.2", "lru"]}}
        frame = agewise.sweep(spec, out).frame()
        self.assertEqual(sorted(frame["policy"]), ["lru", "mglru:7.2"])
        lazy = polars.scan_parquet(out + "/**/*.parquet", hive_partitioning=True)
        self.assertEqual(sorted(lazy.collect()["policy"]), ["lru", "mglru:7.2"])

    @unittest.skipUnless(find_spec("numpy"), "numpy is not installed")
    def test_numbers_of_numpy_are_numbers(self) -> None:
        numpy = import_module("numpy")
        grid = {
            "trace": self.trace,
            "policy": numpy.array(["lru", "arc"]),
            "points": numpy.int64(2),
            "rate": numpy.array([0.05, 0.1]),
        }
        swept = agewise.sweep({"grid": grid}, os.path.join(self.directory.name, "numpy"))
        self.assertEqual((swept.ran, swept.failed), (4, []))
