# SPDX-License-Identifier: Apache-2.0
"""Functions that look at this machine run the command ``agewise``, which has the privileges for it
and is not part of the package."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

from ._given import mapping

__all__ = ["CommandError", "report", "watch"]

#: Seconds that an interrupted command has to undo its changes.
TO_END = 10.0

#: What the options are that are arguments here.
_ARE = {
    "pid": "pid is a number such as 1234",
    "cgroup": 'cgroup is a path such as "/user.slice"',
    "duration": 'duration is a time such as "1m"',
    "follow": 'every is a time such as "10s"',
}

Some = Union[int, str, Sequence[Union[int, str]], None]


class CommandError(RuntimeError):
    """The command failed: its message, and its exit status in `status`."""

    def __init__(self, words: str, status: int) -> None:
        super().__init__(words)
        self.status = status

    def __reduce__(self) -> tuple[type[CommandError], tuple[str, int]]:
        # Python's own takes the arguments of the base class; a pool of processes would hang.
        return CommandError, (str(self), self.status)


def _found() -> str:
    found = os.environ.get("AGEWISE") or shutil.which("agewise")
    if not found:
        raise FileNotFoundError(
            "this needs the command agewise: install it, or set AGEWISE to its path"
        )
    return found


def rows(command: str, *arguments: str) -> Iterator[dict[str, Any]]:
    """The objects that the command prints, one after the other."""
    return _rows([_found(), command, "--format", "json", *arguments])


def _rows(line: list[str]) -> Iterator[dict[str, Any]]:
    troubles: list[str] = []
    with tempfile.TemporaryFile("w+") as said:
        # Closing the iterator and Ctrl-C interrupt the command, which then cleans up.
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=said) as command:
            assert command.stdout is not None
            try:
                for printed in _lines(command.stdout.fileno()):
                    row = json.loads(printed)
                    troubles = row.get("troubles") or troubles
                    yield row
                status = command.wait()
            finally:
                _end(command)
        if status != 0:
            said.seek(0)
            raise _exception(said.read(), status, troubles)


def _lines(pipe: int) -> Iterator[bytes]:
    # A read may go on after Ctrl-C (polars sets SA_RESTART), a poll never does.
    wait = select.poll()
    wait.register(pipe, select.POLLIN)
    rest = b""
    while wait.poll() and (some := os.read(pipe, 1 << 16)):
        *lines, rest = (rest + some).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _end(command: subprocess.Popen[bytes]) -> None:
    if command.stdout is not None:
        # While it waits for room in the pipe, it does not look for signals.
        command.stdout.close()
    if command.poll() is None:
        command.send_signal(signal.SIGINT)
        try:
            command.wait(TO_END)
        except subprocess.TimeoutExpired:
            command.kill()


def _exception(said: str, status: int, troubles: Sequence[str] = ()) -> Exception:
    words = said.strip()
    for start in ("agewise: ", "error: "):
        words = words.rpartition("\n" + start)[2].removeprefix(start)
    # There are no lines above an exception.
    if troubles:
        words = words.replace("see the lines above", "; ".join(troubles))
    if status == 2:
        return ValueError(words.split("\n\n")[0])
    if "(os error 2)" in words:
        return FileNotFoundError(words)
    if "(os error 13)" in words or "(os error 1)" in words:
        return PermissionError(words)
    return CommandError(words or f"agewise ended with status {status}", status)


def options(
    own: Mapping[str, object], more: Optional[Mapping[str, object]], example: str
) -> list[str]:
    """Options of the command: a list repeats an option, None omits it."""
    for name, value in own.items():
        if isinstance(value, bool):
            raise TypeError(f"{_ARE[name]}, not {value!r}")
    line = []
    for name, value in {**own, **mapping("options", more, example)}.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            line.append(flag)
        elif isinstance(value, (list, tuple)):
            line += [part for one in value for part in (flag, str(one))]
        elif value is not None and value is not False:
            line += [flag, str(value)]
    return line


def report(
    *,
    pid: Some = None,
    cgroup: Some = None,
    duration: Optional[str] = None,
    options: Optional[Mapping[str, object]] = None,
) -> list[dict[str, Any]]:
    """The age of the memory of processes or cgroups: the records of ``agewise report``.

    `duration`: how long to observe, such as ``"1m"``. `options`: further options, such as
    ``{"intervals": "1s,1m", "exact": True}``. Runs the installed command; reading page tables
    needs root.

    Raises ValueError for wrong arguments, FileNotFoundError if the command is not installed,
    CommandError with its message for everything else.
    """
    given = {"pid": pid, "cgroup": cgroup, "duration": duration}
    return list(rows("report", *_line(given, options, '{"exact": True}')))


def watch(
    *,
    pid: Some = None,
    cgroup: Some = None,
    every: str = "10s",
    options: Optional[Mapping[str, object]] = None,
) -> Iterator[dict[str, Any]]:
    """The records of `report`, repeatedly: those of ``agewise report --follow EVERY``.

    Ends when every target is gone, and with ``close()`` of the iterator. Raises as `report` does.
    """
    given = {"pid": pid, "cgroup": cgroup, "follow": every}
    return rows("report", *_line(given, options, '{"exact": True}'))


_line = options
