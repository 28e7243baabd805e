"""The parts of an index that changes: opened at one moment, closed together."""

from __future__ import annotations

import _thread
import contextlib
from collections.abc import Mapping
from typing import Final

from velo.errors import CorruptIndexError, NotAnIndexError, UnsupportedError
from velo.folder.live import PART_FIRST
from velo.folder.opened import OpenedFolder
from velo.parts.data import LiveData
from velo.parts.gate import Gate
from velo.parts.part import OpenOptions, Part
from velo.types import DurabilityName
from velo.upkeep.upkeep import Upkeep

__all__ = ["Owned", "begin", "close_all", "close_native"]

#: How often parts are opened that a writer takes away meanwhile.
_OPEN_ATTEMPTS: Final = 8


def begin(
    live: LiveData,
    how: OpenOptions,
    known: Mapping[tuple[str, str], Part],
    durability: DurabilityName | None,
) -> tuple[LiveData, list[Part]]:
    """Live data whose parts are open; those of `known`, by name and uuid, are not opened again.

    A writer may take parts away between the look at the root and at them: then it is looked at again.
    """
    for attempt in range(_OPEN_ATTEMPTS):
        parts: list[Part] = []
        opened: list[Part] = []
        try:
            names = live.names()
            rows = int(live.info().rows)
            for name, uuid in names:
                # What was open as it was built is the first part now, unless another build took its place.
                folder = live.folder.at / name
                part = known.get((name, uuid)) or (known.get(("", uuid)) if name == PART_FIRST else None)
                if part is None or not part.is_at(folder):
                    beside = next(iter(parts or known.values()), None)
                    part = Part(folder, how, rows if len(names) > 1 else None, name, beside)
                    opened.append(part)
                parts.append(part)
            live.begin(parts, how.unknown_is_missing)
        except (NotAnIndexError, CorruptIndexError, UnsupportedError):  # the last: the root names other parts
            was = live.names()
            close_all(opened, live)
            if attempt + 1 == _OPEN_ATTEMPTS or durability is not None:
                raise
            live = LiveData(live.folder)
            if live.names() == was and attempt:
                close_all([], live)
                raise
        except BaseException:
            close_all(opened, live)
            raise
        else:
            return live, parts
    raise AssertionError("the last attempt returns or raises")


def close_all(parts: list[Part], live: LiveData) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(live.close)
        for part in parts:
            stack.callback(part.close)


class Owned:
    """What an index closes, in a box that does not refer to the index."""

    def __init__(self, folder: OpenedFolder, parts: list[Part]) -> None:
        self.folder = folder
        self.parts = tuple(parts)
        self.live: LiveData | None = None
        self.upkeep: Upkeep | None = None

    def close(self) -> None:
        """Close all, whichever fails. Interrupted, it can be called again: each is closed once."""
        if self.upkeep is not None:
            self.upkeep.close()
        live = self.live
        with contextlib.ExitStack() as stack:
            stack.callback(self.folder.close)
            if live is not None:
                stack.callback(live.close)
            for part in {*self.parts, *(() if live is None else live.opened)}:
                stack.callback(part.close)


def close_native(gate: Gate, owned: Owned) -> None:
    """Free an index; in a forked child there is nothing to free."""
    if gate.forked:
        return
    if owned.upkeep is not None and owned.upkeep.is_here:
        # Nothing refers to the index any more, as was found out in the thread of one of its merges. That one
        # cannot wait for itself.
        _thread.start_new_thread(close_native, (gate, owned))
        return
    gate.close()
    owned.close()
