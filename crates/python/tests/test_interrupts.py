# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, in everything that takes long."""

import os
import signal
import threading
import time
import unittest.mock
from collections.abc import Callable
from pathlib import Path

import agewise
from agewise import lab
from support import Case, MyLru


class Interrupts(Case):
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
            timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
            timer.start()
            grid = {"trace": self.trace, "policy": [Stuck, "lru"], "sizes": ["10", "20"]}
            with self.assertRaises(KeyboardInterrupt):
                agewise.sweep({"grid": grid}, os.path.join(self.directory.name, "out"))
        self.assertEqual(len(lab.curve(self.trace, MyLru, sizes=[10])), 1)

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
