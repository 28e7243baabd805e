"""One search of the client as bytes out, and the way back from bytes to arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from velo.errors import DimensionMismatchError, InvalidArgumentError, NotFiniteError
from velo.options import RRF, fusion_of
from velo.results import RangeResult, SearchResult, Served
from velo_serving.wire.codec import stream_of, table_of
from velo_serving.words.answers import groups_result, nearest_result, ranges_result

if TYPE_CHECKING:
    import httpx

__all__ = ["ARROW", "FILTER_IN_URL_BYTES_MAX", "TYPES", "BodyFormat", "ClientCall", "fusion_field"]

BodyFormat: TypeAlias = Literal["json", "arrow"]

ARROW: Final = "application/vnd.apache.arrow.stream"
TYPES: Final[Mapping[str, str]] = {"json": "application/json", "arrow": ARROW}

#: Options that need JSON: an Arrow body has no place for them, or the answer none for what they bring.
_JSON_ONLY: Final = frozenset(("ids", "filters", "return_metadata", "group_by", "text"))

#: A longer filter goes into a body: servers and proxies bound the length of a URL.
FILTER_IN_URL_BYTES_MAX: Final = 2 << 10


@dataclass(frozen=True)
class ClientCall:
    """One question as bytes out, and for a search the way back from bytes to arrays."""

    body: bytes
    headers: Mapping[str, str]
    params: Mapping[str, Any]
    single: bool = False
    k: int = 0
    group_size: int | None = None

    @classmethod
    def of(cls, queries: npt.ArrayLike | None, body_format: BodyFormat, **options: Any) -> ClientCall:
        """A search by what it is asked for; what is None is up to the server. Without k it is by radius."""
        fields: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        for name, default in (("allow_partial", True), ("return_vectors", False)):
            if fields.get(name) is default:
                del fields[name]
        if "group_by" not in fields and fields.get("group_size") == 1:
            del fields["group_size"]
        if "timeout_s" in fields:
            fields["timeout_ms"] = fields.pop("timeout_s") * 1000
        columns = fields.get("return_metadata")
        if columns is not None:
            fields["return_metadata"] = _columns(columns)
        k = int(fields.get("k", 0))
        group_size = int(fields["group_size"]) if "group_by" in fields else None
        if queries is None and "ids" not in fields and "text" in fields:  # words alone
            return cls.of_fields(fields, isinstance(fields["text"], str), k, group_size)
        if (queries is None) == ("ids" not in fields):
            raise InvalidArgumentError("a search takes queries or ids, and one of them", argument="queries")
        if queries is None:
            ids = np.asarray(fields["ids"])
            fields["ids"] = np.atleast_1d(ids).tolist()
            return cls.of_fields(fields, ids.ndim == 0, k, group_size)
        rows = _matrix(queries)
        single = rows.ndim == 1
        rows = rows.reshape(1, -1) if single else rows
        if body_format == "arrow" and not _JSON_ONLY & fields.keys() and _is_short(fields.get("filter")):
            flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
            body = stream_of(pa.table({"vector": pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])}))
            params = {name: _query_text(value) for name, value in fields.items()}
            return cls(body, {"Content-Type": ARROW, "Accept": ARROW}, params, single, k, group_size)
        return cls.of_fields({"vectors": rows.tolist(), **fields}, single, k, group_size)

    @classmethod
    def of_fields(
        cls, fields: Mapping[str, Any], single: bool = False, k: int = 0, group_size: int | None = None
    ) -> ClientCall:
        """Anything as JSON, and JSON back."""
        try:
            body = json.dumps(fields, allow_nan=False).encode()
        except ValueError as error:
            raise NotFiniteError(f"an option is not finite: {error}") from None
        headers = {"Content-Type": TYPES["json"], "Accept": TYPES["json"]}
        return cls(body, headers, {}, single, k, group_size)

    def ranges(self, response: httpx.Response) -> RangeResult:
        """Read an answer to a search by radius."""
        ids, distances, counts, vectors, status = _rows_of(response)
        limited = np.asarray(status["limited"], np.bool_)
        return ranges_result(ids, distances, counts, limited, *_told(status), vectors)

    def result(self, response: httpx.Response) -> SearchResult:
        """Read an answer."""
        ids, distances, counts, vectors, status = _rows_of(response, self.k * (self.group_size or 1))
        if self.group_size is None:
            scores = _scores_of(status.get("scores"), ids.shape[1])
            return nearest_result(ids, distances, counts, self.single, *_told(status), vectors, scores)
        groups = [[(group["value"], group["size"]) for group in row] for row in status["groups"]]
        shape = (self.k, self.group_size, self.single)
        return groups_result(ids, distances, groups, *shape, *_told(status), vectors)


def fusion_field(given: Any) -> Any:
    """What ``search(fusion=)`` was given, as a body of JSON has it.

    Raises
    ------
    InvalidArgumentError
    """
    if given is None:
        return None
    fusion = fusion_of(given)
    if isinstance(given, str):
        return given
    told = {name: value for name, value in asdict(fusion).items() if value is not None}
    return {"method": "rrf" if isinstance(fusion, RRF) else "weighted", **told}


def _columns(given: Any) -> list[str] | bool:
    if isinstance(given, bool):
        return given
    if not isinstance(given, Sequence):
        raise InvalidArgumentError(
            f"return_metadata is True or a list of columns, not {given!r}", argument="return_metadata"
        )
    return [given] if isinstance(given, str) else list(given)


def _matrix(queries: npt.ArrayLike) -> npt.NDArray[np.float32]:
    matrix = np.asarray(queries, dtype=np.float32)
    if matrix.ndim not in (1, 2):
        raise DimensionMismatchError(
            f"queries of shape {matrix.shape} are no vector or matrix", argument="queries"
        )
    if not np.isfinite(matrix).all():
        raise NotFiniteError("the queries hold a number that is not finite", argument="queries")
    return matrix


class _Rows(NamedTuple):
    """Rows of all queries, padded to one length, and the rest of an answer."""

    ids: npt.NDArray[Any]
    distances: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int64]
    vectors: npt.NDArray[np.float32] | None
    status: dict[str, Any]


def _rows_of(response: httpx.Response, k: int | None = None) -> _Rows:
    """Read an answer; its rows are padded to k, or to the longest."""
    if response.headers.get("content-type", "").startswith(ARROW):
        return _rows_of_arrow(table_of(response.content), k)
    status = response.json()
    counts = np.asarray(status["counts"], dtype=np.int64)
    width = k or int(counts.max(initial=1))
    ids, distances = _padded(status["ids"], status["distances"], width)
    return _Rows(ids, distances, counts, _vectors_of(status.get("vectors"), width), status)


def _rows_of_arrow(table: pa.Table, k: int | None) -> _Rows:
    """Read an answer that has a row a hit."""
    status = json.loads((table.schema.metadata or {})[b"velo"])
    query, rank, found = (np.asarray(table[name]) for name in ("query", "rank", "id"))
    counts = np.bincount(query, minlength=status["query_count"]).astype(np.int64)
    shape = (len(counts), k or int(counts.max(initial=1)))
    ids = np.full(shape, None if found.dtype == object else -1, found.dtype)
    distances = np.full(shape, np.inf, np.float32)
    ids[query, rank], distances[query, rank] = found, np.asarray(table["distance"])
    vectors: npt.NDArray[np.float32] | None = None
    if "vector" in table.column_names:
        lists: Any = table["vector"]
        dim, real = lists.type.list_size, np.asarray(lists.is_valid())
        vectors = np.full((*shape, dim), np.nan, np.float32)
        vectors[query[real], rank[real]] = np.asarray(pc.list_flatten(lists)).reshape(-1, dim)
    return _Rows(ids, distances, counts, vectors, status)


def _vectors_of(
    rows: Sequence[Sequence[Sequence[float] | None]] | None, k: int
) -> npt.NDArray[np.float32] | None:
    """Vectors of JSON; NaN for those that were not brought."""
    if rows is None:
        return None
    dim = max((len(one) for row in rows for one in row if one is not None), default=0)
    vectors = np.full((len(rows), k, dim), np.nan, np.float32)
    for query, row in enumerate(rows):
        for place, one in enumerate(row):
            if one is not None:
                vectors[query, place] = one
    return vectors


def _scores_of(rows: Sequence[Sequence[float]] | None, k: int) -> npt.NDArray[np.float32] | None:
    """Scores of JSON, padded to k."""
    if rows is None:
        return None
    scores = np.zeros((len(rows), k), np.float32)
    for query, row in enumerate(rows):
        scores[query, : len(row)] = row
    return scores


def _told(status: Mapping[str, Any]) -> tuple[Any, dict[str, int], Served]:
    """What every answer says beside its hits: metadata, counters, shards."""
    served = Served(
        status["took_ms"], status["shards_answered"], status["shards_total"], status.get("failures", [])
    )
    return status.get("metadata"), status.get("stats", {}), served


def _is_short(condition: Any) -> bool:
    return condition is None or len(_query_text(condition).encode()) <= FILTER_IN_URL_BYTES_MAX


def _query_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value, allow_nan=False)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _padded(
    ids: Sequence[Sequence[Any]], distances: Sequence[Sequence[float | None]], k: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    """Fill rows of different lengths up to k, as the library itself answers."""
    strings = any(isinstance(one, str) for row in ids for one in row)
    shape = (len(ids), k)
    all_ids = np.full(shape, None, dtype=object) if strings else np.full(shape, -1, dtype=np.int64)
    all_distances = np.full(shape, np.inf, dtype=np.float32)
    for place, row in enumerate(ids):
        all_ids[place, : len(row)] = row
        all_distances[place, : len(row)] = distances[place]
    all_distances[np.isnan(all_distances)] = np.inf  # null: words alone know none
    return all_ids, all_distances
