"""An open index folder: its segments, its log, and for a writer its compaction."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, cast

from velo.compaction.compactor import Compactor
from velo.errors import UnsupportedError, VeloError
from velo.folder.consistent import ATTEMPTS, read_consistently
from velo.folder.exchange import change_metadata
from velo.folder.live import SEGMENT_FIRST
from velo.folder.opened import OpenedFolder
from velo.fulltext.opening import make_words, settle_words
from velo.segments.data import MOVED, LiveData
from velo.segments.segment import OpenOptions, Segment
from velo.segments.view import View
from velo.types import DurabilityName

__all__ = ["OpenFolder", "begin_with", "close_all"]


class OpenSegment(Protocol):
    """As much of a segment as :func:`begin_with` and :func:`close_all` need."""

    def close(self) -> None: ...


_Segment = TypeVar("_Segment", bound=OpenSegment)


class OpenFolder:
    """One index folder, open to read or to write.

    Parameters
    ----------
    opened : OpenedFolder
    live : LiveData
        Closed if this raises.
    how : OpenOptions
    any_segment : callable
        An open part of the same index or collection, or None: all of them are searched by the same workers.

    Attributes
    ----------
    live : LiveData
    upkeep : Upkeep or None
        None: the folder is open to read.
    version : int
    """

    def __init__(
        self,
        opened: OpenedFolder,
        live: LiveData,
        how: OpenOptions,
        any_segment: Callable[[], Segment | None],
    ) -> None:
        self.opened = opened
        self._how = how
        self._any_segment = any_segment
        self._refreshing = threading.Lock()
        self.compactor: Compactor | None = None
        #: Increased when a reader sees new rows or metadata; between such changes its view stays the same.
        self.version = 0
        self.live = self._begin(live, {}, live.durability)
        if live.durability is None:
            return
        try:
            settle_words(opened.at)
            self.compactor = Compactor(
                self.live, self._open_segment, how.threads, how.merge_memory, how.memory
            )
        except BaseException:
            close_all(self.live.opened, self.live)
            raise

    def _open_segment(self, name: str, of_rows: int, beside: Segment | None) -> Segment:
        beside = next(iter(self.live.opened), beside) or self._any_segment()
        return Segment(self.opened.at / name, self._how, of_rows, name, beside)

    def _begin(
        self, live: LiveData, known: Mapping[tuple[str, str], Segment], durability: DurabilityName | None
    ) -> LiveData:
        """Live data with its segments open; segments of `known`, by name and uuid, are not opened again."""

        def open_segment(
            folder: Path, name: str, uuid: str, of_rows: int | None, beside: Segment | None
        ) -> Segment:
            # The part of a built folder becomes the first segment with the first write.
            segment = known.get((name, uuid)) or (known.get(("", uuid)) if name == SEGMENT_FIRST else None)
            if segment is not None and segment.is_at(folder):
                return segment
            beside = beside or next(iter(known.values()), None) or self._any_segment()
            return Segment(folder, self._how, of_rows, name, beside)

        kept = frozenset(map(id, known.values()))
        is_writer = durability is not None
        missing = self._how.unknown_is_missing
        return begin_with(live, open_segment, kept, is_writer=is_writer, unknown_is_missing=missing)[0]

    @property
    def is_built(self) -> bool:
        """Whether the folder is open to read and nothing was written since it was built."""
        return self.live.durability is None and not self.live.info().is_live

    @property
    def segment(self) -> Segment | None:
        """Any open segment."""
        return next(iter(self.live.opened), None)

    def view(self) -> View:
        """The rows of the folder now; the same object while nothing changes."""
        return self.live.view()

    def refresh(self) -> bool:
        """See the writes of another process.

        Returns
        -------
        bool
            Whether there were any.

        Raises
        ------
        UnsupportedError
            Another index has replaced this one.
        """
        with self._refreshing:
            live = self.live
            before = live.info()
            changed = live.refresh()
            if changed != MOVED:
                self.version += 1
                return bool(changed)
            names = self._columns()
            self._begin_again()
            self.version += 1
            return bool(before.is_live or self.live.info().sequence > before.sequence) or (
                self._columns() != names
            )

    def _columns(self) -> list[str]:
        schema = self.live.schema
        return [] if schema is None else list(schema.names)

    def _begin_again(self) -> None:
        """Read the folder anew; open segments that it still has stay open."""
        known = {(one.name, one.uuid): one for one in self.live.opened}
        # The former live data is closed when no view refers to it any more.
        self.live = self._begin(LiveData(self.opened), known, None)

    def change_metadata(self, table: object, **how: object) -> None:
        """Exchange the metadata of a folder that is as it was built.

        Raises
        ------
        UnsupportedError
            The folder was written to, or is open to write.
        """
        if not self.is_built:
            raise UnsupportedError(
                f"{self.opened.path} is open to write, or rows were written to it: its metadata cannot be "
                "exchanged. add_columns takes types, or one value a column; update then changes rows"
            )
        with self._refreshing:
            [segment] = self.live.opened
            change_metadata(self.opened.at, table, segment.n, segment.ids, **how)  # type: ignore[arg-type]
            read_consistently(self.opened.at, segment.load_metadata)  # another process may set metadata, too
            self._begin_again()
            self.version += 1
            make_words(self.opened.at)

    def close(self) -> None:
        """Close all, whichever fails. Interrupted, it can be called again: each is closed once."""
        if self.compactor is not None:
            self.compactor.close()
        with contextlib.ExitStack() as stack:
            stack.callback(self.opened.close)
            stack.callback(self.live.close)
            for segment in self.live.opened:
                stack.callback(segment.close)


def begin_with(
    live: LiveData,
    open_segment: Callable[[Path, str, str, int | None, _Segment | None], _Segment],
    kept: frozenset[int] = frozenset(),
    *,
    is_writer: bool = False,
    unknown_is_missing: bool = False,
) -> tuple[LiveData, list[_Segment]]:
    """Live data whose segments `open_segment` opens, at one moment of a folder.

    A writer may replace segments between the look at the root and at them. Then the root is read again. A
    segment that is open is locked, so the writer leaves it in place, and it is not opened twice.

    Parameters
    ----------
    live : LiveData
        Closed where this raises.
    open_segment : callable
        Takes the folder, name and uuid of a segment, the rows of all segments where there are several, and a
        segment that is open.
    kept : frozenset of int
        The ``id`` of each segment that is not closed here.
    is_writer : bool
        Nobody else changes the folder.
    unknown_is_missing : bool
        As :class:`velo.segments.segment.OpenOptions` has it.
    """
    opened: dict[tuple[str, str], _Segment] = {}
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
                        segment = open_segment(live.folder.at / name, name, uuid, of_rows, beside)
                        opened[name, uuid] = segment
                segments = [opened[key] for key in names]
                live.begin(cast("list[Segment]", segments), unknown_is_missing)
            except (VeloError, FileNotFoundError):
                if is_writer or attempt + 1 == ATTEMPTS:
                    raise
                live.close()
                live = LiveData(live.folder)
                if int(live.info().generation) == generation:
                    raise
            else:
                return live, segments
    except BaseException:
        with contextlib.ExitStack() as stack:
            stack.callback(live.close)
            for segment in opened.values():
                stack.callback(_close, segment, kept)
        raise
    raise AssertionError("the last attempt returns or raises")


def _close(segment: OpenSegment, kept: frozenset[int]) -> None:
    if id(segment) not in kept:
        segment.close()


def close_all(segments: Sequence[OpenSegment], live: LiveData) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(live.close)
        for segment in segments:
            stack.callback(segment.close)
