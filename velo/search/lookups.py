"""Rows of an index without a query: how many pass a filter, which they are, and what is known of an id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from velo.errors import InvalidArgumentError, UnknownIdError
from velo.filters.arrays import arrow_of, texts_of
from velo.filters.native import NativeFilter
from velo.folder.ids import checked_ids
from velo.options import code_of, whole_number
from velo.search.searched import Searched
from velo.types import AnyArray, UnknownIds

__all__ = ["UNKNOWN_IDS", "Lookups"]

_LIMIT_MAX: Final = 1 << 24
#: What becomes of ids that no row has.
UNKNOWN_IDS: Final = {"error": 0, "skip": 1}


class Lookups(Searched):
    """What :class:`velo.Index` tells of its rows by filter and by id."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the metadata, as they were given; none where there is no metadata.

        Examples
        --------
        >>> index.schema.names, str(index.schema.field("price").type)
        (['label', 'price', 'brand', 'tags'], 'float')
        """
        self._check_open()
        schema = self._schema_of_rows()
        return pa.schema([]) if schema is None else schema

    def _schema_of_rows(self) -> pa.Schema | None:
        """The columns; None: there is no metadata. No row is looked at."""
        schema: pa.Schema | None = None if self._metadata is None else self._metadata.schema
        return schema

    def count(self, filter: Any = None) -> int:  # noqa: A002
        """Count the rows that pass a filter, or all rows without one.

        Parameters
        ----------
        filter : optional
            One filter, as for :meth:`search`.

        Returns
        -------
        int

        Examples
        --------
        >>> index.count({"price": {"$lt": 0.2}})
        387
        """
        at: Lookups = self._seen()
        passing = at._passing(filter)
        return at.n if passing is None else passing.count()

    def contains(self, ids: Any) -> AnyArray:
        """Tell of some ids whether a row has them.

        Parameters
        ----------
        ids : array-like of shape (m,), or one id

        Returns
        -------
        ndarray of shape (m,), bool

        Examples
        --------
        >>> index.contains([17, 1_000_000])
        array([ True, False])
        """
        at: Lookups = self._seen()
        at._check_open()
        found = at._ids.find([ids] if isinstance(ids, str | int | np.integer) else ids)
        return at._living(found)

    def _vertices(self, ids: Any) -> AnyArray:
        """The vertex of the row that lives of each id.

        Raises
        ------
        UnknownIdError
        """
        single = isinstance(ids, str | int | np.integer)
        vertices: AnyArray = self._ids.vertices([ids] if single else ids)
        view = self._view()
        if view is not None and len(vertices):
            dead = np.flatnonzero(~view.rows.check(vertices.astype(np.uint32)))
            if len(dead):
                raise UnknownIdError(
                    "no vector has this id any more: it was deleted", argument="ids", row=int(dead[0])
                )
        return vertices

    def _living(self, vertices: AnyArray) -> AnyArray:
        """Of vertices that ids were found at, -1 for none, whether they live."""
        return vertices >= 0

    def get(
        self, ids: Any, *, columns: Sequence[str] | bool = True, unknown: UnknownIds = "error"
    ) -> pa.Table:
        """Return the metadata of some ids.

        Parameters
        ----------
        ids : array-like of shape (m,), or one id
        columns : list of str or True
            All of them with True.
        unknown : {"error", "skip"}
            What becomes of ids that no row has, or whose row was deleted. With ``"skip"`` they are left out:
            the column ``id`` says which are there.

        Returns
        -------
        pyarrow.Table
            ``id`` and the columns, a row an id, in the order asked for.

        Raises
        ------
        UnknownIdError
            An id that no row has, or that was deleted; not with ``unknown="skip"``.

        Examples
        --------
        >>> index.get([17, 4], columns=["brand"]).to_pydict()
        {'id': [17, 4], 'brand': [...]}
        >>> index.get([17, 1_000_000], columns=["brand"], unknown="skip")["id"].to_pylist()
        [17]
        """
        code_of(UNKNOWN_IDS, unknown, "unknown")
        at: Lookups = self._seen()
        names = at._columns(columns)
        at._check_open()
        if unknown == "skip":
            found = at._ids.find(checked_ids(ids))
            return at._table(found[at._living(found)], names)
        return at._table(at._vertices(ids), names)

    def rows(
        self,
        filter: Any = None,  # noqa: A002
        *,
        limit: int = 100,
        after: Any = None,
        columns: Sequence[str] | bool = True,
    ) -> pa.Table:
        """Return rows that pass a filter, page by page.

        They come in the order of their ids. So pages fit together whatever is written and merged meanwhile.

        Parameters
        ----------
        filter : optional
            One filter, as for :meth:`search`; all rows without one.
        limit : int
            Rows at most.
        after : id, optional
            The last id of the page before, whether or not its row is still there.
        columns : list of str or True
            Of the metadata; all of them with True.

        Returns
        -------
        pyarrow.Table
            ``id`` and the columns; fewer rows than `limit` on the last page.

        Examples
        --------
        >>> first = index.rows({"brand": "brand-07"}, limit=5)
        >>> next_page = index.rows({"brand": "brand-07"}, limit=5, after=first["id"][-1])
        >>> len(first), set(first["id"].to_pylist()) & set(next_page["id"].to_pylist())
        (5, set())
        """
        at: Lookups = self._seen()
        names = at._columns(columns)
        most = whole_number(limit, "limit", 1, _LIMIT_MAX)
        passing = at._passing(filter)
        if after is not None:
            as_py = getattr(after, "as_py", None)  # a value of an Arrow column
            column = checked_ids(after if as_py is None else as_py())
            at._ids.check_kind(column, "after")
            after = column[0] if isinstance(column, np.ndarray) else column[0].as_py()
        return at._table(at._ids.page(after, most, None if passing is None else passing.matches()), names)

    def sample(
        self,
        limit: int = 1000,
        *,
        filter: Any = None,  # noqa: A002
        columns: Sequence[str] | bool = True,
        seed: int = 0,
    ) -> pa.Table:
        """Return rows drawn at random, each at most once.

        Parameters
        ----------
        limit : int
            Rows at most.
        filter : optional
            One filter, as for :meth:`search`: only rows that pass it are drawn.
        columns : list of str or True
            Of the metadata; all of them with True.
        seed : int
            The same one draws the same rows, while nothing is written.

        Returns
        -------
        pyarrow.Table
            ``id`` and the columns.

        Examples
        --------
        >>> few = index.sample(5, filter={"brand": "brand-07"}, columns=["brand"])
        >>> len(few), set(few["brand"].to_pylist())
        (5, {'brand-07'})
        """
        at: Lookups = self._seen()
        names = at._columns(columns)
        most = whole_number(limit, "limit", 1, _LIMIT_MAX)
        chance = np.random.default_rng(whole_number(seed, "seed", 0, (1 << 64) - 1))
        passing = at._passing(filter)
        known = None if passing is None else np.flatnonzero(passing.matches())
        count = at.n if known is None else len(known)
        drawn = np.sort(chance.choice(count, min(most, count), replace=False, shuffle=False))
        return at._table(drawn if known is None else known[drawn], names)

    def _passing(self, condition: Any) -> NativeFilter | None:
        """The rows that live and pass one filter; None where all do."""
        self._check_open()
        if isinstance(condition, list | tuple) and any(
            isinstance(one, dict) or one is None for one in condition
        ):
            raise InvalidArgumentError(
                "one filter is asked here, not a list of them: there are no queries", argument="filter"
            )
        passing = None if condition is None else self._filters.compile(condition)
        view = self._view()
        if view is None or view.rows is None:
            return passing
        rows: NativeFilter = view.applied([passing])[0]
        return rows

    def _table(self, vertices: AnyArray, names: list[str] | None) -> pa.Table:
        found = self._ids.of(vertices.astype(np.int64))
        ids = texts_of(found.tolist()).cast(pa.string()) if found.dtype == object else arrow_of(found)
        table = pa.table({"id": ids})
        if self._metadata is not None and names:
            rows = self._metadata.rows(vertices, names)
            for name in rows.column_names:
                shown = name if name != "id" else "metadata.id"
                table = table.append_column(shown, rows.column(name))
        return table
