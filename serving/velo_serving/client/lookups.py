"""The client's questions that need no search: counts, rows, explanations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from velo.hints import hinted
from velo_serving.client.awaited import Asking, awaited
from velo_serving.client.calls import ClientCall
from velo_serving.words.types import FilterForm

__all__ = ["ClientLookups"]

R = TypeVar("R")


class ClientLookups(Asking):
    """What a ``Client`` can ask of rows."""

    def _look_up(self, what: str, fields: Mapping[str, Any], read: Callable[[dict[str, Any]], R]) -> R:
        """Ask a path below the collection."""
        return self._ask(
            "POST", self._path_of(what), ClientCall.of_fields(fields), lambda told: read(told.json())
        )

    @hinted
    def count(
        self,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.count
        *,
        timeout_s: float | None = None,
    ) -> int:
        """Count the rows that pass a filter, or all.

        Parameters
        ----------
        filter : dict or str, optional
        timeout_s : float, optional
            Deadline at the server; default: the server's.

        Returns
        -------
        int

        Raises
        ------
        NoShardAnsweredError
            A shard is away: a count without it would be of nothing in particular.
        """
        fields = {"filter": filter, "timeout_ms": _milliseconds(timeout_s), "allow_partial": False}
        return self._look_up("count", fields, lambda told: int(told["count"]))

    count_async = awaited(count)
    """As ``count``, without blocking the event loop."""

    @hinted
    def get(
        self,
        ids: Sequence[int] | Sequence[str] | int | str,
        *,
        columns: Sequence[str] | bool = True,
        timeout_s: float | None = None,
    ) -> list[dict[str, Any] | None]:
        """Bring the rows of some ids, None where there is none.

        Parameters
        ----------
        ids : sequence of int or str, or one
        columns : sequence of str, or bool
            All of them with True.
        timeout_s : float, optional
            Deadline at the server; default: the server's.

        Returns
        -------
        list of dict
            ``id`` and the columns, in the order of `ids`.
        """
        fields = {
            "ids": np.atleast_1d(np.asarray(ids)).tolist(),
            "columns": _names(columns),
            "timeout_ms": _milliseconds(timeout_s),
            "allow_partial": False,
        }
        read: Callable[[dict[str, Any]], list[dict[str, Any] | None]] = itemgetter("rows")
        return self._look_up("get", fields, read)

    get_async = awaited(get)
    """As ``get``, without blocking the event loop."""

    def rows(
        self,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.rows
        *,
        columns: Sequence[str] | bool = True,
        page_rows: int = 100,
        timeout_s: float | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Bring all rows that pass a filter, page by page as they are asked for.

        Parameters
        ----------
        filter : dict or str, optional
        columns : sequence of str, or bool
        page_rows : int
            Rows that one request brings.
        timeout_s : float, optional
            Deadline of each of them at the server; default: the server's.

        Yields
        ------
        dict
            ``id`` and the columns.
        """
        asked = _of_rows(filter, columns, page_rows, timeout_s)
        while True:
            answer = self._page(asked)
            yield from answer["rows"]
            if answer["next"] is None:
                return
            asked["page"] = answer["next"]

    async def rows_async(
        self,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.rows
        *,
        columns: Sequence[str] | bool = True,
        page_rows: int = 100,
        timeout_s: float | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Bring all rows that pass a filter without blocking the event loop; as ``rows``.

        Parameters
        ----------
        filter, columns, page_rows, timeout_s :
            As for ``rows``.

        Yields
        ------
        dict
        """
        asked = _of_rows(filter, columns, page_rows, timeout_s)
        while True:
            answer = await self._page_async(asked)
            for row in answer["rows"]:
                yield row
            if answer["next"] is None:
                return
            asked["page"] = answer["next"]

    def _page(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return self._look_up("rows", asked, dict)

    _page_async = awaited(_page)

    def publish(self, path: str, version: str) -> dict[str, Any]:
        """Have another build served under the collection's name; it takes an admin key.

        The server opens it beside what it serves, so this takes as long as that: give the client a
        ``timeout_s`` to match.

        Parameters
        ----------
        path : str
            A folder of the server, or a place in an object store.
        version : str
            What it is called; another one than now.

        Returns
        -------
        dict
            ``version``, ``n``, ``dim`` and ``metric`` of what is served now.

        Raises
        ------
        AdminKeyError, PublicationError, InvalidArgumentError
        """
        return self._look_up("publish", {"path": path, "version": version}, dict)

    publish_async = awaited(publish)
    """As ``publish``, without blocking the event loop."""

    @hinted
    def explain(
        self,
        query: npt.ArrayLike,
        k: int = 10,
        *,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.explain
        recall: float | None = None,
        list_size: int | None = None,
        exact: bool | None = None,
        timeout_s: float | None = None,
    ) -> list[dict[str, Any]]:
        """Run one query and tell how each shard answered it.

        Parameters
        ----------
        query : array of shape (dim,)
        k : int
        filter : dict or str, optional
        recall, list_size, exact :
            As in ``velo.Index.search``.
        timeout_s : float, optional
            Deadline at the server; default: the server's.

        Returns
        -------
        list of dict
            Of each shard, what ``velo.Index.explain`` tells.
        """
        fields = {
            "vector": np.asarray(query, np.float32).tolist(),
            "k": k,
            "filter": filter,
            "recall": recall,
            "list_size": list_size,
            "exact": exact,
            "timeout_ms": _milliseconds(timeout_s),
        }
        read: Callable[[dict[str, Any]], list[dict[str, Any]]] = itemgetter("shards")
        return self._look_up("explain", fields, read)

    explain_async = awaited(explain)
    """As ``explain``, without blocking the event loop."""


def _of_rows(
    condition: FilterForm | None, columns: Sequence[str] | bool, page_rows: int, timeout_s: float | None
) -> dict[str, Any]:
    """The first page."""
    return {
        "filter": condition,
        "columns": _names(columns),
        "limit": page_rows,
        "timeout_ms": _milliseconds(timeout_s),
        "page": None,
    }


def _names(columns: Sequence[str] | bool) -> list[str] | bool:
    return columns if isinstance(columns, bool) else [columns] if isinstance(columns, str) else list(columns)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
