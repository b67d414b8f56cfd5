# SPDX-License-Identifier: Apache-2.0
"""Cells of a sweep as Ray tasks. Traces go through its object store, results come back as the bytes
of their files, and the caller of the sweep writes them: same cells, same bytes as locally."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from . import _native
from ._progress import Advance
from .policy import Class, current

#: Attempts to run a cell whose workers die.
ATTEMPTS = 3
#: Cells in progress per processor of the cluster.
UNDER_WAY = 4

#: A cell: its id, its values, the hash of its workload or trace, and that one's file.
Errand = tuple[str, dict[str, str], str, Optional[Path]]
#: Result of `_native.run_cell`: directory relative to that of the sweep, contents of the file, and
#: what is to be said about it.
Done = tuple[Path, bytes, list[str]]
RunCell = Callable[[Errand, Optional[bytes], Optional[int], list[Class]], Done]


def run_cell(
    errand: Errand, content: Optional[bytes], trace_memory: Optional[int], own: list[Class]
) -> Done:
    """Runs a cell on a worker. `content` is the content of its file, `own` the class of its policy
    if that is one."""
    # A task may use one processor.
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    own = [current(one) for one in own]
    file = errand[3]
    if file is None or content is None:
        return _native.run_cell(errand, None, trace_memory, own)
    # Another worker of this machine may have written the file. Each content has its own directory,
    # and the file gets its name only when it is complete.
    digest = hashlib.sha256(content).hexdigest()
    ours = os.path.join(tempfile.gettempdir(), f"agewise-{os.getuid()}")
    os.makedirs(ours, mode=0o700, exist_ok=True)
    if os.lstat(ours).st_uid != os.getuid():
        raise PermissionError(f"{ours} is somebody else's: remove it, or set TMPDIR")
    directory = os.path.join(ours, digest)
    place = os.path.join(directory, file.name)
    if not os.path.exists(place):
        os.makedirs(directory, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, delete=False) as part:
            try:
                part.write(content)
                part.flush()
                os.replace(part.name, place)
            except OSError:
                os.unlink(part.name)
                raise
    return _native.run_cell(errand, place, trace_memory, own)


def sweep(
    opened: _native.OpenSweep,
    trace_memory: Optional[int],
    own: list[Class],
    advance: Advance,
    run: RunCell = run_cell,
) -> tuple[int, list[tuple[str, str]]]:
    """Runs what is missing; returns the number of cells run, and failed cells with reasons."""
    try:
        import ray
    except ImportError:
        raise ImportError("sweeps on \"ray\" need it: pip install ray") from None
    is_ours = not ray.is_initialized()
    if is_ours:
        # Uses the cluster of RAY_ADDRESS, or starts one on this machine.
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    try:
        return _Tasks(ray, opened, trace_memory, own, advance, run).run()
    finally:
        if is_ours:
            ray.shutdown()


class _Tasks:
    def __init__(
        self,
        ray: Any,
        opened: _native.OpenSweep,
        trace_memory: Optional[int],
        own: list[Class],
        advance: Advance,
        run: RunCell,
    ) -> None:
        self.ray = ray
        self.opened = opened
        self.trace_memory = trace_memory
        self.own = own
        self.advance = advance
        # Ray does not retry: deaths of workers are counted and reported here.
        self.task = ray.remote(num_cpus=1, max_retries=0)(run)
        self.waiting = [(errand, 1) for errand in reversed(opened.missing())]
        self.total = opened.found() + len(self.waiting)
        self.under_way: dict[Any, tuple[Errand, int]] = {}
        self.failed: list[tuple[str, str]] = []
        self.ran = 0
        #: The file sent last, and its reference in the object store. Cells of one file are
        #: consecutive, and the store keeps objects that tasks still need.
        self.sent: tuple[Optional[Path], Any] = (None, None)

    def run(self) -> tuple[int, list[tuple[str, str]]]:
        began = time.monotonic()
        most = UNDER_WAY * max(1, int(self.ray.cluster_resources().get("CPU", 1)))
        todo = len(self.waiting)
        try:
            while self.waiting or self.under_way:
                while self.waiting and len(self.under_way) < most:
                    self.start(*self.waiting.pop())
                ready, _ = self.ray.wait(list(self.under_way), timeout=1.0)
                for task in ready:
                    self.finish(task)
                done = self.ran + len(self.failed)
                if ready and done:
                    left = (time.monotonic() - began) / done * (todo - done)
                    self.advance(self.total - todo + done, self.total, left)
        finally:
            for task in self.under_way:
                self.ray.cancel(task, force=True)
        return self.ran, self.failed

    def start(self, errand: Errand, attempt: int) -> None:
        file = errand[3]
        if file is not None and self.sent[0] != file:
            self.sent = (file, self.ray.put(file.read_bytes()))
        content = self.sent[1] if file is not None else None
        own = [one for one in self.own if one[1] == errand[1].get("policy")]
        task = self.task.remote(errand, content, self.trace_memory, own)
        self.under_way[task] = (errand, attempt)

    def finish(self, task: Any) -> None:
        errand, attempt = self.under_way.pop(task)
        text = " ".join(f"{key}={value}" for key, value in errand[1].items())
        exceptions = self.ray.exceptions
        try:
            done = self.ray.get(task)
        except exceptions.RayTaskError as error:
            # Of a class whose module is not there, Ray appends the traceback of its own code.
            words = str(error.cause).partition("\ntraceback: ")[0]
            self.failed.append((text, words))
        except exceptions.RayError as error:
            words = str(error).strip().partition("\n")[0]
            if attempt == ATTEMPTS:
                self.failed.append((text, f"{attempt} workers died of it, the last: {words}"))
                return
            warnings.warn(f"{text}: its worker died, it is run again: {words}", stacklevel=2)
            self.waiting.append((errand, attempt + 1))
        else:
            self.opened.put(errand[0], *done)
            self.ran += 1
