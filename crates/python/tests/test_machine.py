# SPDX-License-Identifier: Apache-2.0
"""What runs the installed command: reports on this machine, and sizes."""

import os
import subprocess
import sys
import time
import unittest
import unittest.mock
from pathlib import Path

import agewise
from agewise import lab
from support import Case


class Machine(Case):
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
