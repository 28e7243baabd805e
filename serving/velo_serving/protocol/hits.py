"""Hits of one shard, and several parts as one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from velo_serving.protocol.types import Hits, ShardReply

#: What queries cost, by the names that it has in ``Hits``.
COSTS: Final = ("reads", "bytes_read", "shared_reads", "cache_hits")

#: The same of several queries, one number of each.
Costs: TypeAlias = Sequence[Sequence[int] | npt.NDArray[Any]] | npt.NDArray[Any]


#: Told which rows of a request have ended, with their hits and what each cost, or why all of them failed.
Ended: TypeAlias = Callable[[Sequence[int], ShardReply, Costs], None]


class Asked(Protocol):
    """Queries on their way, each of which ends by itself."""

    def cancel(self, row: int) -> None:
        """Cancel the query of a row."""


#: Hits, and rows of metadata, that are converted on an event loop; more leave it for a thread.
HITS_INLINE_MAX: Final = 5_000
ROWS_INLINE_MAX: Final = 500

#: Rows that are converted without letting other threads run.
ROWS_AT_ONCE: Final = 256


def is_large(*parts: Hits) -> bool:
    """Whether to convert hits in a thread."""
    rows = sum(int(part.counts.sum()) for part in parts if part.metadata is not None)
    return rows > ROWS_INLINE_MAX or sum(part.distances.size for part in parts) > HITS_INLINE_MAX


def is_hit(hits: Hits) -> npt.NDArray[np.bool_]:
    """A mask of shape (query_count, width): true for hits, false for padding."""
    mask: npt.NDArray[np.bool_] = np.arange(hits.ids.shape[1])[None, :] < hits.counts[:, None]
    return mask


def no_hits(count: int, width: int, *, strings: bool) -> tuple[Any, npt.NDArray[np.float32]]:
    ids: Any = np.full((count, width), None if strings else -1, object if strings else np.int64)
    return ids, np.full((count, width), np.inf, np.float32)


def costs_of(parts: Iterable[Hits]) -> dict[str, Any]:
    held = list(parts)
    return {name: sum([getattr(part, name) for part in held]) for name in COSTS}


def plain(table: pa.Table) -> pa.Table:
    """A table with the values of columns that are dictionaries."""
    kinds: list[Any] = [
        kind.value_type if pa.types.is_dictionary(kind) else kind for kind in table.schema.types
    ]
    return table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True))))


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables; shards may disagree on the type of a column."""
    if all(one.schema == tables[0].schema for one in tables):
        return pa.concat_tables(tables)
    return pa.concat_tables(map(plain, tables), promote_options="permissive")


def rows_at(places: Sequence[tuple[pa.Table, int]]) -> pa.Table:
    """Return rows of one or more tables as one table."""
    tables = {id(table): table for table, _ in places}
    starts = dict(zip(tables, itertools.accumulate(map(len, tables.values()), initial=0), strict=False))
    return joined(list(tables.values())).take([starts[id(table)] + row for table, row in places])


def concat_hits(parts: Sequence[Hits]) -> Hits:
    """The hits of a request whose queries were searched in parts, which may differ in width."""
    width = max(part.distances.shape[1] for part in parts)
    return Hits(
        ids=np.concatenate(
            [_padded(part.ids, width, None if part.ids.dtype == object else -1) for part in parts]
        ),
        distances=np.concatenate([_padded(part.distances, width, np.inf) for part in parts]),
        counts=np.concatenate([part.counts for part in parts]),
        **costs_of(parts),
        metadata=None
        if any(part.metadata is None for part in parts)
        else [row for part in parts for row in part.metadata or ()],
        groups=None if parts[0].groups is None else [row for part in parts for row in part.groups or ()],
        limited=None
        if parts[0].limited is None
        else np.concatenate([part.limited for part in parts if part.limited is not None]),
        scores=None
        if parts[0].scores is None
        else np.concatenate([_padded(part.scores, width, 0) for part in parts]),
        vectors=None
        if parts[0].vectors is None
        else np.concatenate([_padded(part.vectors, width, np.nan) for part in parts]),
    )


def replace_rows(hits: Hits, rows: npt.NDArray[np.intp], other: Hits) -> Hits:
    """Hits with those of another request for some of the queries; neither has groups or a radius."""
    width = max(hits.distances.shape[1], other.distances.shape[1])
    strings = hits.ids.dtype == object or other.ids.dtype == object
    ids, distances = no_hits(len(hits.counts), width, strings=strings)
    counts, metadata = hits.counts.copy(), hits.metadata
    for at, of in ((slice(None), hits), (rows, other)):
        ids[at] = _padded(of.ids, width, None if strings else -1)
        distances[at] = _padded(of.distances, width, np.inf)
    counts[rows] = other.counts
    if metadata is not None and other.metadata is not None:
        known = dict(zip(rows.tolist(), other.metadata, strict=True))
        metadata = [known.get(row, one) for row, one in enumerate(metadata)]
    return Hits(ids, distances, counts, metadata, **costs_of([hits, other]))


def rows_of_hits(hits: Hits, costs: Costs) -> list[Hits]:
    """The hits of each query separately, without metadata and groups; ``costs`` has ``COSTS`` of each."""
    ids, distances, counts = hits.ids, hits.distances, hits.counts
    return [
        Hits(ids[row : row + 1], distances[row : row + 1], counts[row : row + 1], None, *cost)
        for row, cost in enumerate(np.asarray(costs).T.tolist())
    ]


def ids_of_hits(hits: Hits) -> list[Any]:
    found: list[Any] = hits.ids[is_hit(hits)].tolist()
    return found


def _padded(rows: Any, width: int, fill: Any) -> Any:
    missing = width - rows.shape[1]
    if missing == 0:
        return rows
    return np.concatenate([rows, np.full((len(rows), missing, *rows.shape[2:]), fill, rows.dtype)], axis=1)
