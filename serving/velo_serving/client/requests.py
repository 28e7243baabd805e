"""The requests of a client: a method for each, which ends in sending it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from velo.errors import InvalidArgumentError
from velo.hints import hinted
from velo.options import Fusion
from velo.results import RangeResult, SearchResult, Written
from velo_serving.client.calls import (
    ARROW,
    JSON,
    Call,
    Target,
    column_names,
    for_rows,
    fusion_field,
    id_column,
    json_call,
    range_call,
    search_call,
    write_call,
    written,
)
from velo_serving.protocol.requests import EffortKeywords, FilterForm, shows_effort
from velo_serving.transport.codec import stream_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

R = TypeVar("R")


class Requests(ABC):
    """Requests to a gateway. Each method returns what ``_send`` returns for its call, and nothing else.

    A write is whole or not at all within each shard. Its answer may get lost; the client asks again under the
    same name (``request``), and nothing is done twice.
    """

    _target: Target

    @abstractmethod
    def _send(self, call: Call[R]) -> R:
        """Send a request and read its answer."""

    # ---- searches ----

    @hinted
    @shows_effort
    def search(
        self,
        queries: npt.ArrayLike | None = None,
        k: int = 10,
        *,
        ids: Sequence[int] | Sequence[str] | int | str | None = None,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.search
        filters: Sequence[FilterForm | None] | None = None,
        return_metadata: Sequence[str] | bool | None = None,
        return_vectors: bool = False,
        group_by: str | None = None,
        group_size: int = 1,
        text: str | Sequence[str] | None = None,
        fusion: Fusion | Literal["rrf", "weighted"] | None = None,
        timeout_s: float | None = None,
        allow_partial: bool = True,
        **effort: Unpack[EffortKeywords],
    ) -> SearchResult:
        """Find the k nearest vectors of each query.

        Parameters
        ----------
        queries : array of shape (query_count, dim) or (dim,)
            None with `ids`, or with `text` alone.
        k, filter, return_metadata, group_by, group_size, fusion, recall, list_size, exact
            As in ``velo.Index.search``.
        ids : sequence of int or str, or one, optional
            Instead of queries: rows whose stored vectors are the queries.
        filters : sequence of dict, str or None, optional
            A filter for each query.
        return_vectors : bool
            Return the stored vectors of the hits (``store_vectors=True``), as ``vectors``.
        text : str or sequence of str, optional
            As in ``velo.Index.search``; each shard ranks by the statistics of its own rows.
        timeout_s : float, optional
            Deadline of this search at the server; default: the server's.
        allow_partial : bool
            False: a missing shard is an error.

        Returns
        -------
        SearchResult
            As of ``velo.Index.search``, or a ``GroupedResult`` with ``group_by``. ``stats`` are each query's
            share of the cost; times and dates in ``metadata`` are ISO 8601 texts.

        Raises
        ------
        VeloError
            The gateway's error, by its class; ``ConnectionFailedError`` if it cannot be reached.
        """
        call = search_call(
            self._target,
            queries,
            k=k,
            ids=ids,
            filter=filter,
            filters=filters,
            return_metadata=return_metadata,
            return_vectors=return_vectors,
            group_by=group_by,
            group_size=group_size,
            text=text if text is None or isinstance(text, str) else list(text),
            fusion=fusion_field(fusion),
            timeout_s=timeout_s,
            allow_partial=allow_partial,
            **effort,
        )
        return self._send(call)

    @hinted
    @shows_effort
    def range_search(
        self,
        queries: npt.ArrayLike | None,
        radius: float,
        *,
        ids: Sequence[int] | Sequence[str] | int | str | None = None,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.search
        filters: Sequence[FilterForm | None] | None = None,
        return_metadata: Sequence[str] | bool | None = None,
        return_vectors: bool = False,
        limit: int | None = None,
        timeout_s: float | None = None,
        allow_partial: bool = True,
        **effort: Unpack[EffortKeywords],
    ) -> RangeResult:
        """Find all vectors within a distance of each query, as ``velo.Index.range_search`` does.

        Parameters
        ----------
        queries, ids, filter, filters, return_metadata, return_vectors, timeout_s, allow_partial
            As for ``search``.
        radius, recall, list_size, exact
            As in ``velo.Index.range_search``.
        limit : int, optional
            Hits of a query at most; default: as many as the server allows.

        Returns
        -------
        RangeResult
            Unpacks as ``lims, distances, ids``.
        """
        call = range_call(
            self._target,
            queries,
            radius=float(radius),
            ids=ids,
            filter=filter,
            filters=filters,
            return_metadata=return_metadata,
            return_vectors=return_vectors,
            limit=limit,
            timeout_s=timeout_s,
            allow_partial=allow_partial,
            **effort,
        )
        return self._send(call)

    def info(self) -> dict[str, Any]:
        """Ask what the gateway says of the collection, or of all where the client names none.

        Returns
        -------
        dict
        """
        return self._send(Call("GET", self._target.info, lambda answer: dict(answer.json())))

    # ---- rows without a search ----

    @hinted
    def count(
        self,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.count
        *,
        timeout_s: float | None = None,
    ) -> int:
        """Count the rows that pass a filter, or all; without some shard it is an error.

        Parameters
        ----------
        filter, timeout_s
            As for ``search``.

        Returns
        -------
        int
        """
        fields = {"filter": filter, "timeout_s": timeout_s, "allow_partial": False}
        return self._send(json_call(self._target.path("count"), fields, lambda answer: int(answer["count"])))

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
        columns, unknown
            As in ``velo.Index.get``.
        timeout_s : float, optional
            Deadline at the server; default: the server's.

        Returns
        -------
        pyarrow.Table
            ``id`` and the columns, in the order of `ids`.
        """
        fields = {
            "ids": np.atleast_1d(np.asarray(ids)).tolist(),
            "columns": column_names(columns, "columns"),
            "unknown": unknown,
            "timeout_s": timeout_s,
            "allow_partial": False,
        }
        return self._send(for_rows(self._target.path("get"), fields))

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
        filter, limit, after, columns
            As in ``velo.Index.rows``.
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
            "columns": column_names(columns, "columns"),
            "timeout_s": timeout_s,
        }
        return self._send(for_rows(self._target.path("rows"), fields))

    @hinted
    @shows_effort
    def explain(
        self,
        query: npt.ArrayLike,
        k: int = 10,
        *,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.explain
        timeout_s: float | None = None,
        **effort: Unpack[EffortKeywords],
    ) -> list[dict[str, Any]]:
        """Run one query and tell how each shard answered it.

        Parameters
        ----------
        query : array of shape (dim,)
        k, filter, timeout_s, recall, list_size, exact
            As for ``search``.

        Returns
        -------
        list of dict
            Of each shard, what ``velo.Index.explain`` tells.
        """
        vector = np.asarray(query, np.float32).tolist()
        fields = {"vector": vector, "k": k, "filter": filter, "timeout_s": timeout_s, **effort}
        return self._send(json_call(self._target.path("explain"), fields, itemgetter("shards")))

    # ---- writes, where the server was started with ``--writable`` ----

    def insert(
        self,
        vectors: npt.ArrayLike,
        ids: Sequence[int] | Sequence[str] | npt.NDArray[Any] | None = None,
        metadata: Any = None,
        request: str | None = None,
        timeout_s: float | None = None,
    ) -> Written:
        """Add rows; as ``velo.Index.insert``.

        Parameters
        ----------
        vectors, ids, metadata
            As in ``velo.Index.insert``.
        request : str, optional
            A name for this call, under which it can be repeated after a restart; default: a random one.
        timeout_s : float, optional
            How long the server may wait for room.

        Returns
        -------
        velo.results.Written
            ``sequence`` is the highest of all shards.

        Raises
        ------
        DuplicateIdError
            An id exists; nothing was written.
        PartialWriteError
            Some shards wrote; repeating the call under the same name completes it.
        VeloError
            As of ``velo.Index.insert``, and of a search.
        """
        return self._send(write_call(self._target.path("insert"), vectors, ids, metadata, request, timeout_s))

    def upsert(
        self,
        vectors: npt.ArrayLike,
        ids: Sequence[int] | Sequence[str] | npt.NDArray[Any],
        metadata: Any = None,
        request: str | None = None,
        timeout_s: float | None = None,
    ) -> Written:
        """Add rows, each in the place of the one that has its id, where there is one.

        Parameters
        ----------
        vectors, ids, metadata, request, timeout_s
            As for ``insert``. Of an id that is there several times the last row counts.

        Returns
        -------
        velo.results.Written
        """
        return self._send(write_call(self._target.path("upsert"), vectors, ids, metadata, request, timeout_s))

    def update(
        self,
        ids: Sequence[int] | Sequence[str] | npt.NDArray[Any] | int | str,
        metadata: Any,
        request: str | None = None,
        timeout_s: float | None = None,
    ) -> Written:
        """Change columns of rows; their vectors and other columns stay.

        Parameters
        ----------
        ids, metadata
            As in ``velo.Index.update``.
        request, timeout_s
            As for ``insert``.

        Returns
        -------
        velo.results.Written
        """
        return self._send(write_call(self._target.path("update"), None, ids, metadata, request, timeout_s))

    def delete(
        self,
        ids: Sequence[int] | Sequence[str] | npt.NDArray[Any] | int | str | None = None,
        *,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.delete
        timeout_s: float | None = None,
    ) -> Written:
        """Delete rows by id, or all that pass a filter.

        Parameters
        ----------
        ids, filter
            As in ``velo.Index.delete``.
        timeout_s : float, optional

        Returns
        -------
        velo.results.Written
        """
        if (ids is None) == (filter is None):
            raise InvalidArgumentError("delete takes ids or a filter, and one of them", argument="ids")
        fields: dict[str, Any] = {"filter": filter}
        if ids is not None:
            column = id_column(ids)
            fields = {"ids": column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()}
        call = json_call(self._target.path("delete"), {**fields, "timeout_s": timeout_s}, written)
        return self._send(call)

    def _until_done(self, what: str, fields: dict[str, Any]) -> Call[bool]:
        """A maintenance call, repeated until it is done unless ``wait`` is false."""
        call: Call[bool] = json_call(self._target.path(what), fields, itemgetter("done"))
        return replace(call, again=lambda done: not done and fields.get("wait", True))

    def flush(self) -> bool:
        """Write new rows of each shard to a segment on the device; wait for it.

        Returns
        -------
        bool
            True.
        """
        return self._send(self._until_done("flush", {}))

    def optimize(self, wait: bool = True) -> bool:
        """Compact each shard to one segment.

        Parameters
        ----------
        wait : bool
            False: in the background.

        Returns
        -------
        bool
            Whether it is done.
        """
        return self._send(self._until_done("optimize", {"wait": wait}))

    # ---- collections; where the server has keys, each takes an admin key ----

    def create(
        self,
        name: str,
        *,
        dim: int,
        metric: Literal["l2", "ip", "cosine"] = "l2",
        dtype: Literal["float32", "float16", "uint8", "int8"] = "float32",
        metadata: pa.Schema | None = None,
    ) -> dict[str, Any]:
        """Make a collection without rows, as ``velo.create``, in the server's folder for them (``--root``).

        Parameters
        ----------
        name : str
            Then ``Client(url, collection=name)`` writes to it and searches it.
        dim, metric, dtype, metadata
            As of ``velo.create``.

        Returns
        -------
        dict
            ``name``, ``dim`` and ``metric``.

        Raises
        ------
        IndexExistsError, InvalidArgumentError, UnsupportedError, AdminKeyError
        """
        fields: dict[str, Any] = {"name": name, "dim": dim, "metric": metric, "dtype": dtype}
        call = json_call("/v1/collections", fields, dict)
        if metadata is not None:
            headers = {"Content-Type": ARROW, "Accept": JSON}
            call = replace(call, body=stream_of(metadata.empty_table()), headers=headers, params=fields)
        return self._send(call)

    def drop(self) -> list[str]:
        """Drop the collection and remove what velo made in its folder.

        Returns
        -------
        list of str
            Files that velo did not make, which stay.

        Raises
        ------
        UnsupportedError, UnknownCollectionError, BusyError, AdminKeyError
        """
        return self._send(Call("DELETE", self._target.path(), lambda answer: list(answer.json()["left"])))

    def snapshot(self, path: str | Path) -> None:
        """Copy the current rows to another folder of the server.

        Parameters
        ----------
        path : str or Path
            As of ``velo.Index.snapshot``: an absolute path, not there, or an empty folder.

        Raises
        ------
        IndexExistsError, UnsupportedError, InvalidArgumentError, AdminKeyError
        """
        return self._send(json_call(self._target.path("snapshot"), {"path": str(path)}, lambda _: None))

    def move(self, shard: str, path: str | Path, pin: str | None = None) -> dict[str, Any]:
        """Move a shard to another folder or node, while it is searched and written to.

        Give the client a ``timeout_s`` in which the shard can be copied.

        Parameters
        ----------
        shard : str
            Its name: a number from 0 on.
        path : str or Path
            A folder of its new node: an absolute path, not there, or an empty folder.
        pin : str, optional
            On Ray its new node: ``resource:NAME`` or ``label:KEY=VALUE``.

        Returns
        -------
        dict
            ``shard``, ``path`` and ``held_ms``, the milliseconds for which its writes waited.

        Raises
        ------
        BusyError, IndexExistsError, NoSpaceError, InvalidArgumentError, UnsupportedError, AdminKeyError
        """
        fields = {"shard": shard, "path": str(path)} | ({} if pin is None else {"pin": pin})
        return self._send(json_call(self._target.path("move"), fields, dict))

    def publish(self, path: str | Path, version: str) -> dict[str, Any]:
        """Serve another build under the collection's name.

        The server opens it beside the present one first: give the client a sufficient ``timeout_s``.

        Parameters
        ----------
        path : str or Path
            A folder of the server, or a location in an object store.
        version : str
            The name of the build, different from the present one.

        Returns
        -------
        dict
            ``version``, ``n``, ``dim`` and ``metric`` of the new build.

        Raises
        ------
        AdminKeyError, PublicationError, InvalidArgumentError
        """
        fields = {"path": str(path), "version": version}
        return self._send(json_call(self._target.path("publish"), fields, dict))
