"""What a write did."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Written"]


@dataclass(frozen=True)
class Written:
    """What became of a write.

    Attributes
    ----------
    rows : int
        Rows that it changed.
        Of an insert those that are new, and those that took another's place.
    missing : int
        Ids that no row had.
    sequence : int
        The number of this change, or of the one before where there was nothing to do.
    durable : bool
        It is on the device: not even a power cut takes it back. False where ``durability`` is not ``"sync"``
        and no sync came by yet.
    replaced : int
        Of the rows of an upsert: took the place of one with the same id.
    first_id : int or None
        Where the index numbers its rows: the id of the first one inserted, the others follow.
    repeated : bool
        A call of this ``request`` was done before: this tells of that one, and nothing was done again.
    pressure : float
        How full the memory for rows that no part holds is, 0 to 1. From a half on a part is made of them; at
        1 writes wait for it.
    """

    rows: int
    missing: int
    sequence: int
    durable: bool
    replaced: int = 0
    first_id: int | None = None
    repeated: bool = False
    pressure: float = 0.0
