"""The short run and the long one: what both do, one of them more often (docs/HACKING.md)."""

from __future__ import annotations

import os

#: Set by ``pytest --long`` before any test is read.
long_run = False


def count(short: int, long: int, dial: str | None = None) -> int:
    """How often something is done: in a short run, a long one, or as the environment says."""
    chosen = os.environ.get(dial) if dial else None
    return int(chosen) if chosen else (long if long_run else short)
