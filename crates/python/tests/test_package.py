# SPDX-License-Identifier: Apache-2.0
"""The installed package: its examples, its types, its errors, and that it gives the command's rows.

Run by scripts/test-wheel, which names the command in AGEWISE and the pages in EXAMPLES.
"""

import errno
import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
from collections import OrderedDict, deque
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import agewise
from agewise import _sweep, lab, policy, trace

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
            (lambda: lab.run("kv", seeds=0), "from 1 to 100000"),
            (lambda: lab.run("kv", seeds=-1), "from 1 to 100000"),
            (lambda: lab.run("kv", seeds=10**12), "from 1 to 100000"),
            (lambda: lab.reproduce("refault-distance", seeds=-1), "from 1 to 100000"),
            (lambda: lab.curve(self.trace, options={"access": "mapped"}), "access is for runs"),
            (lambda: lab.run(self.trace, options={"collapse_repeats": "yes"}), "cannot be `yes`"),
            (lambda: lab.curve(self.trace, trace_memory=1), "raise --trace-memory"),
            (lambda: lab.run(self.trace, trace_memory=1), "raise --trace-memory"),
            (lambda: lab.run("kv", ["arc"], proactive="cost"), "the agent cost reclaims beside"),
            (lambda: lab.curve(self.trace, ["lruu"]), "did you mean 'lru'"),
            (lambda: lab.curve(self.trace, []), "no policy given"),
            (lambda: lab.curve(self.trace, points=-1), "from 1 to 4096"),
            (lambda: lab.curve(self.trace, points=5000), "from 1 to 4096"),
            (lambda: lab.curve(self.trace, sampling=(0.1, -1)), "at least 2 samples"),
            (lambda: lab.curve(self.trace, trace_memory=-1), "trace_memory: 1 byte"),
            (lambda: lab.run("kv", trace_memory=-1), "trace_memory: 1 byte"),
            (lambda: agewise.sweep({}, "out"), "spec: there is no [[grid]]"),
        ]
        for wrong, words in mistakes:
            with self.assertRaises(ValueError) as raised:
                wrong()
            self.assertIn(words, str(raised.exception))
        with self.assertRaises(FileNotFoundError):
            lab.curve("/nonexistent")
        with self.assertRaises(OSError) as full:
            trace.write("/dev/full", range(100_000))
        self.assertEqual(full.exception.errno, errno.ENOSPC)
        with self.assertRaises(NotADirectoryError):
            agewise.sweep({"grid": {"trace": self.trace, "policy": "lru"}}, self.trace + "/out")

    def test_what_is_given_in_place_of_another_says_what_to_do(self) -> None:
        mistakes: list[tuple[Callable[[], object], str]] = [
            (lambda: lab.curve([1, 2, 1]), "not a list: agewise.trace.write"),  # type: ignore[arg-type]
            (lambda: lab.run({"page": [1]}), "not a dict: agewise.trace.write"),  # type: ignore[arg-type]
            (lambda: lab.curve(self.trace, MyLru(5)), "subclasses of agewise"),  # type: ignore[arg-type]
            (lambda: agewise.sweep({"grid": {"policy": MyLru}}, "out"), "by their names"),
            (lambda: pickle.dumps(lab.curve(self.trace, "lru", sizes=5)), r"rows\(\) can"),
        ]
        for wrong, words in mistakes:
            with self.assertRaisesRegex(TypeError, words):
                wrong()

    def test_one_policy_needs_no_list(self) -> None:
        for one, of in (("lru", "lru"), (MyLru, "MyLru")):
            [row] = lab.curve(self.trace, one, sizes="10%").rows()
            self.assertEqual((row["policy"], row["size_pages"]), (of, row["footprint_pages"] // 10))
        settings = {"hw_accessed_bit": True}
        [row, *_] = lab.run("kv", "classic", settings=settings, seeds=1).rows()
        self.assertEqual(row["settings"], "hw_accessed_bit=1")
        runs = lab.run("kv", "classic", proactive="cost", seeds=1).runs()
        self.assertEqual([run["policy"] for run in runs], ["classic", "classic+cost"])

    def test_notes_are_warnings(self) -> None:
        with self.assertWarnsRegex(UserWarning, "mglru-7.2 below 64 pages") as told:
            lab.curve(self.trace, ["lru", "mglru-7.2"], sizes=[10, 100])
        self.assertEqual(told.filename, __file__)
        cut = os.path.join(self.directory.name, "cut.pages")
        trace.write(cut, [n * n % 100_003 for n in range(100_000)])
        whole = Path(cut).read_bytes()
        Path(cut).write_bytes(whole[: len(whole) // 2])
        with self.assertWarnsRegex(UserWarning, "cut off"):
            lab.curve(cut, "lru", points=2)
        with self.assertWarnsRegex(UserWarning, "cut off"):
            lab.run(cut, "classic", seeds=1)
        if find_spec("pyarrow"):
            with self.assertWarnsRegex(UserWarning, "cut off"):
                list(trace.open(cut))

    def test_a_forked_process_has_threads_of_its_own(self) -> None:
        lab.curve(self.trace, "lru", points=2)
        child = os.fork()
        if child == 0:
            lab.curve(self.trace, ["lru", "arc"], points=4)
            os._exit(7)
        deadline = time.monotonic() + 60.0
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.01)
        self.assertEqual(os.waitstatus_to_exitcode(ended[1]), 7)

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

    def test_studies_give_the_rows_of_the_command(self) -> None:
        theirs = command("whatif", self.trace, "--sample", "50")
        self.assertEqual(lab.whatif(self.trace, sample=50), theirs)
        seen: list[tuple[int, int]] = []

        def progress(done: int, total: int, left: float) -> None:
            seen.append((done, total))

        ours = lab.reproduce("refault-distance", seeds=2, progress=progress)
        self.assertEqual(ours, command("reproduce", "refault-distance", "--seeds", "2"))
        self.assertEqual(seen[-1][0], seen[-1][1])
        with self.assertRaisesRegex(ValueError, "did you mean `refault-distance`"):
            lab.reproduce("refault-distanc")
        with self.assertRaisesRegex(ValueError, "no row of kernel 5.4"):
            lab.verify_kernel(kernel="5.4")
        with self.assertRaises(FileNotFoundError):
            lab.verify_kernel(reference="/nonexistent")
        with self.assertRaisesRegex(ValueError, "not a share of the pages"):
            lab.whatif(self.trace, sample=0)
        with self.assertRaises(FileNotFoundError):
            lab.whatif("/nonexistent")

    def test_verify_kernel_gives_the_rows_of_the_command(self) -> None:
        for extended in (False, True):
            ours = lab.verify_kernel(
                kernel="7.2", single=True, flush_phases=1, extended=extended
            )
            line = [AGEWISE, "lab", "verify-kernel", "--kernel", "7.2", "--single"]
            line += ["--flush-phases", "1", "--format", "json"]
            line += ["--extended"] * extended
            # Its exit status says whether all counts agree.
            printed = subprocess.run(line, capture_output=True).stdout
            rows = [json.loads(row) for row in printed.splitlines()]
            self.assertEqual(ours, rows)
            self.assertGreater(len(ours), 0)

    def test_size_runs_the_command(self) -> None:
        rows = lab.size(self.trace, options={"cost_model": "nvme", "points": 4})
        self.assertEqual(rows[-1]["cost_model"], "nvme")
        self.assertEqual(len(rows), 5)
        with self.assertRaisesRegex(FileNotFoundError, "/nonexistent"):
            lab.size("/nonexistent")
        with self.assertRaisesRegex(ValueError, "invalid value 'x'"):
            lab.size(self.trace, options={"points": "x"})
        with unittest.mock.patch.dict(os.environ, {"AGEWISE": "", "PATH": ""}):
            with self.assertRaisesRegex(FileNotFoundError, "install it, or set AGEWISE"):
                lab.size(self.trace)

    @unittest.skipUnless(os.geteuid() == 0, "page tables are read as root")
    def test_live_programs_are_reported(self) -> None:
        program = subprocess.Popen(["sleep", "60"])
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        try:
            ages = agewise.report(pid=program.pid, duration="1s")[0]
        except agewise.CommandError as error:
            self.skipTest(str(error))
        self.assertEqual((ages["record"], ages["kind"]), ("ages", "process"))
        watched = agewise.watch(pid=program.pid, every="1s")
        looks = (record["unix_ms"] for record in watched if record["record"] == "ages")
        self.assertLess(next(looks), next(looks))
        watched.close()  # type: ignore[attr-defined]
        with self.assertRaisesRegex(agewise.CommandError, "does not exist") as raised:
            agewise.report(pid=2**22)
        self.assertEqual(raised.exception.status, 1)

    def test_what_went_wrong_is_in_the_error(self) -> None:
        said = "agewise: no process could be looked at: see the lines above\n"
        fake = os.path.join(self.directory.name, "agewise")
        row = '{"record":"ages","troubles":["7 (x): cannot read /proc/7/maps"]}'
        Path(fake).write_text(f"#!/bin/sh\necho '{row}'\nprintf '{said}' >&2\nexit 1\n")
        os.chmod(fake, 0o755)
        with unittest.mock.patch.dict(os.environ, {"AGEWISE": fake}):
            with self.assertRaisesRegex(agewise.CommandError, "looked at: 7 .x.: cannot read"):
                agewise.report(pid=7)

    def test_ctrl_c_ends_a_report_at_once(self) -> None:
        # As polars does when it is imported.
        signal.siginterrupt(signal.SIGINT, False)
        self.addCleanup(signal.siginterrupt, signal.SIGINT, True)
        fake = os.path.join(self.directory.name, "agewise")
        Path(fake).write_text("#!/bin/sh\nexec sleep 60\n")
        os.chmod(fake, 0o755)
        timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        started = time.monotonic()
        with unittest.mock.patch.dict(os.environ, {"AGEWISE": fake}):
            with self.assertRaises(KeyboardInterrupt):
                agewise.report(pid=7)
        self.assertLess(time.monotonic() - started, 30.0)

    def test_a_command_whose_rows_nobody_reads_undoes_its_changes(self) -> None:
        fake = os.path.join(self.directory.name, "agewise")
        undone = Path(self.directory.name, "undone")
        # As the command does, it looks for signals between two rows.
        text = f"""#!{sys.executable}
import pathlib, signal, sys
stopped = []
signal.signal(signal.SIGINT, lambda *_: stopped.append(1))
try:
    while not stopped:
        print('{{"record":"ages"}}')
except BrokenPipeError:
    sys.stdout = None
pathlib.Path({str(undone)!r}).touch()
"""
        Path(fake).write_text(text)
        os.chmod(fake, 0o755)
        started = time.monotonic()
        with unittest.mock.patch.dict(os.environ, {"AGEWISE": fake}):
            watched = agewise.watch(pid=7)
            next(watched)
            time.sleep(0.5)
            watched.close()  # type: ignore[attr-defined]
        self.assertTrue(undone.exists())
        self.assertLess(time.monotonic() - started, 8.0)

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

    def zipf(self) -> str:
        """A million accesses, half of them of a fiftieth of the pages."""
        path = os.path.join(self.directory.name, "zipf.trace")
        if not os.path.exists(path):
            draw = random.Random(1)
            pages = (int(50_000 ** draw.random()) for _ in range(1_000_000))
            Path(path).write_text("".join(f"{page}\n" for page in pages))
        return path

    def test_policies_in_python_are_fast(self) -> None:
        trace = self.zipf()
        started = time.monotonic()
        lab.curve(trace, [MyLru], sizes=["50%"])
        took = time.monotonic() - started
        print(f"LRU in Python: {1e6 / took:.0f} accesses/s", file=sys.stderr)
        # A tenth of the promised speed: the machine may be busy.
        self.assertLess(took, 10.0)

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

    def test_killed_programs_are_told(self) -> None:
        with self.assertWarnsRegex(UserWarning, "killed for lack of memory in 1 of 1 runs"):
            lab.run("kv", "classic", memory="128p", swap="none", seeds=1)

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

    def test_results_show_what_they_are(self) -> None:
        results = lab.curve(self.trace, "lru", points=2)
        self.assertEqual(list(results), results.rows())
        self.assertIn(f"{len(results)} rows", repr(results))

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

        def mortal(errand: _ray.Errand, content: Any, trace_memory: Any) -> _ray.Done:
            # The first cell kills its worker once, the cell of kv each time.
            if errand[1]["workload"] == "kv":
                os._exit(9)
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return _ray.run_cell(errand, content, trace_memory)
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
        opened = _native.OpenSweep(described, again, False)
        with self.assertWarnsRegex(UserWarning, "its worker died, it is run again"):
            ran, [(cell, why)] = _ray.sweep(opened, None, progress, mortal)
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
        from agewise import _native

        spec = os.path.join(self.directory.name, "one.toml")
        Path(spec).write_text(f"[[grid]]\nworkload = '{self.trace}'\npolicy = 'lru'\n")
        opened = _native.OpenSweep(spec, os.path.join(self.directory.name, "one"), False)
        [(name, values, sha256, file)] = opened.missing()
        self.assertEqual(str(file), self.trace)
        other = os.path.join(self.directory.name, "other.trace")
        Path(other).write_text("1\n2\n")
        with self.assertRaisesRegex(ValueError, "another build of agewise, or another file"):
            _native.run_cell((name, values, sha256, file), other, None)

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

    @unittest.skipUnless(find_spec("pyarrow"), "pyarrow is not installed")
    def test_a_null_has_its_position(self) -> None:
        pyarrow = import_module("pyarrow")
        path = os.path.join(self.directory.name, "null.pages")
        with self.assertRaisesRegex(ValueError, "access 1: .* is no page"):
            trace.write(path, pyarrow.array([1, None]))

    @unittest.skipUnless(find_spec("numpy"), "numpy is not installed")
    def test_what_is_masked_is_no_page(self) -> None:
        numpy = import_module("numpy")
        path = os.path.join(self.directory.name, "masked.pages")
        pages = numpy.ma.array([1, 2, 3], mask=[False, True, False])
        with self.assertRaisesRegex(ValueError, "access 1: .*None.* is no page"):
            trace.write(path, pages)
        self.assertEqual(trace.write(path, numpy.ma.array([1, 2, 3])), 3)

    def test_traces_are_written_as_they_should_be(self) -> None:
        path = os.path.join(self.directory.name, "written.pages")
        pages = [int(line) for line in Path(self.trace).read_text().split()]
        self.assertEqual(trace.write(path, pages, time_ns=range(len(pages))), len(pages))
        ours = [(row["size_pages"], row["misses"]) for row in lab.curve(path, ["lru"]).rows()]
        of_text = lab.curve(self.trace, ["lru"]).rows()
        plain = [(row["size_pages"], row["misses"]) for row in of_text]
        self.assertEqual(ours, plain)
        for wrong in ([1, -1], [1, 1.5], [1, float("nan")], [1, None], [1, 2**64]):
            with self.assertRaisesRegex(ValueError, "access 1: .* is no page"):
                trace.write(path, wrong)
        with self.assertRaisesRegex(ValueError, "access 1: .* is no page and time"):
            trace.write(path, [1, 2], time_ns=[3])
        with self.assertRaisesRegex(ValueError, "more times than pages"):
            trace.write(path, [1, 2], time_ns=[3, 3, 3])
        with self.assertRaisesRegex(ValueError, "access 1: its time 2 is before 3"):
            trace.write(path, [1, 2], time_ns=[3, 2])
        # What was there stays until another is whole.
        self.assertEqual(len(lab.curve(path, ["lru"], points=3)), 3)
        self.assertEqual(list(Path(path).parent.glob("*.part")), [])
        with self.assertRaisesRegex(ValueError, "format is"):
            trace.write(path, [], format="oracleGeneral")

    def test_names_of_traces_say_their_format(self) -> None:
        named = os.path.join(self.directory.name, "named")
        trace.write(named + ".csv", [7])
        self.assertTrue(Path(named + ".csv").read_text().startswith("time_ns,page"))
        trace.write(named + ".lirs", [7])
        self.assertEqual(Path(named + ".lirs").read_text(), "7\n")
        trace.write(named, [7])
        trace.write(named + ".pages", [7])
        self.assertEqual(Path(named).read_bytes(), Path(named + ".pages").read_bytes())
        with self.assertRaisesRegex(ValueError, "of the format csv, but format says page"):
            trace.write(named + ".csv", [7], format="page")

    @unittest.skipUnless(find_spec("pyarrow"), "pyarrow is not installed")
    def test_frames_saved_as_csv_are_traces(self) -> None:
        csv = import_module("pyarrow.csv")
        kept, saved = (os.path.join(self.directory.name, name) for name in ("k.pages", "k.csv"))
        trace.write(kept, [3, 1, 3], time_ns=[1, 2, 3])
        [batch] = trace.open(kept)
        plain = [column.cast("string") if i > 2 else column for i, column in enumerate(batch)]
        table = import_module("pyarrow").table(plain, names=batch.schema.names)
        csv.write_csv(table, saved)
        [again] = trace.open(saved)
        self.assertEqual(again.to_pylist(), batch.to_pylist())

    @unittest.skipUnless(find_spec("polars"), "polars is not installed")
    def test_frames_are_written_as_they_should_be(self) -> None:
        import polars

        path, plain = (os.path.join(self.directory.name, name) for name in ("f.pages", "p.pages"))
        pages = [n * n % 1009 for n in range(5000)]
        frame = polars.DataFrame({"page": pages, "time_ns": range(5000)})
        self.assertEqual(trace.write(path, frame), 5000)
        trace.write(plain, pages, time_ns=range(5000))
        self.assertEqual(Path(path).read_bytes(), Path(plain).read_bytes())
        with self.assertRaisesRegex(ValueError, r"no column 'page'; it has \['pages'\]"):
            trace.write(path, polars.DataFrame({"pages": [1]}))
        for wrong in ([1, -1], [1.0, float("nan")], [1.0, 0.5], [1.0, 2.0**54], [1, None]):
            with self.assertRaisesRegex(ValueError, "access 1: .* is no page and time"):
                trace.write(path, polars.Series(wrong))
        trace.write(path, [float(page) for page in pages], time_ns=range(5000))
        self.assertEqual(Path(path).read_bytes(), Path(plain).read_bytes())
        # The messages with numpy and without.
        with self.assertRaisesRegex(ValueError, r"2 pages, but 1 times|access 1: \(2, None\)"):
            trace.write(path, polars.Series([1, 2]), time_ns=polars.Series([1]))
        with self.assertRaisesRegex(ValueError, "access 1: its time 2 is before 3"):
            trace.write(path, polars.Series([1, 2]), time_ns=polars.Series([3, 2]))

    @unittest.skipUnless(find_spec("pyarrow"), "pyarrow is not installed")
    def test_traces_are_read_in_batches(self) -> None:
        path = os.path.join(self.directory.name, "t.csv")
        Path(path).write_text("time_ns,page,kind,process,class\n5,7,w,3,anon\n6,8,r,3,file\n")
        [batch] = trace.open(path)
        first, second = batch.to_pylist()
        expected = {"page": 7, "time_ns": 5, "process": 3, "kind": "write", "class": "anon"}
        self.assertEqual(first, expected)
        self.assertEqual((second["page"], second["kind"], second["class"]), (8, "read", "file"))
        self.assertEqual(sum(len(batch) for batch in trace.open(self.trace)), 20000)
        with self.assertRaises(FileNotFoundError):
            trace.open("/nonexistent")

    @unittest.skipUnless(find_spec("pyarrow"), "pyarrow is not installed")
    def test_the_page_size_is_kept(self) -> None:
        pyarrow = import_module("pyarrow")
        large, again, small = (os.path.join(self.directory.name, f"{n}.pages") for n in range(3))
        trace.write(large, [1, 2, 1], page_shift=16)
        [batch] = trace.open(large)
        self.assertEqual(batch.schema.metadata, {b"page_shift": b"16"})
        with self.assertWarnsRegex(UserWarning, "not written: the columns process, kind, class"):
            trace.write(again, pyarrow.Table.from_batches([batch]))
        self.assertEqual(Path(again).read_bytes(), Path(large).read_bytes())
        trace.write(small, [1, 2, 1])
        [batch] = trace.open(small)
        self.assertEqual(batch.schema.metadata, {b"page_shift": b"12"})
        with self.assertRaisesRegex(ValueError, "page shift 12 was given, but its header says 16"):
            trace.open(large, options={"page_shift": 12})
        for wrong in (-1, 64):
            with self.assertRaisesRegex(ValueError, "from 0 to 63"):
                trace.write(small, [1], page_shift=wrong)

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

    def test_ctrl_c_stops_at_once(self) -> None:
        timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
        timer.start()
        started = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            lab.run("kv", seeds=100_000)
        self.assertLess(time.monotonic() - started, 5.0)

    def test_ctrl_c_ends_policies_that_never_return(self) -> None:
        class Stuck(MyLru):
            def evict(self, page: int) -> int:
                while True:
                    pass

        # More of them than there are threads that they could keep.
        for _ in range(1 + (os.cpu_count() or 1)):
            timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
            timer.start()
            with self.assertRaises(KeyboardInterrupt):
                lab.curve(self.trace, Stuck, sizes=[10, 20])
        self.assertEqual(len(lab.curve(self.trace, MyLru, sizes=[10])), 1)

    def test_curves_tell_how_far_they_are(self) -> None:
        seen: list[tuple[int, int]] = []

        def progress(done: int, total: int, left: float) -> None:
            seen.append((done, total))

        lab.curve(self.trace, ["lru", "arc", MyLru], sizes=[50, 100, 200], progress=progress)
        self.assertEqual(seen[-1], (6, 6))
        lab.curve(self.trace, ["lru", "arc"], points=4, sampling=(0.2, 4), progress=progress)
        self.assertEqual(seen[-1], (16, 16))

    def test_nothing_goes_on_after_ctrl_c(self) -> None:
        studies: list[Callable[[], object]] = [
            lambda: lab.reproduce("refault-distance", seeds=100_000),
            lambda: lab.verify_kernel(flush_phases=1000),
        ]
        for study in studies:
            timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
            timer.start()
            with self.assertRaises(KeyboardInterrupt):
                study()
            deadline = time.monotonic() + 60.0
            used = time.process_time()
            while True:
                time.sleep(0.5)
                before, used = used, time.process_time()
                if used - before < 0.05:
                    break
                self.assertLess(time.monotonic(), deadline)

    def test_examples_of_the_page_run(self) -> None:
        pages = "".join(Path(page).read_text() for page in EXAMPLES.split())
        examples = re.findall(r"```python\n(.*?)```", pages, re.S)
        self.assertEqual(len(examples), 7)
        for example in examples:
            line = [sys.executable, "-c", example]
            done = subprocess.run(line, cwd=self.directory.name, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(done.stdout.strip(), example)


if __name__ == "__main__":
    # A shell that runs this in the background lets it ignore Ctrl-C, and the tests of that would wait
    # for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main()
