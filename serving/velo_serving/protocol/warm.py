"""Work that a process completes before it accepts requests."""

from __future__ import annotations

import functools

import pyarrow as pa


@functools.cache
def import_pandas() -> None:
    """Let pyarrow import pandas, if it is installed.

    It does so for the first list that becomes an array, for up to some seconds, in which an event loop would
    stop.
    """
    pa.array([None])
