"""The client's writes."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from velo.errors import DimensionMismatchError, InvalidArgumentError, NotFiniteError
from velo.folder.ids import checked_ids
from velo.folder.metadata import given_metadata
from velo.results import Written
from velo_serving.client.awaited import Asking, awaited
from velo_serving.client.calls import ARROW, TYPES, ClientCall
from velo_serving.wire.codec import stream_of
from velo_serving.words.types import FilterForm

__all__ = ["ClientWrites"]

R = TypeVar("R")


def _name(request: str | None) -> str | None:
    """A name for a call, as it travels in a URL."""
    try:
        if request is not None:
            request.encode()
    except (UnicodeEncodeError, AttributeError):
        raise InvalidArgumentError(
            f"request is a text of Unicode characters, not {request!r}", argument="request"
        ) from None
    return request


def _rows_call(
    vectors: npt.ArrayLike | None, ids: Any, metadata: Any, request: str | None, timeout_s: float | None
) -> ClientCall:
    """Rows as an Arrow stream, which keeps all types as they are."""
    columns: dict[str, Any] = {}
    count = 0
    if vectors is not None:
        matrix = np.asarray(vectors)
        matrix = matrix.reshape(1, -1) if matrix.ndim == 1 else matrix
        if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
            raise DimensionMismatchError(
                f"vectors of shape {matrix.shape} and type {matrix.dtype} are no matrix of numbers",
                argument="vectors",
            )
        if matrix.dtype.kind == "f" and not np.isfinite(matrix).all():
            raise NotFiniteError("the vectors hold a number that is not finite", argument="vectors")
        if matrix.dtype.name not in ("float32", "float64", "float16", "uint8", "int8"):
            matrix = matrix.astype(np.float32)
        flat = pa.array(np.ascontiguousarray(matrix).reshape(-1))
        columns["vector"] = pa.FixedSizeListArray.from_arrays(flat, matrix.shape[1])
        count = len(matrix)
    if ids is not None:
        column = _id_column(ids)
        columns["id"] = pa.array(column) if isinstance(column, np.ndarray) else column
        if vectors is not None and len(column) != count:
            raise InvalidArgumentError(f"{len(column)} ids were given for {count} vectors", argument="ids")
        count = len(column)
    if metadata is not None:
        table = given_metadata(metadata, count).table()
        for name in table.column_names:
            label = f"metadata.{name}" if name in ("vector", "id") else name
            columns[label] = table.column(name)
    # Whoever does not hear the answer asks again, and nothing is done twice.
    params = {"request_id": _name(request) or secrets.token_hex(16)}
    if timeout_s is not None:
        params["timeout_ms"] = str(timeout_s * 1000)
    headers = {"Content-Type": ARROW, "Accept": TYPES["json"]}
    return ClientCall(stream_of(pa.table(columns)), headers, params)


def _id_column(ids: Any) -> Any:
    return checked_ids([ids] if isinstance(ids, str | int | np.integer) else ids)


def _written(answer: Mapping[str, Any]) -> Written:
    return Written(
        rows=answer["rows"],
        missing=answer["missing"],
        sequence=max(answer["sequences"].values(), default=0),
        durable=answer["durable"],
        replaced=answer["replaced"],
        first_id=answer["first_id"],
        repeated=answer["repeated"],
        pressure=answer["pressure"],
    )


def _is_done(answer: Mapping[str, Any]) -> bool:
    return bool(answer["done"])


class ClientWrites(Asking):
    """What a ``Client`` can do to rows, where the server was started with ``--writable``.

    A write is whole or not at all within each shard. Its answer may get lost; the client asks again under the
    same name (``request``), and nothing is done twice.
    """

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
        vectors : array of shape (n, dim) or (dim,)
        ids : sequence of int or str, optional
            One a row; none where the collection numbers its rows.
        metadata : table or mapping of columns, optional
            One row a vector, all columns of the collection.
        request : str, optional
            A name for this call, so that a process that starts anew may repeat it; default: a random one.
        timeout_s : float, optional
            How long the server may wait for room.

        Returns
        -------
        velo.results.Written
            ``sequence`` is the highest of all shards.

        Raises
        ------
        DuplicateIdError
            An id is there already; nothing was written.
        PartialWriteError
            Some shards wrote; to repeat it under the same name does the rest.
        VeloError
            As of ``velo.Index.insert``, and of a search.
        """
        call = _rows_call(vectors, ids, metadata, request, timeout_s)
        return self._post("insert", call, _written)

    insert_async = awaited(insert)
    """As ``insert``, without blocking the event loop."""

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
        vectors, metadata, request, timeout_s
            As for ``insert``.
        ids : sequence of int or str
            Of one that is there several times the last row counts.

        Returns
        -------
        velo.results.Written
        """
        call = _rows_call(vectors, ids, metadata, request, timeout_s)
        return self._post("upsert", call, _written)

    upsert_async = awaited(upsert)
    """As ``upsert``, without blocking the event loop."""

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
        ids : sequence of int or str, or one
            Those that no row has are counted in ``missing``.
        metadata : table or mapping of columns
            One row an id, only the columns that change.
        request, timeout_s
            As for ``insert``.

        Returns
        -------
        velo.results.Written
        """
        call = _rows_call(None, ids, metadata, request, timeout_s)
        return self._post("update", call, _written)

    update_async = awaited(update)
    """As ``update``, without blocking the event loop."""

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
        ids : sequence of int or str, or one
            Those that no row has are counted in ``missing``.
        filter : dict or str
            Instead of ids.
        timeout_s : float, optional

        Returns
        -------
        velo.results.Written
        """
        if (ids is None) == (filter is None):
            raise InvalidArgumentError("delete takes ids or a filter, and one of them", argument="ids")
        fields: dict[str, Any] = {"filter": filter}
        if ids is not None:
            column = _id_column(ids)
            fields = {"ids": column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()}
        if timeout_s is not None:
            fields["timeout_ms"] = timeout_s * 1000
        return self._post("delete", ClientCall.of_fields(fields), _written)

    delete_async = awaited(delete)
    """As ``delete``, without blocking the event loop."""

    def flush(self) -> None:
        """Make a part of new rows in each shard, and put everything on the device; wait for it."""
        while not self._post("flush", ClientCall.of_fields({}), _is_done):
            pass  # the server has waited

    def optimize(self, wait: bool = True) -> None:
        """Make one part of all rows in each shard.

        Parameters
        ----------
        wait : bool
            False: in the background.
        """
        while not self._post("optimize", ClientCall.of_fields({"wait": wait}), _is_done) and wait:
            pass
