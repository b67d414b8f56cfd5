# SPDX-License-Identifier: Apache-2.0
"""Arguments, in the form that the native part and the command take."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union


def as_list(of: Any) -> list[Any]:
    """What may be one alone, as a list; a text is one, though to Python a sequence of letters."""
    is_one = isinstance(of, (str, type)) or not isinstance(of, Iterable)
    return [of] if is_one else list(of)


def file(of: Union[str, os.PathLike[str]]) -> str:
    """The name of a trace."""
    try:
        return os.fspath(of)
    except TypeError:
        is_a = type(of).__name__
        raise TypeError(
            f"a trace is a file, not a {is_a}: agewise.trace.write makes one of a frame or numbers"
        ) from None


def mapping(name: str, of: Optional[Mapping[str, object]], example: str) -> Mapping[str, object]:
    """An argument that consists of names and values; nothing for None."""
    if of is None:
        return {}
    if not isinstance(of, Mapping) or not all(isinstance(key, str) for key in of):
        raise TypeError(f"{name} is a mapping such as {example}, not {of!r}")
    return of


def pairs(settings: Optional[Mapping[str, object]]) -> list[str]:
    """Settings of the machine."""
    given = mapping("settings", settings, '{"swappiness": 10}').items()
    return [f"{key}={int(value) if isinstance(value, bool) else value}" for key, value in given]


def sampling_of(sampling: Any) -> Optional[tuple[float, int]]:
    """The share of the pages in each sample, and the number of samples."""
    if sampling is None:
        return None
    wrong = TypeError(
        "sampling is the share of the pages in each sample and the number of samples, such as "
        f"(0.1, 8), not {sampling!r}"
    )
    if not isinstance(sampling, Sequence) or isinstance(sampling, str) or len(sampling) != 2:
        raise wrong
    try:
        return float(sampling[0]), whole("sampling", sampling[1])
    except (TypeError, ValueError, OverflowError):
        raise wrong from None


def whole(name: str, of: Any, is_a: str = "a whole number") -> int:
    """A whole number for the native part, which has its own limits and words for them: one that
    does not fit in 64 bits becomes the nearest that does."""
    try:
        number = operator.index(of)
    except TypeError:
        raise TypeError(f"{name} is {is_a}, not {of!r}") from None
    return max(-(2**63), min(number, 2**63 - 1))


def memory_of(trace_memory: Optional[int]) -> Optional[int]:
    """Refuses memory for a trace that is no memory."""
    if trace_memory is None:
        return None
    memory = whole("trace_memory", trace_memory, "a number of bytes")
    if memory < 1:
        raise ValueError("trace_memory: 1 byte at least")
    return memory


def options_text(options: Optional[Mapping[str, object]]) -> str:
    """Options of runs and of reading traces, in one text."""

    def part(key: str, value: object) -> str:
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        if text is True:
            text = 1
        return f"{key}={text}".replace("%", "%25").replace(" ", "%20")

    parts: list[str] = []
    for key, value in mapping("options", options, '{"access": "mapped"}').items():
        if value is None or value is False:
            continue
        if key == "column" and isinstance(value, Mapping):
            parts += [part(key, f"{column}:{header}") for column, header in value.items()]
        else:
            parts.append(part(key, value))
    return " ".join(parts)
