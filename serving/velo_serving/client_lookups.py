"""The client's questions that need no search: counts, rows, explanations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from velo.hints import hinted
from velo_serving.types import FilterForm

__all__ = ["ClientLookups"]


class ClientLookups(ABC):
    """What a ``Client`` can ask of rows."""

    @abstractmethod
    def _look_up(self, what: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Ask a path below the collection."""

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
        answer = self._look_up("count", fields)
        return int(answer["count"])

    @hinted
    def get(
        self,
        ids: Sequence[int] | Sequence[str],
        *,
        columns: Sequence[str] | bool = True,
        timeout_s: float | None = None,
    ) -> list[dict[str, Any] | None]:
        """Bring the rows of some ids, None where there is none.

        Parameters
        ----------
        ids : sequence of int or str
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
            "ids": np.asarray(ids).tolist(),
            "columns": columns if isinstance(columns, bool) else list(columns),
            "timeout_ms": _milliseconds(timeout_s),
            "allow_partial": False,
        }
        answer = self._look_up("get", fields)
        rows: list[dict[str, Any] | None] = answer["rows"]
        return rows

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
        asked: dict[str, Any] = {
            "filter": filter,
            "columns": columns if isinstance(columns, bool) else list(columns),
            "limit": page_rows,
            "timeout_ms": _milliseconds(timeout_s),
        }
        page: str | None = None
        while True:
            answer = self._look_up("rows", asked | {"page": page})
            yield from answer["rows"]
            page = answer["next"]
            if page is None:
                return

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
        return self._look_up("publish", {"path": path, "version": version})

    @hinted
    def explain(
        self,
        query: npt.ArrayLike,
        k: int = 10,
        *,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.explain
        recall: float | None = None,
        list_size: int | None = None,
        timeout_s: float | None = None,
    ) -> list[dict[str, Any]]:
        """Run one query and tell how each shard answered it.

        Parameters
        ----------
        query : array of shape (dim,)
        k : int
        filter : dict or str, optional
        recall, list_size :
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
            "timeout_ms": _milliseconds(timeout_s),
        }
        shards: list[dict[str, Any]] = self._look_up("explain", fields)["shards"]
        return shards


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
