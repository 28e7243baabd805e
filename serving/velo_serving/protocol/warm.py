"""Work that a process completes before it accepts requests."""

from __future__ import annotations

import functools

import pyarrow as pa


@functools.cache
def import_pandas() -> None:
    """Let pyarrow import pandas where it is installed.

    It does so for the first list that becomes an array, and takes up to some seconds for it. In an event loop
    all requests would wait, and a router would take the shard for one that has failed.
    """
    pa.array([None])
