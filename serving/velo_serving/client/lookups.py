"""The client's questions that need no search: counts, rows, explanations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from velo.hints import hinted
from velo_serving.client.awaited import Asking, awaited
from velo_serving.client.calls import ARROW, ClientCall
from velo_serving.wire.codec import table_of
from velo_serving.words.types import FilterForm

if TYPE_CHECKING:
    import httpx

__all__ = ["ClientLookups"]

R = TypeVar("R")


class ClientLookups(Asking):
    """What a ``Client`` can ask of rows."""

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
        return self._post("count", ClientCall.of_fields(fields), lambda told: int(told["count"]))

    count_async = awaited(count)
    """As ``count``, without blocking the event loop."""

    @hinted
    def get(
        self,
        ids: Sequence[int] | Sequence[str] | int | str,
        *,
        columns: Sequence[str] | bool = True,
        unknown: Literal["error", "skip"] = "error",
        timeout_s: float | None = None,
    ) -> pa.Table:
        """Return the metadata of some ids, as ``velo.Index.get``.

        Parameters
        ----------
        ids : sequence of int or str, or one
        columns : sequence of str, or bool
            All of them with True.
        unknown : {"error", "skip"}
            What becomes of ids that no row has; with ``"skip"`` they are left out.
        timeout_s : float, optional
            Deadline at the server; default: the server's.

        Returns
        -------
        pyarrow.Table
            ``id`` and the columns, a row an id, in the order asked for.

        Raises
        ------
        UnknownIdError
        """
        fields = {
            "ids": np.atleast_1d(np.asarray(ids)).tolist(),
            "columns": _names(columns),
            "unknown": unknown,
            "timeout_ms": _milliseconds(timeout_s),
            "allow_partial": False,
        }
        return self._ask("POST", self._path_of("get"), _for_rows(fields), _rows_of)

    get_async = awaited(get)
    """As ``get``, without blocking the event loop."""

    @hinted
    def rows(
        self,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.rows
        *,
        limit: int = 100,
        after: Any = None,
        columns: Sequence[str] | bool = True,
        timeout_s: float | None = None,
    ) -> pa.Table:
        """Return rows that pass a filter, page by page in the order of their ids, as ``velo.Index.rows``.

        Parameters
        ----------
        filter : dict or str, optional
        limit : int
            Rows at most.
        after : id, optional
            The last id of the page before.
        columns : sequence of str, or bool
        timeout_s : float, optional
            Deadline at the server; default: the server's.

        Returns
        -------
        pyarrow.Table
            ``id`` and the columns; fewer rows than `limit` on the last page.
        """
        as_py = getattr(after, "as_py", None)  # a value of an Arrow column
        fields = {
            "filter": filter,
            "limit": limit,
            "after": after if as_py is None else as_py(),
            "columns": _names(columns),
            "timeout_ms": _milliseconds(timeout_s),
        }
        return self._ask("POST", self._path_of("rows"), _for_rows(fields), _rows_of)

    rows_async = awaited(rows)
    """As ``rows``, without blocking the event loop."""

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
        return self._post("explain", ClientCall.of_fields(fields), read)

    explain_async = awaited(explain)
    """As ``explain``, without blocking the event loop."""


def _for_rows(fields: Mapping[str, Any]) -> ClientCall:
    """A question that is answered in Arrow, which keeps all types as they are."""
    call = ClientCall.of_fields(fields)
    return replace(call, headers={**call.headers, "Accept": ARROW})


def _rows_of(response: httpx.Response) -> pa.Table:
    return table_of(response.content).replace_schema_metadata(None)


def _names(columns: Sequence[str] | bool) -> list[str] | bool:
    return columns if isinstance(columns, bool) else [columns] if isinstance(columns, str) else list(columns)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
