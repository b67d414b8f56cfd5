# SPDX-License-Identifier: Apache-2.0
"""Progress bars in notebooks and terminals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Called with parts done, all parts, and seconds left.
Advance = Callable[[int, int, float], None]


@contextmanager
def shown(unit: str, progress: Optional[Advance]) -> Iterator[Advance]:
    """The progress callback: `progress`, or a bar if tqdm is installed."""
    if progress is not None:
        if not callable(progress):
            raise TypeError(f"progress is a function of done, total and seconds, not {progress!r}")
        yield progress
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield lambda done, total, left: None
        return
    words = "{l_bar}{bar}| {n_fmt}/{total_fmt} " + unit + "s{postfix}"
    # Work of less than half a second shows no bar.
    with tqdm(unit=unit, bar_format=words, delay=0.5) as bar:

        def advance(done: int, total: int, left: float) -> None:
            bar.total = total
            bar.set_postfix_str(f"{left:.0f} s left", refresh=False)
            bar.update(done - bar.n)

        yield advance
