"""What :class:`velo.Index` does to its rows."""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velo.errors import (
    BudgetTooSmallError,
    BusyError,
    DuplicateIdError,
    InvalidArgumentError,
    ReadOnlyError,
    UnknownIdError,
)
from velo.folder.ids import checked_ids
from velo.folder.snapshot import snapshot
from velo.hints import hinted
from velo.index.opened import Opened
from velo.index.updates import Update, UpdateOfIds, UpdateWhere
from velo.options import folder_path
from velo.parts.added import NewColumns
from velo.parts.data import DUPLICATE, FULL, NO_ROW_NUMBER, REPEATED, STALE, LiveData
from velo.parts.rows import STRINGS, GivenRows, NewRows, given_vectors
from velo.parts.tables import given_rows
from velo.results import Written
from velo.types import PathLike
from velo.upkeep.large_rows import LargeRows
from velo.upkeep.upkeep import Upkeep
from velo.words.opening import settle_words

__all__ = ["LiveVerbs", "distinct_count", "seconds"]

#: How full the delta is when a part is made of it, while further rows still have room.
_FLUSH_AT: Final = 0.5
#: Views that a delete by filter takes before it keeps merges away.
_STALE_MAX: Final = 3


class LiveVerbs(Opened):
    """The verbs of :class:`velo.Index` that change rows, or look at what others changed."""

    def _writer(self) -> tuple[LiveData, Upkeep]:
        live, upkeep = self._live, self._upkeep
        if live is None or live.durability is None or upkeep is None:
            raise ReadOnlyError(f"{self.path} was opened to read: open it with writable=True")
        return live, upkeep

    # ---- rows that come

    def insert(
        self,
        vectors: Any,
        ids: Any = None,
        metadata: Any = None,
        request: str | None = None,
        timeout_s: float | None = None,
        *,
        column: str | None = None,
        ids_column: str | None = None,
    ) -> Written:
        """Add rows; when this returns, every search that begins finds them.

        The call is atomic: all of its rows are there or none, for searches and after a crash. What is larger
        than the memory for new rows becomes a part at once, which takes as long as to build an index of it.

        Parameters
        ----------
        vectors : array-like of shape (n, dim), Arrow list array, table, frame, or list of dicts
            Of the index's element type, or of one that it holds without a change. Tables are those that
            :func:`velo.build` takes from memory: of Arrow, pandas or polars, or a dict a row, with a column
            of lists of numbers.
        ids : array-like of int or str, optional
            One a row, none of which a row of the index has. An index that numbers its rows takes none.
        metadata : table of one row a vector, or True, optional
            As for :func:`velo.build`; the columns that the index has, all of them. True takes all other
            columns of the vectors' table.
        request : str, optional
            A name for this call. A call with the name of one of the last 1,024 is not done again, so an
            insert whose answer got lost may be repeated.
        timeout_s : float, optional
            How long to wait where memory for new rows is full and a part is being made of them, or where
            merges take the memory that a part of these rows needs.
        column : str, optional
            Which column of a table holds the vectors, where several could.
        ids_column : str, optional
            The column that holds the ids: of the vectors' table, or of the metadata. It becomes no metadata.

        Returns
        -------
        Written

        Raises
        ------
        DuplicateIdError
            An id twice, or of a row that is there; nothing was written.
        InvalidArgumentError, DimensionMismatchError, DtypeError, NotFiniteError, UnknownColumnError
        ReadOnlyError
            The index was opened without ``writable=True``.
        BusyError
            There was no room in `timeout_s`; nothing was written.
        BudgetTooSmallError
            The rows take more memory than new rows may, and `merge_memory` is too little for a part of them.
        NoSpaceError
            The device is full; nothing was written, and writing goes on once there is room.
        DeviceError
            The write failed. Where a sync did, the index takes no further writes until it is opened again.

        Examples
        --------
        >>> import pyarrow as pa
        >>> with velo.create("notes.velo", dim=3, metadata=pa.schema({"text": pa.string()})) as index:
        ...     rows = [{"id": "a", "vector": [0.1, 0.2, 0.3], "text": "first"}]
        ...     print(index.insert(rows, ids_column="id", metadata=True).rows, index.get("a")["text"][0])
        1 first
        """
        given = given_rows(vectors, column, ids, ids_column, metadata)
        return self._insert(*given, request, timeout_s, upsert=False)

    def upsert(
        self,
        vectors: Any,
        ids: Any = None,
        metadata: Any = None,
        request: str | None = None,
        timeout_s: float | None = None,
        *,
        column: str | None = None,
        ids_column: str | None = None,
    ) -> Written:
        """Add rows, each in the place of the one that has its id, where there is one.

        Vector and metadata are replaced together. Of an id that a call has several times the last row counts.

        Parameters
        ----------
        vectors, metadata, request, timeout_s, column, ids_column :
            As for :meth:`insert`.
        ids : array-like of int or str
            One a row, or `ids_column` names them. An index that numbers its rows takes numbers that it gave.

        Returns
        -------
        Written

        Raises
        ------
        UnknownIdError
            A number that an index that numbers its rows never gave.
        VeloError
            As for :meth:`insert`, but for :class:`DuplicateIdError`.
        """
        given = given_rows(vectors, column, ids, ids_column, metadata)
        return self._insert(*given, request, timeout_s, upsert=True)

    def _insert(
        self, vectors: Any, ids: Any, metadata: Any, request: Any, timeout_s: Any, *, upsert: bool
    ) -> Written:
        deadline = None if timeout_s is None else time.monotonic() + seconds(timeout_s)
        with self._gate.inside():
            live, upkeep = self._writer()
            shape = live.shape()
            vectors = given_vectors(vectors, shape)
            most = live.delta_bytes_max
            rows: GivenRows | None = None
            if int(vectors.shape[0]) * shape.delta_row_bytes <= most:
                rows = NewRows(shape, vectors, ids, metadata, request, upsert=upsert)
                done = self._insert_into_delta(live, upkeep, rows, deadline, most)
            if rows is None or (done.outcome == FULL and int(done.row) > most):
                rows = LargeRows(shape, vectors, ids, metadata, request, upsert=upsert)
                done = upkeep.insert(rows, deadline)
            if done.outcome == DUPLICATE:
                row = int(done.row)
                raise DuplicateIdError(
                    f"ids: {rows.id_at(row)!r} of row {row} is there already", argument="ids", row=row
                )
            if done.outcome == NO_ROW_NUMBER:
                row = int(done.row)
                raise UnknownIdError(
                    f"ids: {rows.id_at(row)!r} of row {row} is no number that this index gave",
                    argument="ids",
                    row=row,
                )
            self._told_of(live, upkeep, died=int(done.replaced))
        return Written(
            rows=int(done.rows),
            missing=0,
            sequence=int(done.sequence),
            durable=bool(done.durable),
            replaced=int(done.replaced),
            first_id=int(done.row) if rows.is_numbered and rows.count else None,
            repeated=done.outcome == REPEATED,
            pressure=live.pressure,
        )

    def _insert_into_delta(
        self, live: LiveData, upkeep: Upkeep, rows: NewRows, deadline: float | None, most: int
    ) -> Any:
        """A ``velo_live_done``; ``FULL`` where the rows alone take more than the delta may."""
        pause = upkeep.pause(rows.count, live.pressure)
        if pause > 0:
            time.sleep(pause if deadline is None else max(0.0, min(pause, deadline - time.monotonic())))
        while True:
            done = live.insert(rows.ids, rows.options)
            if done.outcome != FULL or int(done.row) > most:
                return done
            self._wait_for_room(upkeep, deadline)

    def _told_of(self, live: LiveData, upkeep: Upkeep, *, died: int) -> None:
        """A full delta is flushed, and what died is counted."""
        upkeep.died(died)
        if live.pressure >= _FLUSH_AT:
            upkeep.suggest()

    def _wait_for_room(self, upkeep: Upkeep, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if (left is not None and left <= 0) or not upkeep.wait(left):
            raise BusyError("memory for new rows is full, and a part is being made of them: try again")

    @hinted
    def update(
        self,
        ids: Any = None,
        metadata: Any = None,
        request: str | None = None,
        timeout_s: float | None = None,
        *,
        filter: Any = None,  # noqa: A002
    ) -> Written:
        """Change columns of rows, by id or of all that pass a filter.

        Their vectors and other columns stay as they are. The call is atomic, also against other writers: each
        row is changed as it is at that moment. Inside its rows are read and written anew, so it costs what an
        :meth:`upsert` of them does.

        Parameters
        ----------
        ids : array-like of the index's kind of id, or one id
            Ids that no row has are counted in ``missing`` and are no error. Of an id that is there twice the
            last row counts.
        metadata : table of one row an id, or one value a column
            As for :meth:`insert`, but only the columns that change. With a filter each of them has one value,
            which all rows get.
        request, timeout_s :
            As for :meth:`insert`.
        filter : expression, dict, SQL text, mask or ids
            As for :meth:`delete`. A row that others changed meanwhile, so that it passes no more, stays as
            they left it.

        Returns
        -------
        Written

        Raises
        ------
        InvalidArgumentError, UnknownColumnError, FilterError
            Also where the index has no columns, and where ids and a filter are given, or neither.
        BudgetTooSmallError
            The rows that change take more memory than new rows may: give fewer ids, or a narrower filter.
        VeloError
            As for :meth:`insert`, but for :class:`DuplicateIdError`.

        Examples
        --------
        >>> with velo.open("shop.velo", writable=True) as index:
        ...     done = index.update([17, 18], {"price": [0.5, 0.75]})
        ...     print(done.rows, index.get([18], columns=["price"])["price"].to_pylist())
        ...     done = index.update(filter=velo.col("price") == 0.75, metadata={"brand": "attic"})
        ...     print(done.rows == index.count({"brand": "attic"}), index.get([18])["brand"].to_pylist())
        2 [0.75]
        True ['attic']
        """
        _check_one("update", ids, filter)
        return self._update(ids, metadata, request, timeout_s, filter)

    def _update(self, ids: Any, metadata: Any, request: Any, timeout_s: Any, condition: Any) -> Written:
        deadline = None if timeout_s is None else time.monotonic() + seconds(timeout_s)
        with self._gate.inside():
            live, upkeep = self._writer()
            update: Update
            if condition is not None:
                update = UpdateWhere(condition, metadata, live.schema)
            else:
                column = checked_ids(ids)
                _check_kind(column, live.shape().id_kind)
                update = UpdateOfIds(column, metadata, live.schema)
            done = self._update_once(live, upkeep, update, request, deadline)
            if done.outcome == STALE:  # those that came late once come one after the other
                with self._updating:
                    while done.outcome == STALE:
                        if deadline is not None and time.monotonic() >= deadline:
                            raise BusyError("others write the same rows all the time: try again")
                        if live.durability == "sync":
                            live.flush_log()  # before that nobody sees what came first
                        done = self._update_once(live, upkeep, update, request, deadline)
            self._told_of(live, upkeep, died=int(done.rows))
        return Written(
            rows=int(done.rows),
            missing=0 if update.count is None else max(0, update.count - int(done.rows)),
            sequence=int(done.sequence),
            durable=bool(done.durable),
            repeated=done.outcome == REPEATED,
            pressure=live.pressure,
        )

    def _update_once(
        self, live: LiveData, upkeep: Upkeep, update: Update, request: Any, deadline: float | None
    ) -> Any:
        """One try; its outcome is ``STALE`` where others changed the rows meanwhile."""
        while True:
            view = self._newest_searches().seen
            shape = view.shape
            found = update.find(view)
            count = len(found.vertices)
            needed = count * shape.delta_row_bytes
            if needed > live.delta_bytes_max:
                found = found.none()  # what never has room is not read; was the call done before?
            rows = update.rows(view, found, request)
            done = live.update(rows.ids, rows.options, view, found.vertices)
            if done.outcome == FULL:
                needed = int(done.row)
            elif done.outcome == REPEATED or len(found.vertices) == count:
                return done
            most = live.delta_bytes_max
            if needed > most:
                raise BudgetTooSmallError(
                    f"{count:,} rows take {needed:,} bytes, and rows that no part holds may take {most:,}: "
                    "give fewer a call, or more memory",
                    argument=update.argument,
                    needed_bytes=needed,
                )
            self._wait_for_room(upkeep, deadline)

    # ---- rows that go

    @hinted
    def delete(self, ids: Any = None, *, filter: Any = None) -> Written:  # noqa: A002
        """Delete rows by id, or all that pass a filter.

        The call is atomic: all of its rows are gone or none, for searches that begin and after a crash. When
        it returns no search that begins finds them; searches under way may. :meth:`optimize` gives back the
        room of deleted rows.

        Parameters
        ----------
        ids : array-like of the index's kind of id, or one id
            Ids that no row has are counted in ``missing`` and are no error.
        filter : expression, dict, SQL text, mask or ids
            As for :meth:`search`; a mask is over the rows that were built.

        Returns
        -------
        Written

        Raises
        ------
        ReadOnlyError
            The index was opened without ``writable=True``.
        InvalidArgumentError
            Both were given, or neither; ids of another kind.
        FilterError, NoSpaceError
        DeviceError
            The write failed. Where a sync did, the index takes no further writes until it is opened again.

        Examples
        --------
        >>> with velo.open("shop.velo", writable=True) as index:
        ...     done = index.delete([17, 18, 1_000_000])
        ...     print(done.rows, "deleted,", done.missing, "not there,", len(index), "left")
        2 deleted, 1 not there, 1998 left
        """
        _check_one("delete", ids, filter)
        return self._delete(ids, filter)

    def _delete(self, ids: Any, condition: Any) -> Written:
        with self._gate.inside():
            live, upkeep = self._writer()
            if condition is not None:
                done, asked = self._delete_matching(live, upkeep, condition), None
            else:
                column = checked_ids(ids)
                _check_kind(column, live.shape().id_kind)
                done, asked = live.delete_ids(column), distinct_count(column)
            rows = int(done.rows)
            upkeep.died(rows)
        return Written(
            rows=rows,
            missing=0 if asked is None else asked - rows,
            sequence=int(done.sequence),
            durable=bool(done.durable),
            pressure=live.pressure,
        )

    def _delete_matching(self, live: LiveData, upkeep: Upkeep, condition: Any) -> Any:
        for _ in range(_STALE_MAX):
            done = self._delete_once(live, condition)
            if done.outcome != STALE:
                return done
        with upkeep.kept_away():
            return self._delete_once(live, condition)

    def _delete_once(self, live: LiveData, condition: Any) -> Any:
        view = self._newest_searches().seen
        return live.delete_vertices(view, view.passing(condition))

    # ---- columns that come

    def _add_columns(self, new: NewColumns, *, overwrite: bool) -> None:
        """Add columns to live data, as :meth:`velo.Index.add_columns` says."""
        if overwrite:
            raise InvalidArgumentError(
                "overwrite exchanges the columns of an index that is as it was built, and not open to write: "
                "update changes the values of others",
                argument="overwrite",
            )
        with self._gate.inside():
            live, _ = self._writer()
            live.add_columns(new)

    # ---- looking

    def refresh(self) -> bool:
        """See what another process has written since this index was opened, or refreshed.

        Returns
        -------
        bool
            Whether there was anything.

        Raises
        ------
        UnsupportedError
            The folder holds another index by now; open it again.
        CorruptIndexError, DeviceError
        """
        with self._gate.inside():
            return self._refreshed()

    # ---- upkeep

    def snapshot(self, path: PathLike) -> None:
        """Make another folder an index that holds what this one holds now.

        Files that never change get a second name there, so that takes little room and time. Where the file
        system has no second names they are copied. Both folders then go their own ways.

        Parameters
        ----------
        path : path
            Not there, or an empty folder; it takes its name when it is complete and on the device. What was
            written before the call is in it, also by another process; of what is written meanwhile each call
            wholly or not at all.

        Raises
        ------
        IndexExistsError
            There is something at `path`.
        NoSpaceError, PermissionDeniedError

        Examples
        --------
        >>> with velo.open("shop.velo", writable=True) as index:
        ...     index.snapshot("copy.velo")
        ...     done = index.delete([17])
        >>> velo.verify("copy.velo") > 0
        True
        """
        with self._gate.inside():
            snapshot(self._folder.at, folder_path(path))

    def flush(self) -> None:
        """Make a part, an index of the ordinary format, of all rows that no part holds, and sync.

        Searches then walk a graph over them instead of looking at all, and their memory is free for others.
        It takes as long as to build an index of these rows; others write and search meanwhile.

        Raises
        ------
        ReadOnlyError, NoSpaceError, DeviceError
        """
        with self._gate.inside():
            live, upkeep = self._writer()
            upkeep.flush()
            live.flush_log()
            self._let_go(upkeep)

    def optimize(self, wait: bool = True) -> None:
        """Make one part of all rows that live, as a build of them would: searches are at their fastest again.

        It writes each of them once, new ones too. Deleted and replaced rows give back their room. Others
        write and search meanwhile; what they write stays beside that part. A process that is killed leaves
        the index as it was.

        Of an index that was built without ``store_vectors=True`` codes are copied. The part then stores no
        vectors, those of rows that were inserted since among them.

        Parameters
        ----------
        wait : bool
            False: in the background; :meth:`flush`, :meth:`optimize` and :meth:`close` wait for it.

        Raises
        ------
        ReadOnlyError, NoSpaceError, DeviceError
        """
        with self._gate.inside():
            _, upkeep = self._writer()
            if not wait:
                upkeep.begin(everything=True)
                return
            upkeep.optimize()
            self._let_go(upkeep)

    def _let_go(self, upkeep: Upkeep) -> None:
        """The view before holds what was merged: with another one it can be taken away."""
        self._newest_searches()
        upkeep.sweep()
        settle_words(self._folder.at)
        # Columns went through Arrow's pool, which would keep as much as a merge took.
        pa.default_memory_pool().release_unused()


def _check_one(verb: str, ids: Any, condition: Any) -> None:
    if (ids is None) == (condition is None):
        raise InvalidArgumentError(f"{verb} takes ids or a filter, and one of them", argument="ids")


def distinct_count(column: Any) -> int:
    """How many ids of a checked column differ."""
    return len(np.unique(column) if isinstance(column, np.ndarray) else pc.unique(column))


def _check_kind(column: Any, kind: int) -> None:
    """Refuse ids of another kind; none at all are of any kind, and without rows any kind may come."""
    if len(column) and kind >= 0 and isinstance(column, np.ndarray) == (kind == STRINGS):
        wanted = "strings" if kind == STRINGS else "whole numbers"
        raise InvalidArgumentError(f"ids: the ids of this index are {wanted}", argument="ids")


def seconds(timeout_s: Any) -> float:
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s >= 0:
        raise InvalidArgumentError(f"timeout_s must be at least 0, not {timeout_s!r}", argument="timeout_s")
    return float(timeout_s)
