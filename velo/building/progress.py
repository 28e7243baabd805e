"""How far a build is, as a line on stderr."""

from __future__ import annotations

import sys

from velo.types import ProgressCallback

__all__ = ["progress_of"]


def progress_of(given: ProgressCallback | bool | None) -> ProgressCallback | None:
    """What a build calls: the caller's function, or with True one that writes a line and keeps it current."""
    if given is True:
        return _Line()
    return None if given is False else given


class _Line:
    def __init__(self) -> None:
        self._shown = -1

    def __call__(self, done: int, total: int) -> None:
        percent = 100 * done // max(1, total)
        if percent > self._shown:
            self._shown = percent
            end = "\n" if percent == 100 else ""
            sys.stderr.write(f"\rbuilding: {percent} % of {total:,} rows{end}")
            sys.stderr.flush()
