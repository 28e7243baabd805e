"""The sources of a new segment: other segments, the delta, or the rows of one call; checkpoints of merges."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from velo.building.build import WarmStart
from velo.folder.flow import ColumnSource, StoredRows
from velo.folder.ids import take_ids
from velo.folder.manifest import MANIFEST_FILE
from velo.folder.metadata import as_given
from velo.folder.replace import MARKER, durable_file, sync_folder, unlocked
from velo.folder.stored import unnamed_array
from velo.formats.source import RandomSource, Source, chunk_rows
from velo.options import METRIC_CODES
from velo.segments.chunked import ChunkedColumns
from velo.segments.columns import given_columns, some_rows
from velo.segments.rows import GivenRows, RowShape, check_finite, checked_row_ids, in_type
from velo.segments.segment import Segment
from velo.segments.view import View
from velo.types import AnyArray

#: Rows that are read at a time, in bytes of float32. Each thread that merges keeps some times that much,
#: which no budget counts: four times as many took 17 MiB more of a process with three of them.
_READ_BYTES: Final = 1 << 20
#: Of a vertex whose row no new segment has, as velo.h spells it.
_GONE: Final = np.iinfo(np.uint32).max


class SourceRows(RandomSource):
    """The vectors of some vertices of a view, ascending; decoded from codes if their segment stores no
    vectors.

    Nothing is copied to a file: a build reads them a few times, page after page, and at last in placement
    order.
    """

    def __init__(self, view: View, vertices: AnyArray, dtype: np.dtype[Any]) -> None:
        self._view = view
        self._vertices = vertices
        self._dtype = dtype
        segments = sum(segment.n for segment in view.segments)
        self._stored = vertices[: int(_places(vertices, [segments])[0])]
        self._added = vertices[len(self._stored) :] - segments
        self._shape = len(vertices), view.shape.dim

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        step = min(rows, max(1, _READ_BYTES // (4 * self.shape[1])))
        stored = len(self._stored)
        for row in range(start, min(stop, stored), step):
            vertices = self._stored[row : min(row + step, stop, stored)]
            yield self._view.vectors(vertices, decoded=True).astype(self.dtype, copy=False)
        for row in range(max(start, stored), stop, step):
            added = self._view.delta_vectors(self._added[row - stored : min(row + step, stop) - stored])
            yield added.astype(self.dtype, copy=False)

    def take(self, rows: AnyArray) -> AnyArray:
        vertices = self._vertices[rows]
        ascending = np.argsort(vertices)
        out = np.empty((len(rows), self.shape[1]), self.dtype)
        out[ascending] = self._view.vectors(vertices[ascending], decoded=True)
        return out


class SourceColumns(ColumnSource):
    """The columns of some vertices of a view, ascending.

    Nothing is read before the segment is placed, and then some rows at a time.
    """

    def __init__(self, columns: Any, vertices: AnyArray) -> None:
        self._columns = columns
        self._vertices = vertices

    @property
    def row_count(self) -> int:
        return len(self._vertices)

    @property
    def schema(self) -> Any:
        return self._columns.schema

    def stored(self, name: str) -> list[StoredRows]:
        stores = self._columns.stores if isinstance(self._columns, ChunkedColumns) else [self._columns]
        starts = np.cumsum([0, *(store.row_count for store in stores)])
        bounds = _places(self._vertices, starts)
        return [
            self._rows_of(store, name, int(start), int(first), int(last))
            for store, start, first, last in zip(stores, starts, bounds, bounds[1:], strict=False)
            if last > first
        ]

    def _rows_of(self, store: Any, name: str, start: int, first: int, last: int) -> StoredRows:
        """Rows `first` to `last`, stored in one store whose first row is the vertex `start`."""
        return StoredRows(
            first,
            last,
            store.filter_columns[name].dictionary,
            store.stored_row_bytes(name),
            lambda rows: store.stored_rows(name, self._vertices[first + rows.astype(np.int64)] - start),
        )

    def storage(self, name: str, rows: AnyArray) -> Any:
        return self._columns.storage_rows(self._vertices[rows], [name]).column(0)

    def given(self, name: str) -> Any:
        return self._columns.rows(self._vertices, [name])


@dataclass(frozen=True)
class Sources:
    """The sources of a new segment: some of the segments of a view, its delta, or both.

    `segments`: The segments that it replaces, ascending.
    `vertices`: Of the view, ascending, as :func:`_as_vertices` returns them.
    """

    view: View
    names: list[str]
    segments: list[int]
    vertices: AnyArray
    with_delta: bool

    @classmethod
    def alive(cls, view: View, names: list[str], segments: list[int], *, with_delta: bool) -> Sources:
        """The rows of some segments of a view that are not deleted, and those of its delta."""
        starts = np.cumsum([0, *(segment.n for segment in view.segments)])
        taken = np.zeros(view.n, bool)
        for segment in segments:
            rows = view.alive[segment].rows
            taken[starts[segment] : starts[segment + 1]] = True if rows is None else rows.matches()
        if with_delta:
            taken[starts[-1] :] = view.delta_alive
        vertices = _as_vertices(np.flatnonzero(taken), view)
        return cls(view, names, segments, vertices, with_delta and view.native.delta_rows > 0)

    @property
    def count(self) -> int:
        """The number of its rows."""
        return len(self.vertices)

    @property
    def of_rows(self) -> int:
        """Rows of the whole index."""
        return self.view.n

    @property
    def takes_segments(self) -> bool:
        """Whether it takes the place of segments."""
        return bool(self.segments)

    @property
    def like(self) -> Segment | None:
        """The largest part of the view, whose bits and degree the new one gets."""
        return self.view.largest

    @property
    def rows_beside(self) -> int:
        """The number of rows of the largest segment, if it stays beside the new one."""
        segments = self.view.segments
        largest = max(range(len(segments)), key=lambda number: segments[number].n, default=None)
        return 0 if largest is None or largest in self.segments else segments[largest].n

    def vectors(self) -> SourceRows:
        return SourceRows(self.view, self.vertices, self.dtype)

    def ids(self, rows: AnyArray) -> Any:
        """The ids of some of its rows."""
        return self.view.ids.of(self.vertices[rows])

    def metadata(self) -> SourceColumns | None:
        """The rows' columns, or None."""
        return None if self.view.metadata is None else SourceColumns(self.view.metadata, self.vertices)

    @cached_property
    def coded(self) -> list[int]:
        """The segments without stored vectors from which rows are taken: their codes are decoded."""
        numbers = [number for number in self.segments if not self.view.segments[number].stores_vectors]
        return [number for number in numbers if (own := self._rows_of(number)[1]).stop > own.start]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the rows: decoded directions (cosine) are not integers."""
        segments = self.view.segments
        is_direction = any(segments[number].metric == METRIC_CODES["cosine"] for number in self.coded)
        own = self.view.shape.dtype
        return np.dtype(np.float32) if is_direction and own.kind != "f" else own

    @property
    def calibration(self) -> Mapping[str, Any] | None:
        """The calibration of the largest segment; if only codes are left, of one that has only codes.

        None if that one was not measured, unless only codes are left: without it, nothing can be measured.
        """
        coded = [self.view.segments[number] for number in self.coded]
        of = max(coded, key=lambda segment: segment.n) if coded else self.view.largest
        return None if of is None or (of.is_interim and not coded) else of.calibration

    def warm_start(self, folder: Path, *, is_interim: bool) -> WarmStart | None:
        """The largest of these segments.

        Only an interim segment starts from the graph of an interim one.
        """
        if not self.segments:
            return None
        number = max(self.segments, key=lambda segment: self.view.segments[segment].n)
        if self.view.segments[number].is_interim and not is_interim:
            return None
        return WarmStart(folder / self.names[number], lambda: self._new_rows(number))

    def _new_rows(self, number: int) -> AnyArray:
        """The row in the new segment of each vertex of a segment."""
        first, own = self._rows_of(number)
        rows = np.full(self.view.segments[number].n, _GONE, np.uint32)
        rows[self.vertices[own] - first] = np.arange(own.start, own.stop, dtype=np.uint32)
        return rows

    @property
    def of_delta(self) -> Sources:
        """The rows of the delta alone."""
        first = sum(segment.n for segment in self.view.segments)
        return replace(self, segments=[], vertices=self.vertices[int(_places(self.vertices, [first])[0]) :])

    def moved(self, view: View, names: list[str], segment: str | None) -> Sources:
        """The same rows in a later view: those of the delta became this segment, if there were any."""
        added = len(self.of_delta.vertices)
        stored = self.vertices[: len(self.vertices) - added]
        if segment is None:
            return Sources(view, names, self.segments, stored, with_delta=False)
        number = names.index(segment)
        first = sum(segment.n for segment in view.segments[:number])
        return Sources(
            view,
            names,
            [*self.segments, number],
            _as_vertices(np.concatenate([stored, np.arange(first, first + added)]), view),
            with_delta=False,
        )

    def taken(self) -> AnyArray:
        """Of each of these segments which of its rows are taken: a bit a row, in words of its own."""
        words = [np.zeros(0, np.uint64)]
        for number in self.segments:
            first, own = self._rows_of(number)
            bits = np.zeros(-(-self.view.segments[number].n // 64) * 64, bool)
            bits[self.vertices[own] - first] = True
            words.append(np.packbits(bits, bitorder="little").view(np.uint64))
        return np.concatenate(words)

    def _rows_of(self, number: int) -> tuple[int, slice]:
        """The first vertex of a segment, and where its rows are among those that are taken."""
        first = sum(segment.n for segment in self.view.segments[:number])
        start, stop = _places(self.vertices, [first, first + self.view.segments[number].n])
        return first, slice(int(start), int(stop))


def _as_vertices(values: AnyArray, view: View) -> AnyArray:
    """Vertices of a view in the smallest type that holds them, beside segments in a file without a name."""
    dtype = np.uint32 if view.n <= 1 << 32 else np.int64
    if not view.segments:
        return values.astype(dtype)
    vertices, _ = unnamed_array(view.segments[0].folder, len(values), dtype)
    vertices[:] = values
    return vertices


def _places(vertices: AnyArray, bounds: Any) -> AnyArray:
    """The number of vertices, ascending, below each bound. Bounds of another type would copy all vertices."""
    return np.searchsorted(vertices, np.asarray(bounds, vertices.dtype))


_STEM: Final = "merge-"
_SEGMENT_STEM: Final = "part-"
#: Names of our files; others may have put anything else into the folder.
_OURS: Final = re.compile(rf"{_STEM}[0-9a-f]{{16}}(\.json(\.part)?)?")


@dataclass(frozen=True)
class MergeCheckpoint:
    """An unfinished merge."""

    folder: Path
    segments: list[tuple[str, int]]
    taken: bytes

    @classmethod
    def of(cls, index: Path, name: str, sources: Sources) -> MergeCheckpoint:
        """The rows that a merge takes of an index, and the folder in which it builds `name`."""
        segments = [sources.view.segments[number] for number in sources.segments]
        return cls(
            index / name.replace(_SEGMENT_STEM, _STEM, 1),
            [(segment.uuid, segment.n) for segment in segments],
            sources.taken().tobytes(),
        )

    def write(self) -> None:
        """From here on it goes on after a kill. The folder is locked, so no other process takes it up."""
        body = self._body()
        with durable_file(self._file) as file:
            file.write(json.dumps({**body, "checksum": _checksum(body)}).encode())
        sync_folder(self.folder.parent)

    @classmethod
    def are_in(cls, index: Path) -> bool:
        """Whether merges that were killed left files in an index."""
        return bool(_left(index))

    @classmethod
    def find(cls, index: Path) -> MergeCheckpoint | None:
        """The merge that an index can resume; leftovers of other merges and damaged ones are removed."""
        ours = _left(index)
        files = sorted((path for path in ours if path.suffix == ".json"), reverse=True)
        found = next((one for one in map(cls._read, files) if one is not None), None)
        for path in ours:
            if found is not None and path in (found.folder, found._file):
                continue
            with contextlib.suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        return found

    @property
    def is_built(self) -> bool:
        """Whether nothing is left to do but to put the segment into its place."""
        return (self.folder / MANIFEST_FILE).is_file() and not (self.folder / MARKER).exists()

    def sources(self, view: View, names: list[str]) -> Sources | None:
        """Its sources, by their numbers in a view; None if one of them no longer exists."""
        numbers = {(segment.uuid, segment.n): number for number, segment in enumerate(view.segments)}
        if not all(segment in numbers for segment in self.segments):
            return None
        segments = [numbers[segment] for segment in self.segments]
        if segments != sorted(set(segments)):
            return None
        bits = np.unpackbits(np.frombuffer(self.taken, np.uint8), bitorder="little").astype(bool)
        starts = np.cumsum([0, *(segment.n for segment in view.segments)])
        vertices = []
        at = 0
        for number, (_, rows) in zip(segments, self.segments, strict=True):
            vertices.append(starts[number] + np.flatnonzero(bits[at : at + rows]))
            at += -(-rows // 64) * 64
        return Sources(view, names, segments, _as_vertices(np.concatenate(vertices), view), with_delta=False)

    def remove(self) -> None:
        """It ended, or cannot go on."""
        with contextlib.suppress(OSError):
            self._file.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _file(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.json")

    def _body(self) -> dict[str, Any]:
        return {"parts": self.segments, "taken": base64.b64encode(self.taken).decode()}

    @classmethod
    def _read(cls, file: Path) -> MergeCheckpoint | None:
        """The contents of a file; None if it is damaged."""
        try:
            body = json.loads(file.read_bytes())
            checksum = body.pop("checksum")
            if checksum != _checksum(body):
                return None
            segments = [(str(uuid), int(rows)) for uuid, rows in body["parts"]]
            taken = base64.b64decode(body["taken"], validate=True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if not segments or len(taken) != sum(-(-rows // 64) * 8 for _, rows in segments):
            return None
        return cls(file.with_name(file.name.removesuffix(".json")), segments, taken)


def _left(index: Path) -> list[Path]:
    """The files of merges in an index, but for those that run, whose folders are locked."""
    ours = [path for path in index.glob(f"{_STEM}*") if _OURS.fullmatch(path.name)]
    running = {path.name for path in ours if path.is_dir() and not _is_free(path)}
    return [path for path in ours if path.name.partition(".")[0] not in running]


def _is_free(folder: Path) -> bool:
    with unlocked(folder) as free:
        return free


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


class CallVectors(Source):
    """The vectors of a call in the element type of the index; only the rows `kept`, if given."""

    def __init__(self, given: AnyArray | Source, shape: RowShape, kept: AnyArray | None = None) -> None:
        # A source is read from front to back alone.
        self._given = given.read() if kept is not None and isinstance(given, Source) else given
        self._row_shape = shape
        self._kept = kept
        self._shape = int(self._given.shape[0] if kept is None else len(kept)), shape.dim
        self._dtype = shape.dtype

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        for chunk in self._slices(rows, start, stop):
            yield in_type(chunk, self._row_shape)

    def _slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        if isinstance(self._given, Source):
            yield from self._given.chunks(rows, start, stop)
            return
        for row in range(start, stop, rows):
            taken = slice(row, min(row + rows, stop))
            yield self._given[taken if self._kept is None else self._kept[taken]]

    def check(self) -> None:
        """Read all of it once: DtypeError, NotFiniteError."""
        row = 0
        for chunk in self.chunks(chunk_rows(self.shape[1] * self.dtype.itemsize)):
            check_finite(chunk, row)
            row += len(chunk)


class LargeRows(GivenRows):
    """Rows of one call that become a segment; vectors are as from :func:`velo.segments.rows.given_vectors`,
    not copied.
    """

    def __init__(
        self,
        shape: RowShape,
        vectors: AnyArray | Source,
        ids: Any,
        metadata: Any,
        request: Any,
        *,
        upsert: bool,
    ) -> None:
        given = CallVectors(vectors, shape)
        given.check()
        count = len(given)
        kind, column, kept = checked_row_ids(ids, count, shape.id_kind, upsert)
        table = given_columns(metadata, shape.schema, count)
        if table is not None and kept is not None:
            table = some_rows(table, kept)
        super().__init__(len(given if kept is None else kept), kind, column, request, upsert=upsert)
        self.shape = shape
        self.vectors = given if kept is None else CallVectors(vectors, shape, kept)
        # The schema of an index may be empty.
        has_columns = table is not None and len(shape.schema) > 0
        self.metadata = as_given(table.columns, shape.schema) if has_columns else None

    def ids_of(self, rows: AnyArray, first_row: int) -> Any:
        """The ids of some of them; those that the index numbers begin at `first_row`."""
        if self.is_numbered:
            return rows.astype(np.int64) + first_row
        return take_ids(self._column, rows)


@dataclass(frozen=True)
class SegmentOfCall:
    """The sources of a call's segment.

    `first_row`: The number of the first row, if the index assigns ids.
    """

    view: View
    rows: LargeRows
    first_row: int
    #: Of the budget it leaves a share to the delta, as what is made of segments does.
    takes_segments = True
    #: All of its vectors are there.
    coded = ()

    @property
    def count(self) -> int:
        """The number of its rows."""
        return self.rows.count

    @property
    def of_rows(self) -> int:
        """Rows of the whole index, these among them."""
        return self.view.n + self.rows.count

    @property
    def like(self) -> Segment | None:
        """The largest part of the view, whose bits and degree it gets."""
        return self.view.largest

    @property
    def rows_beside(self) -> int:
        """The number of rows of the largest segment."""
        return 0 if self.like is None else self.like.n

    @property
    def calibration(self) -> Mapping[str, Any] | None:
        """The calibration to adopt: that of `like`; None if that was not measured."""
        return None if self.like is None or self.like.is_interim else self.like.calibration

    def vectors(self) -> Source:
        return self.rows.vectors

    def ids(self, rows: AnyArray) -> Any:
        """The ids of some of its rows."""
        return self.rows.ids_of(rows, self.first_row)

    def metadata(self) -> Any:
        """The rows' columns, or None."""
        return self.rows.metadata

    def warm_start(self, _: Path, *, is_interim: bool) -> None:
        """There is no graph yet that has them."""
