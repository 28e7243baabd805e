"""Results of writes, in a module of their own: pickles name it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Written:
    """The result of a write.

    Attributes
    ----------
    rows : int
        Number of changed rows; of an insert or upsert, new and replaced ones.
    missing : int
        Number of unknown ids.
    sequence : int
        Sequence number of this change, or of the previous one if nothing changed.
    durable : bool
        Whether the write is on the device, so that it survives a power failure. False if ``durability`` is
        not ``"sync"`` and the log has not been synced yet.
    replaced : int
        Rows of an upsert that replaced one with the same id.
    first_id : int or None
        If the index numbers its rows: the id of the first inserted row; the others follow.
    repeated : bool
        Whether a call of this ``request`` was executed before. This is then its result, and nothing was
        written again.
    pressure : float
        Fill level of the memory for new rows, 0 to 1. From one half on they are flushed; at 1 writes wait for
        that.
    """

    rows: int
    missing: int
    sequence: int
    durable: bool
    replaced: int = 0
    first_id: int | None = None
    repeated: bool = False
    pressure: float = 0.0
