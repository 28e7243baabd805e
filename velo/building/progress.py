"""How far a build is, as a line on stderr."""

from __future__ import annotations

import sys

from velo.types import ProgressCallback

__all__ = ["progress_of"]


def progress_of(given: ProgressCallback | bool | None) -> ProgressCallback | None:
    """What a build calls: the caller's function, or with True one that says it on stderr.

    On a terminal that is one line that is kept current. Elsewhere, in a notebook or a log, lines stay, so
    they are few.
    """
    if given is True:
        return _Line()
    return None if given is False else given


class _Line:
    def __init__(self) -> None:
        self._shown = -1
        self._step, self._start = (1, "\r") if sys.stderr.isatty() else (25, "")

    def __call__(self, done: int, total: int) -> None:
        percent = 100 * done // max(1, total) // self._step * self._step
        if percent > self._shown:
            self._shown = percent
            end = "\n" if percent == 100 or not self._start else ""
            sys.stderr.write(f"{self._start}building: {percent} % of {total:,} rows{end}")
            sys.stderr.flush()
