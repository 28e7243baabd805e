"""Progress of a build as a line on stderr."""

from __future__ import annotations

import sys

from velo.types import ProgressCallback

__all__ = ["progress_of"]


def progress_of(given: ProgressCallback | bool | None) -> ProgressCallback | None:
    """The progress function of a build: the caller's, or with True one that writes to stderr.

    On a terminal it keeps one line current. Elsewhere, in a notebook or a log, it writes a few lines.
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
