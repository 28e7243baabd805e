"""The client's writes."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from velo.errors import DimensionMismatchError, InvalidArgumentError, NotFiniteError
from velo.folder.ids import checked_ids
from velo.folder.metadata import given_metadata
from velo.results import Written
from velo_serving.client.awaited import Asking, awaited
from velo_serving.client.calls import TYPES, ClientCall
from velo_serving.wire.codec import stream_of
from velo_serving.words.types import FilterForm

__all__ = ["ClientWrites", "WriteCall"]

R = TypeVar("R")

_JSON: Final = "application/json"
_ARROW: Final = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True)
class WriteCall:
    """One write as bytes out."""

    what: str
    body: bytes
    media_type: str
    params: Mapping[str, str]

    @classmethod
    def of_rows(
        cls,
        what: str,
        vectors: npt.ArrayLike | None,
        ids: Any,
        metadata: Any,
        request: str | None,
        timeout_s: float | None,
    ) -> WriteCall:
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
            column = checked_ids([ids] if isinstance(ids, str | int | np.integer) else ids)
            columns["id"] = pa.array(column) if isinstance(column, np.ndarray) else column
            if vectors is not None and len(column) != count:
                raise InvalidArgumentError(
                    f"{len(column)} ids were given for {count} vectors", argument="ids"
                )
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
        return cls(what, stream_of(pa.table(columns)), _ARROW, params)

    @classmethod
    def of_fields(cls, what: str, fields: Mapping[str, Any], timeout_s: float | None = None) -> WriteCall:
        """Anything else as JSON."""
        given = {name: value for name, value in fields.items() if value is not None}
        if timeout_s is not None:
            given["timeout_ms"] = timeout_s * 1000
        try:
            body = json.dumps(given, allow_nan=False).encode()
        except ValueError as error:
            raise NotFiniteError(f"an option is not finite: {error}") from None
        return cls(what, body, _JSON, {})

    @classmethod
    def of_delete(cls, ids: Any, condition: FilterForm | None, timeout_s: float | None) -> WriteCall:
        """Ids, or a filter."""
        if (ids is None) == (condition is None):
            raise InvalidArgumentError("delete takes ids or a filter, and one of them", argument="ids")
        if ids is not None:
            column = checked_ids([ids] if isinstance(ids, str | int | np.integer) else ids)
            ids = column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
        return cls.of_fields("delete", {"ids": ids, "filter": condition}, timeout_s)


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

    def _write(self, call: WriteCall, read: Callable[[dict[str, Any]], R]) -> R:
        """Ask a path below the collection."""
        headers = {"Content-Type": call.media_type, "Accept": TYPES["json"]}
        sent = ClientCall(call.body, headers, call.params, False, 0, None)
        return self._ask("POST", self._path_of(call.what), sent, lambda told: read(told.json()))

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
        call = WriteCall.of_rows("insert", vectors, ids, metadata, request, timeout_s)
        return self._write(call, _written)

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
        call = WriteCall.of_rows("upsert", vectors, ids, metadata, request, timeout_s)
        return self._write(call, _written)

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
        call = WriteCall.of_rows("update", None, ids, metadata, request, timeout_s)
        return self._write(call, _written)

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
        return self._write(WriteCall.of_delete(ids, filter, timeout_s), _written)

    delete_async = awaited(delete)
    """As ``delete``, without blocking the event loop."""

    def flush(self) -> None:
        """Make a part of new rows in each shard, and put everything on the device; wait for it."""
        while not self._write(WriteCall.of_fields("flush", {}), _is_done):
            pass  # the server has waited

    def optimize(self, wait: bool = True) -> None:
        """Make one part of all rows in each shard.

        Parameters
        ----------
        wait : bool
            False: in the background.
        """
        while not self._write(WriteCall.of_fields("optimize", {"wait": wait}), _is_done) and wait:
            pass
