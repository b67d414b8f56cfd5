# SPDX-License-Identifier: Apache-2.0
"""Studies of the lab: the rows of the command, its notes and its progress."""

import json
import os
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

from agewise import lab, trace
from support import AGEWISE, Case, MyLru, command, without_build


class Studies(Case):
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
        with self.assertRaisesRegex(ValueError, "'5' is not a share of the pages"):
            lab.whatif(self.trace, sample="5")  # type: ignore[arg-type]
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

    def test_parquet_can_be_run_again(self) -> None:
        path = os.path.join(self.directory.name, "r.parquet")
        lab.run(self.trace, ["classic"], options={"access": "mapped"}).write_parquet(path)
        again = subprocess.run([AGEWISE, "lab", "rerun", path], capture_output=True, text=True)
        self.assertTrue(again.stdout.startswith("the same "), again.stdout + again.stderr)

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

    def test_killed_programs_are_told(self) -> None:
        with self.assertWarnsRegex(UserWarning, "killed for lack of memory in 1 of 1 runs"):
            lab.run("kv", "classic", memory="128p", swap="none", seeds=1)

    def test_curves_tell_how_far_they_are(self) -> None:
        seen: list[tuple[int, int]] = []

        def progress(done: int, total: int, left: float) -> None:
            seen.append((done, total))

        lab.curve(self.trace, ["lru", "arc", MyLru], sizes=[50, 100, 200], progress=progress)
        self.assertEqual(seen[-1], (6, 6))
        lab.curve(self.trace, ["lru", "arc"], points=4, sampling=(0.2, 4), progress=progress)
        self.assertEqual(seen[-1], (16, 16))

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
