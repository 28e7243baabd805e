"""Writes to one folder: inserts, updates and deletions, and the compaction of segments."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velo.compaction.compactor import Compactor
from velo.compaction.sources import LargeRows
from velo.errors import (
    BudgetTooSmallError,
    BusyError,
    DuplicateIdError,
    InvalidArgumentError,
    UnknownColumnError,
    UnknownIdError,
)
from velo.filters.arrow_values import arrow_of, texts_of
from velo.folder.ids import checked_ids
from velo.fulltext.opening import settle_words
from velo.index.folder import OpenFolder
from velo.options import METRIC_CODES
from velo.results import Written
from velo.segments.added import NewColumns
from velo.segments.columns import given_columns
from velo.segments.data import DUPLICATE, FULL, NO_ROW_NUMBER, REPEATED, STALE, LiveData
from velo.segments.rows import STRINGS, GivenRows, NewRows, RowShape, given_vectors, last_of_each
from velo.segments.view import View
from velo.types import AnyArray

Made = TypeVar("Made")


class Found(NamedTuple):
    """The rows of a view that an update changes.

    `values`: Of each the row of the update's table that has its new values.
    """

    vertices: AnyArray
    ids: Any
    values: AnyArray

    def none(self) -> Found:
        return Found(self.vertices[:0], self.ids[:0], self.values[:0])


class Update(ABC):
    """New values for some rows, checked before anything is written.

    `count`: Distinct ids that were given; None: none were.
    """

    argument: str
    count: int | None

    def __init__(self, table: Any) -> None:
        self._table = table

    @abstractmethod
    def find(self, view: View) -> Found:
        """The rows of a view that change."""

    def rows(self, view: View, found: Found, request: str | None) -> NewRows:
        """The new rows; vectors that no segment stores are decoded from their codes."""
        table = view.metadata.rows(found.vertices)
        values: Any = arrow_of(found.values)
        for name in self._table.column_names:
            table = table.set_column(
                table.schema.get_field_index(name),
                self._table.schema.field(name),
                self._table.column(name).take(values),
            )
        vectors = view.vectors(found.vertices, decoded=True)
        if view.shape.dtype.kind in "iu":
            _lengthen(vectors, view, found.vertices)
        return NewRows(
            view.shape,
            vectors.astype(view.shape.dtype),
            found.ids,
            table,
            request,
            upsert=True,
            is_distinct=True,
        )


def _lengthen(vectors: AnyArray, view: View, vertices: AnyArray) -> None:
    """Scale directions decoded from cosine codes to integers."""
    segments = view.places(vertices)[0]
    limits = np.iinfo(view.shape.dtype)
    for number, segment in enumerate(view.segments):
        if segment.stores_vectors or segment.metric != METRIC_CODES["cosine"]:
            continue
        inside = np.flatnonzero(segments == number)
        rows = vectors[inside]
        largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
        scaled = rows * (limits.max / np.where(largest > 0, largest, 1))
        vectors[inside] = np.clip(np.rint(scaled), limits.min, limits.max)


class UpdateOfIds(Update):
    """New values for some ids; of a repeated id the last row counts."""

    argument = "ids"

    def __init__(self, ids: Any, metadata: Any, schema: Any) -> None:
        table = given_columns(metadata, schema, len(ids), some=True)
        last = last_of_each(ids)
        super().__init__(table.take(arrow_of(last)))
        self._ids = ids[last] if isinstance(ids, np.ndarray) else ids.take(arrow_of(last))
        self.count = len(last)

    def find(self, view: View) -> Found:
        found = view.ids.find(self._ids)
        places = np.flatnonzero(found >= 0)
        places = places[view.are_alive(found[places])]
        rows: Any = arrow_of(places)
        ids = self._ids[places] if isinstance(self._ids, np.ndarray) else self._ids.take(rows)
        return Found(found[places], ids, places)


class UpdateWhere(Update):
    """New values for all rows that pass a filter."""

    argument = "filter"
    count = None

    def __init__(self, condition: Any, metadata: Any, schema: Any) -> None:
        super().__init__(given_columns(metadata, schema, 1, some=True))
        self._condition = condition

    def find(self, view: View) -> Found:
        vertices = view.passing(self._condition)
        ids: Any = view.ids.of(vertices)
        if ids.dtype == object:
            ids = texts_of(ids)
        return Found(vertices, ids, np.zeros(len(vertices), np.int64))


#: How full the delta is when a segment is made of it, while further rows still have room.
_FLUSH_AT: Final = 0.5
#: Views that a delete by filter takes before it keeps merges away.
_STALE_MAX: Final = 3


class Writer:
    """The writes of :class:`velo.Index` to one folder. Threads may call all methods at once."""

    def __init__(self, folder: OpenFolder) -> None:
        assert folder.compactor is not None
        self._folder = folder
        self._compactor: Compactor = folder.compactor
        self._updating = threading.Lock()

    @property
    def _live(self) -> LiveData:
        """The folder as it was seen last; other processes may exchange its segments."""
        return self._folder.live

    @property
    def shape(self) -> RowShape:
        """The kind of rows that the folder takes."""
        return self._live.shape()

    def _with_columns(self, make: Callable[[], Made]) -> Made:
        """What is made of the columns known here; if that fails, with those that other processes added."""
        known = self._live.schema
        try:
            return make()
        except (InvalidArgumentError, UnknownColumnError):
            self._folder.view()
            if self._live.schema is known:
                raise
        return make()

    def insert(
        self, vectors: Any, ids: Any, metadata: Any, request: Any, timeout_s: Any, *, upsert: bool
    ) -> Written:
        """See :meth:`velo.Index.insert` and :meth:`velo.Index.upsert`."""
        deadline = None if timeout_s is None else time.monotonic() + seconds(timeout_s)
        vectors = given_vectors(vectors, self.shape)
        given = vectors, ids, metadata, request
        most = self._live.delta_bytes_max
        rows: GivenRows | None = None
        if int(vectors.shape[0]) * self.shape.delta_row_bytes <= most:
            rows = self._with_columns(lambda: NewRows(self.shape, *given, upsert=upsert))
            done = self._insert_into_delta(rows, deadline, most)
        if rows is None or (done.outcome == FULL and int(done.row) > most):
            rows = self._with_columns(lambda: LargeRows(self.shape, *given, upsert=upsert))
            done = self._compactor.insert(rows, deadline)
        if done.outcome == DUPLICATE:
            row = int(done.row)
            raise DuplicateIdError(
                f"ids: {rows.id_at(row)!r} of row {row} is there already", argument="ids", row=row
            )
        if done.outcome == NO_ROW_NUMBER:
            row = int(done.row)
            raise UnknownIdError(
                f"unknown id {rows.id_at(row)!r} (row {row}): this index assigns ids itself",
                argument="ids",
                row=row,
            )
        self._count_deleted(died=int(done.replaced))
        return Written(
            rows=int(done.rows),
            missing=0,
            sequence=int(done.sequence),
            durable=bool(done.durable),
            replaced=int(done.replaced),
            first_id=int(done.row) if rows.is_numbered and rows.count else None,
            repeated=done.outcome == REPEATED,
            pressure=self._live.pressure,
        )

    def _insert_into_delta(self, rows: NewRows, deadline: float | None, most: int) -> Any:
        """A ``velo_live_done``; ``FULL`` where the rows alone take more than the delta may."""
        pause = self._compactor.pause(rows.count, self._live.pressure)
        if pause > 0:
            time.sleep(pause if deadline is None else max(0.0, min(pause, deadline - time.monotonic())))
        while True:
            rows.wait_until(deadline)
            done = self._folder.write(lambda live: live.insert(rows.ids, rows.options), deadline)
            if done.outcome != FULL or int(done.row) > most:
                return done
            self._wait_for_room(deadline)

    def _count_deleted(self, *, died: int) -> None:
        """Count deleted rows, and flush a full delta in the background."""
        self._compactor.died(died)
        if self._live.pressure >= _FLUSH_AT:
            self._compactor.suggest()

    def _wait_for_room(self, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if (left is not None and left <= 0) or not self._compactor.wait(left):
            raise BusyError("memory for new rows is full, and a part is being made of them: try again")

    def update(self, ids: Any, metadata: Any, request: Any, timeout_s: Any, condition: Any) -> Written:
        """See :meth:`velo.Index.update`."""
        deadline = None if timeout_s is None else time.monotonic() + seconds(timeout_s)
        column = None if condition is not None else checked_ids(ids)
        if column is not None:
            _check_kind(column, self.shape.id_kind)

        def given() -> Update:
            if column is None:
                return UpdateWhere(condition, metadata, self._live.schema)
            return UpdateOfIds(column, metadata, self._live.schema)

        update = self._with_columns(given)
        done = self._update_once(update, request, deadline)
        if done.outcome == STALE:  # those that came late once come one after the other
            with self._updating:
                while done.outcome == STALE:
                    if deadline is not None and time.monotonic() >= deadline:
                        raise BusyError("others write the same rows all the time: try again")
                    if self._live.durability == "sync":
                        self._live.flush_log()  # earlier rows are visible only after it
                    done = self._update_once(update, request, deadline)
        self._count_deleted(died=int(done.rows))
        return Written(
            rows=int(done.rows),
            missing=0 if update.count is None else max(0, update.count - int(done.rows)),
            sequence=int(done.sequence),
            durable=bool(done.durable),
            repeated=done.outcome == REPEATED,
            pressure=self._live.pressure,
        )

    def _update_once(self, update: Update, request: Any, deadline: float | None) -> Any:
        """One try; its outcome is ``STALE`` where others changed the rows meanwhile."""
        count = needed = 0

        def write(live: LiveData) -> Any:
            nonlocal count, needed
            view = live.view()
            found = update.find(view)
            count = len(found.vertices)
            needed = count * view.shape.delta_row_bytes
            if needed > live.delta_bytes_max:
                found = found.none()  # what never has room is not read; was the call done before?
            rows = update.rows(view, found, request)
            rows.wait_until(deadline)
            done = live.update(rows.ids, rows.options, view, found.vertices)
            if done.outcome == FULL:
                needed = int(done.row)
            return done

        while True:
            self._folder.view()  # with the writes of others
            done = self._folder.write(write, deadline)
            most = self._live.delta_bytes_max
            if done.outcome == REPEATED or (done.outcome != FULL and needed <= most):
                return done
            if needed > most:
                raise BudgetTooSmallError(
                    f"{count:,} rows take {needed:,} bytes, and rows that no part holds may take {most:,}: "
                    "give fewer a call, or more memory",
                    argument=update.argument,
                    needed_bytes=needed,
                )
            self._wait_for_room(deadline)

    def delete(self, ids: Any, timeout_s: Any, condition: Any) -> Written:
        """See :meth:`velo.Index.delete`."""
        deadline = None if timeout_s is None else time.monotonic() + seconds(timeout_s)
        if condition is not None:
            done, asked = self._delete_matching(condition, deadline), None
        else:
            column = checked_ids(ids)
            _check_kind(column, self._live.shape().id_kind)
            done = self._folder.write(lambda live: live.delete_ids(column, deadline), deadline)
            asked = distinct_count(column)
        rows = int(done.rows)
        self._compactor.died(rows)
        return Written(
            rows=rows,
            missing=0 if asked is None else asked - rows,
            sequence=int(done.sequence),
            durable=bool(done.durable),
            pressure=self._live.pressure,
        )

    def _delete_matching(self, condition: Any, deadline: float | None) -> Any:
        for _ in range(_STALE_MAX):
            done = self._delete_once(condition, deadline)
            if done.outcome != STALE:
                return done
        with self._compactor.kept_away():  # those of this process; others commit now and then
            while (done := self._delete_once(condition, deadline)).outcome == STALE:
                if deadline is not None and time.monotonic() >= deadline:
                    raise BusyError("segments are merged all the time: try again")
            return done

    def _delete_once(self, condition: Any, deadline: float | None) -> Any:
        def write(live: LiveData) -> Any:
            view = live.view()
            return live.delete_vertices(view, view.passing(condition), deadline)

        self._folder.view()  # with the writes of others
        return self._folder.write(write, deadline)

    def add_columns(self, new: NewColumns) -> None:
        """See :meth:`velo.Index.add_columns`."""
        self._folder.view()  # with the columns of others
        self._folder.write(lambda live: live.add_columns(new))

    def flush(self) -> None:
        """See :meth:`velo.Index.flush`."""
        self._compactor.flush()
        self._live.flush_log()

    def optimize(self, wait: bool = True) -> None:
        """See :meth:`velo.Index.optimize`."""
        if wait:
            self._compactor.optimize()
        else:
            self._compactor.begin(everything=True)

    def release(self) -> None:
        """Remove the files of merged segments that no snapshot shows any more."""
        self._compactor.sweep()
        settle_words(self._folder.opened.at)
        # Columns went through Arrow's pool, which would keep as much as a merge took.
        pa.default_memory_pool().release_unused()


def distinct_count(column: Any) -> int:
    """The number of distinct ids in a checked column."""
    return len(np.unique(column) if isinstance(column, np.ndarray) else pc.unique(column))


def _check_kind(column: Any, kind: int) -> None:
    """Refuse ids of another kind; an empty list, or an index without rows, has no kind."""
    if len(column) and kind >= 0 and isinstance(column, np.ndarray) == (kind == STRINGS):
        wanted = "strings" if kind == STRINGS else "whole numbers"
        raise InvalidArgumentError(f"ids: the ids of this index are {wanted}", argument="ids")


def seconds(timeout_s: Any) -> float:
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s >= 0:
        raise InvalidArgumentError(f"timeout_s must be at least 0, not {timeout_s!r}", argument="timeout_s")
    return float(timeout_s)
