"""An open index folder: its segments and log, its description, and the verification of its files."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

from velo import _native
from velo.compaction.compactor import Compactor
from velo.errors import BusyError, NotAnIndexError, UnsupportedError, VeloError
from velo.folder.changes import Changes
from velo.folder.exchange import change_metadata
from velo.folder.ids import Ids
from velo.folder.manifest import check_is_folder, read_manifest
from velo.folder.metadata import open_metadata
from velo.folder.opened import OpenedFolder
from velo.folder.replace import ATTEMPTS, read_consistently
from velo.fulltext.opening import check_words, make_words, settle_words
from velo.options import GPU_STATES, IO_CODES, METRIC_CODES, PLAN_CODES, folder_path
from velo.segments.data import MOVED, OUTDATED, LiveData
from velo.segments.rows import ROW
from velo.segments.segment import OpenOptions, Segment, lock_segment, unlock_segment
from velo.segments.view import View
from velo.types import PathLike


class OpenSegment(Protocol):
    """As much of a segment as :func:`begin_with` and :func:`close_all` need."""

    def close(self) -> None: ...


_Segment = TypeVar("_Segment", bound=OpenSegment)


class OpenFolder:
    """One index folder, open to read or to write.

    `any_segment`: An open part of the same index or collection, or None: all of them are searched by the
      same workers.
    `follows`: Whether views show what other processes write, or only :meth:`refresh` looks.
    """

    def __init__(
        self,
        opened: OpenedFolder,
        live: LiveData,
        how: OpenOptions,
        any_segment: Callable[[], Segment | None],
        *,
        follows: bool = True,
    ) -> None:
        self.opened = opened
        self._how = how
        #: Of segments that come after the open.
        self._how_later = replace(how, gpu_optional=True)
        self._any_segment = any_segment
        self._refreshing = threading.Lock()
        self.compactor: Compactor | None = None
        self._changes = Changes(opened, follows=follows)
        #: Another number once a view may show something else.
        self.stamp = self._changes.stamp
        #: That of the last look at what others did.
        self._followed = self.stamp()
        self.live = self._begin(live, {})
        if live.durability is None:
            return
        try:
            settle_words(opened.at)
            self.compactor = Compactor(self, how.threads, how.device, how.merge_memory, how.memory)
        except BaseException:
            close_all(self.live.opened, self.live)
            raise

    def open_segment(self, name: str, of_rows: int, beside: Segment | None) -> Segment:
        """Open a segment that was made just now."""
        beside = next(iter(self.live.opened), beside) or self._any_segment()
        return Segment(self.opened.at / name, self._how_later, of_rows, name, beside)

    def _begin(self, live: LiveData, known: Mapping[tuple[str, str], Segment]) -> LiveData:
        """Live data with its segments open; segments of `known`, by name and uuid, are not opened again."""

        def open_segment(
            folder: Path, name: str, uuid: str, of_rows: int | None, beside: Segment | None
        ) -> Segment:
            segment = known.get((name, uuid))
            if segment is not None and segment.is_at(folder):
                return segment
            beside = beside or next(iter(known.values()), None) or self._any_segment()
            return Segment(folder, self._how_later if known else self._how, of_rows, name, beside)

        kept = frozenset(map(id, known.values()))
        return begin_with(live, open_segment, kept, self._how.unknown_is_missing)[0]

    @property
    def is_unwritten(self) -> bool:
        """Whether the folder is open to read and nothing was written since it was built."""
        return self.live.durability is None and not self.live.info().is_written

    @property
    def segment(self) -> Segment | None:
        return next(iter(self.live.opened), None)

    def view(self) -> View:
        """The rows of the folder now; the same object while nothing changes."""
        if self.stamp() != self._followed:
            self._follow()
        return self.live.view()

    def _follow(self) -> None:
        """See the writes of others, unless another thread did meanwhile."""
        with self._refreshing:
            stamp = self.stamp()
            if stamp == self._followed:
                return
            # An index that was removed or replaced is searched on.
            with contextlib.suppress(UnsupportedError, NotAnIndexError):
                if self.live.refresh() == MOVED:
                    self._begin_again()
            self._followed = stamp

    def write(self, call: Callable[[LiveData], Any], deadline: float | None = None) -> Any:
        """The ``velo_live_done`` of a call, which is repeated where another process exchanged the segments.

        `deadline`: By the monotonic clock; None: there is none.
        """
        while True:
            live = self.live
            done = call(live)
            if done.outcome != OUTDATED:
                return done
            if deadline is not None and time.monotonic() >= deadline:
                raise BusyError("other processes exchange the segments of this index: try again")
            with self._refreshing:
                if self.live is live:
                    self._begin_again()

    def refresh(self) -> bool:
        """See the writes of another process."""
        with self._refreshing:
            live, stamp = self.live, self.stamp()
            before = live.info()
            changed = live.refresh()
            names = self._columns()
            if changed == MOVED:
                self._begin_again()
            self._followed = self._changes.added(stamp)
            if changed != MOVED:
                return bool(changed)
            return bool(before.is_written or self.live.info().sequence > before.sequence) or (
                self._columns() != names
            )

    def _columns(self) -> list[str]:
        schema = self.live.schema
        return [] if schema is None else list(schema.names)

    def _begin_again(self) -> None:
        """Read the folder again; segments that it still has stay open."""
        known = {(one.name, one.uuid): one for one in self.live.opened}
        # The former live data is closed when no view or call refers to it any more.
        self.live = self._begin(self.live.again(), known)

    def change_metadata(self, table: object, **how: object) -> None:
        """Exchange the metadata of a folder that is as it was built."""
        if not self.is_unwritten:
            raise UnsupportedError(
                f"{self.opened.path} is open to write, or rows were written to it: its metadata cannot be "
                "exchanged. add_columns takes types, or one value a column; update then changes rows"
            )
        with self._refreshing:
            stamp = self.stamp()
            [segment] = self.live.opened
            change_metadata(self.opened.at, table, segment.n, segment.ids, **how)  # type: ignore[arg-type]
            read_consistently(self.opened.at, segment.load_metadata)  # another process may set metadata, too
            self._begin_again()
            self._followed = self._changes.added(stamp)
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
    unknown_is_missing: bool = False,
) -> tuple[LiveData, list[_Segment]]:
    """Live data whose segments `open_segment` opens, at one moment of a folder.

    A writer may replace segments between the look at the root and at them. Then the root is read again. A
    segment that is open is locked, so the writer leaves it in place, and it is not opened twice.

    `live`: Closed where this raises.
    `open_segment`: Takes the folder, name and uuid of a segment, the rows of all segments where there are
      several, and a segment that is open.
    `kept`: The ``id`` of each segment that is not closed here.
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
                        segment = open_segment(live.folder_of(name), name, uuid, of_rows, beside)
                        opened[name, uuid] = segment
                segments = [opened[key] for key in names]
                live.begin(cast("list[Segment]", segments), unknown_is_missing)
            except BusyError:
                raise
            except (VeloError, FileNotFoundError) as error:
                if attempt + 1 == ATTEMPTS:
                    raise
                live.close()
                live = live.again()
                is_moved = isinstance(error, UnsupportedError) and error.argument == "moved"
                if int(live.info().generation) == generation and not is_moved:
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


_PLANS: Final = {code: name for name, code in PLAN_CODES.items()}
_IO_NAMES: Final = {code: name for name, code in IO_CODES.items()}
_METRICS: Final = {code: name for name, code in METRIC_CODES.items()}

#: The kinds of memory that an index's budget bounds.
BUDGETED: Final = ("codes", "links", "cache", "pages")


def index_info(folder: OpenFolder, view: View) -> dict[str, Any]:
    """The result of :meth:`velo.Index.info` for one folder."""
    segments = view.segments
    infos = [segment.info() for segment in segments]
    # If segments differ, the largest is described.
    info = max(infos, key=lambda one: int(one.n)) if infos else _native.new("velo_index_info")
    live = None if folder.is_unwritten else _live_info(folder, view)
    memory = {
        "codes": sum(int(one.memory_codes_bytes) for one in infos),
        "links": sum(int(one.memory_links_bytes) for one in infos),
        "cache": sum(int(one.memory_cache_bytes) for one in infos),
        "pages": sum(int(one.memory_pages_bytes) for one in infos),
        "workers": sum(int(one.memory_workers_bytes) for one in infos),
        "filters": view.filters.memory_bytes,
        "words": sum(segment.words_bytes for segment in segments)
        + sum(one.words_bytes for one in view.delta),
    }
    if live is not None:
        memory["live"] = folder.live.memory_bytes
    within = sum(memory[name] for name in BUDGETED)
    path = folder.opened.path
    return {
        "path": str(path),
        "uuid": _native.text(info.uuid),
        "n": view.n,
        "dim": view.shape.dim,
        "metric": _METRICS[int(folder.live.info().metric)],
        "dtype": str(view.shape.dtype),
        "ids": view.ids.kind,
        "columns": [] if view.metadata is None else list(view.metadata.column_names),
        "column_bytes": {} if view.metadata is None else view.metadata.bytes_by_column,
        "memory_bits": int(info.memory_bits),
        "record_bits": int(info.record_bits),
        "degree": int(info.degree),
        "links_built": int(info.links_built),
        "links_kept": int(info.links_kept),
        "page_size": int(info.page_size),
        "page_count": sum(int(one.page_count) for one in infos),
        "records_per_page": float(info.records_per_page),
        "page_links": bool(info.page_links),
        "page_codes": bool(info.page_codes),
        "page_codes_kept": int(info.page_codes_kept),
        "record_code_bytes": int(info.record_code_bytes) if info.record_codes_kept else 0,
        "edges_per_vertex": float(info.edges_per_vertex),
        "adjacency_bits_per_edge": float(info.adjacency_bits_per_edge),
        "plan": _PLANS.get(info.plan, "unknown") if infos else "scan",
        "threads": int(info.threads),
        "queries_in_flight": int(info.queries_in_flight),
        "stores_vectors": all(segment.stores_vectors for segment in segments),
        "memory_bytes": memory,
        "memory_bytes_total": sum(memory.values()),
        "memory_within_budget_bytes": within,
        "memory_beside_budget_bytes": sum(memory.values()) - within,
        "memory_budget_bytes": sum(int(one.memory_budget_bytes) for one in infos) or None,
        "cache_refused": any(one.cache_refused for one in infos),
        "disk_bytes": _disk_bytes(folder.opened.at),
        "live": live,
        "device": device_dict(info.device),
        "gpu": _gpu_of(infos),
    }


def _gpu_of(infos: Sequence[Any]) -> Mapping[str, Any] | None:
    """The GPU of the segments; None where none was asked for."""
    asked = [one.gpu for one in infos if one.gpu.state]
    if not asked:
        return None
    # A segment that is on the CPU, or failed, before those that are ready.
    worst = max(asked, key=lambda one: int(one.state))
    return gpu_dict(worst) | {"resident_bytes": sum(int(one.resident_bytes) for one in asked)}


def gpu_dict(gpu: Any) -> dict[str, Any]:
    """A ``velo_gpu_info`` as a dict."""
    version = int(gpu.driver_version)
    return {
        "state": GPU_STATES.get(gpu.state),
        "name": _native.text(gpu.name),
        "ordinal": int(gpu.ordinal),
        "compute": f"{gpu.compute // 10}.{gpu.compute % 10}",
        "driver": f"{version // 1000}.{version % 1000 // 10}",
        "total_bytes": int(gpu.total_bytes),
        "resident_bytes": int(gpu.resident_bytes),
        "batches": int(gpu.batches),
        "queries": int(gpu.queries),
        "failed_queries": int(gpu.failed_queries),
        "busy_us": int(gpu.busy_us),
        "reason": _native.text(gpu.reason),
    }


def _live_info(folder: OpenFolder, view: View) -> dict[str, Any]:
    """The changes since the folder was built."""
    live, compactor = folder.live, folder.compactor
    info = live.info()
    dead = [
        0 if alive.rows is None else segment.n - alive.rows.count()
        for segment, alive in zip(view.segments, view.alive, strict=True)
    ]
    segments = [
        {
            "path": segment.name,
            "n": segment.n,
            "dead": of_segment,
            "bytes": sum(_disk_bytes(folder.opened.at / segment.name).values()) or None,
        }
        for segment, of_segment in zip(view.segments, dead, strict=True)
    ]
    return {
        "writable": bool(info.is_writable),
        "durability": live.durability,
        "numbered": live.shape().id_kind == ROW,
        "sequence": int(info.sequence),
        "dead": sum(dead) + view.native.delta_dead,
        "parts": segments,
        "delta": {
            "n": view.native.delta_rows,
            "dead": view.native.delta_dead,
            "bytes": int(info.delta_bytes),
            "bytes_max": int(info.delta_bytes_max),
        },
        "pressure": min(1.0, int(info.delta_bytes) / max(1, int(info.delta_bytes_max))),
        "upkeep_failure": None if compactor is None or compactor.failure is None else str(compactor.failure),
        "log_bytes": int(info.log_bytes),
        "log_durable_bytes": int(info.log_synced_bytes),
    }


def _disk_bytes(folder: Path) -> dict[str, int]:
    """Of each file; one that a build or a merge takes away meanwhile does not count."""
    found = {}
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            entry = Path(parent, name)
            with contextlib.suppress(FileNotFoundError):
                found[str(entry.relative_to(folder))] = entry.stat().st_size
    return found


def device_dict(device: Any) -> Mapping[str, Any]:
    """A ``velo_device_info`` as a dict."""
    return {
        "name": _native.text(device.name),
        "io": _IO_NAMES.get(device.io, "unknown"),
        "direct": bool(device.direct),
        "queue_depth": int(device.queue_depth),
        "uring_errno": int(device.uring_errno),
        "direct_errno": int(device.direct_errno),
        "reason": _native.text(device.reason),
        "advice": _native.text(device.advice),
    }


def verify_folder(path: PathLike) -> int:
    """Read every file of an index whole and check every checksum, page and link.

    Parameters
    ----------
    path : path
        The folder of the index.

    Returns
    -------
    int
        How many pages were checked.

    Raises
    ------
    CorruptIndexError
        A file is damaged. The message names it, and the page.

    Examples
    --------
    >>> velo.verify("shop.velo") > 0
    True
    """
    folder = folder_path(path)
    return read_consistently(folder, partial(_verify, folder))


def _verify(folder: Path) -> int:
    check_is_folder(folder)
    pages = _native.ffi.new("uint64_t *")
    _native.check(_native.lib.velo_verify(bytes(folder), pages), "path")
    # Ids and metadata, which the library does not read.
    opened = OpenedFolder(folder)
    live, segments = begin_with(LiveData(opened), _check_segment)
    try:
        # The sums of the log say that its rows were written, not that they are sound.
        live.check_delta()
    finally:
        close_all(segments, live)
    return int(pages[0])


class _CheckedSegment:
    """Ids and metadata of a segment, read whole."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._lock = lock_segment(folder, name)
        try:
            manifest = read_manifest(folder)
            self.n = manifest.row_count
            self.ids = Ids(folder, self.n, manifest.first_row)
            self.ids.check_rows()
            self.metadata = open_metadata(folder, self.n)
            if self.metadata is not None:
                _ = self.metadata.native_columns, self.metadata.statistics
                check_words(folder)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        unlock_segment(self._lock)


def _check_segment(folder: Path, name: str, *_: object) -> _CheckedSegment:
    return _CheckedSegment(folder, name)
