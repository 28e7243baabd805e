"""The parts of an index that changes: opened at one moment, closed together."""

from __future__ import annotations

import _thread
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, cast

from velo.errors import VeloError
from velo.folder.live import PART_FIRST
from velo.folder.moment import ATTEMPTS
from velo.folder.opened import OpenedFolder
from velo.parts.data import LiveData
from velo.parts.gate import Gate
from velo.parts.part import OpenOptions, Part
from velo.types import DurabilityName
from velo.upkeep.upkeep import Upkeep

__all__ = ["Owned", "begin", "begin_with", "close_all", "close_native"]


class OpenPart(Protocol):
    """As much of a part as :func:`begin` and :func:`close_all` need."""

    def close(self) -> None: ...


_Part = TypeVar("_Part", bound=OpenPart)


def begin(
    live: LiveData,
    how: OpenOptions,
    known: Mapping[tuple[str, str], Part],
    durability: DurabilityName | None,
) -> tuple[LiveData, list[Part]]:
    """Live data whose parts are open; those of `known`, by name and uuid, are not opened again."""

    def open_part(folder: Path, name: str, uuid: str, of_rows: int | None, beside: Part | None) -> Part:
        # What was open as it was built is the first part now, unless another build took its place.
        part = known.get((name, uuid)) or (known.get(("", uuid)) if name == PART_FIRST else None)
        if part is not None and part.is_at(folder):
            return part
        return Part(folder, how, of_rows, name, beside or next(iter(known.values()), None))

    kept = frozenset(map(id, known.values()))
    return begin_with(
        live, open_part, kept, is_writer=durability is not None, unknown_is_missing=how.unknown_is_missing
    )


def begin_with(
    live: LiveData,
    open_part: Callable[[Path, str, str, int | None, _Part | None], _Part],
    kept: frozenset[int] = frozenset(),
    *,
    is_writer: bool = False,
    unknown_is_missing: bool = False,
) -> tuple[LiveData, list[_Part]]:
    """Live data whose parts `open_part` opens, at one moment of a folder.

    A writer may replace parts between the look at the root and at them. Then the root is read again. A part
    that is open is locked, so the writer leaves it in place, and it is not opened twice.

    Parameters
    ----------
    live : LiveData
        Closed where this raises.
    open_part : callable
        Takes the folder, name and uuid of a part, the rows of all parts where there are several, and a part
        that is open.
    kept : frozenset of int
        The ``id`` of each part that is not closed here.
    is_writer : bool
        Nobody else changes the folder.
    unknown_is_missing : bool
        As :class:`velo.parts.part.OpenOptions` has it.
    """
    opened: dict[tuple[str, str], _Part] = {}
    try:
        for attempt in range(ATTEMPTS):
            generation = int(live.info().generation)
            names = live.names()
            try:
                for key in opened.keys() - set(names):
                    _close(opened.pop(key), kept)
                of_rows = int(live.info().rows) if len(names) > 1 else None
                for name, uuid in names:
                    if (name, uuid) not in opened:
                        beside = next(iter(opened.values()), None)
                        part = open_part(live.folder.at / name, name, uuid, of_rows, beside)
                        opened[name, uuid] = part
                parts = [opened[key] for key in names]
                live.begin(cast("list[Part]", parts), unknown_is_missing)
            except (VeloError, FileNotFoundError):
                if is_writer or attempt + 1 == ATTEMPTS:
                    raise
                live.close()
                live = LiveData(live.folder)
                if int(live.info().generation) == generation:
                    raise
            else:
                return live, parts
    except BaseException:
        with contextlib.ExitStack() as stack:
            stack.callback(live.close)
            for part in opened.values():
                stack.callback(_close, part, kept)
        raise
    raise AssertionError("the last attempt returns or raises")


def _close(part: OpenPart, kept: frozenset[int]) -> None:
    if id(part) not in kept:
        part.close()


def close_all(parts: Sequence[OpenPart], live: LiveData) -> None:
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
