"""Results of searches and writes, as arrays, tables and text, and the fusion of two lists of hits."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from velo.types import AnyArray, Float32Array, Float64Array, Int64Array


def value_text(value: Any) -> str:
    """Return a cell's text: floats with six digits, at most 40 characters."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def html_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table as HTML for notebooks."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(value))}</td>" for value in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def kept_text(info: Mapping[str, Any]) -> str:
    """Describe the links, or page codes, that an open index has in memory, from its ``info()``."""
    codes = info["page_codes_kept"]
    if info["record_code_bytes"]:
        return f"a code of {info['record_code_bytes']} bytes per row"
    if codes:
        return f"{codes} codes per page" if codes > 1 else "1 code per page"
    return f"{info['links_kept']} links per vertex"


def size_text(count: float) -> str:
    """Format bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


#: Rows of a table shown in a notebook, and lines in a terminal.
_ROWS_SHOWN: Final = 20
_LINES_SHOWN: Final = 5


@dataclass(frozen=True)
class Expectation:
    """Expected recall and cost per query of a search with given options, measured by the build.

    Attributes
    ----------
    list_size : int
        Size of the candidate list.
    recall : float or None
        The share of true neighbors found. None, like the following, if the build measured nothing,
        or if a query is outside the rows, because the build measured with rows as queries.
        It also applies to filtered searches, but reads and estimates do not.
    reads, rounds, estimates, expanded, records_scored : float or None
    """

    list_size: int
    recall: float | None = None
    reads: float | None = None
    rounds: float | None = None
    estimates: float | None = None
    expanded: float | None = None
    records_scored: float | None = None


@dataclass(frozen=True)
class Served:
    """How shards answered a search over several of them or over HTTP."""

    took_ms: float
    shards_answered: int
    shards_total: int
    failures: Sequence[Mapping[str, Any]] = ()


class Hits:
    """A result as a table: for Arrow, pandas, polars and notebooks.

    Results have these attributes wherever the search ran: in this process, on shards or over HTTP.
    """

    served: Served | None

    @property
    def shards_answered(self) -> int:
        """Number of shards that answered; 1 for an index in this process."""
        return 1 if self.served is None else self.served.shards_answered

    @property
    def shards_total(self) -> int:
        """Number of shards."""
        return 1 if self.served is None else self.served.shards_total

    @property
    def partial(self) -> bool:
        """Whether a shard is missing."""
        return self.shards_answered < self.shards_total

    @property
    def failures(self) -> Sequence[Mapping[str, Any]]:
        """Reasons for missing shards."""
        return () if self.served is None else self.served.failures

    @property
    def took_ms(self) -> float | None:
        """Time until the answers of all shards were merged; None for an index in this process."""
        return None if self.served is None else self.served.took_ms

    def to_arrow(self) -> pa.Table:
        """Return a table with one row per hit."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Convert to a pandas table, with the rows of :meth:`to_arrow`. Needs pandas.

        Returns
        -------
        pandas.DataFrame
        """
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Convert to a polars table, with the rows of :meth:`to_arrow`. Needs polars.

        Returns
        -------
        polars.DataFrame
        """
        import polars

        return polars.from_arrow(self.to_arrow())

    def _summary(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        table = self.to_arrow()
        lines = [self._summary()]
        lines += [
            "  " + "  ".join(f"{name} {value_text(value)}" for name, value in row.items())
            for row in table.slice(0, _LINES_SHOWN).to_pylist()
        ]
        if table.num_rows > _LINES_SHOWN:
            lines.append(f"  … {table.num_rows - _LINES_SHOWN:,} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        table = self.to_arrow()
        more = table.num_rows - _ROWS_SHOWN
        rows = [list(map(value_text, row.values())) for row in table.slice(0, _ROWS_SHOWN).to_pylist()]
        note = f"<p>… {more:,} more</p>" if more > 0 else ""
        return f"<p>{html.escape(self._summary())}</p>{html_table(table.column_names, rows)}{note}"


@dataclass(eq=False, repr=False)
class SearchResult(Hits):
    """Neighbors of each query; unpacks as ``ids, distances = result``.

    Attributes
    ----------
    ids : ndarray of shape (nq, k), or (k,) for a single query
        int64, or str objects if the index has string ids; -1 (None) beyond the number of hits.
    distances : ndarray of the same shape, float32
        Ascending: squared L2, negated inner product, or 1 - cosine; infinity beyond the number of hits.
    counts : ndarray of shape (nq,), uint32
        Number of hits of each query.
    stats : mapping of str to ndarray of shape (nq,)
        ``reads``, ``rounds`` (dependent read rounds), ``bytes_read``, ``shared_reads`` (pages
        obtained from the read of another query, not in ``reads``), ``cache_hits``, ``estimates``
        (distances estimated from codes in memory), ``expanded`` (vertices whose links were expanded, or
        pages whose tables of neighbors were), ``filtered`` (of them, those that failed the filter),
        ``records_scored``, ``records_used``, ``outside`` (1 if the query is outside the rows),
        ``latency_us`` (time in the worker).
    metadata : pyarrow.Table, list of pyarrow.Table, or None
        The columns of ``return_metadata``, one row per hit, in the order of ``ids``: a table for
        a single query, a list of tables for several.
    expected : Expectation or None
        The list size used, with its measured recall and cost.
    served : Served or None
        How shards answered; None for an index in this process. ``shards_answered``,
        ``shards_total``, ``partial``, ``failures`` and ``took_ms`` are derived from it.
    vectors : ndarray of the shape of ids and one more of length dim, float32, or None
        The stored vectors, if requested from a server (``return_vectors``); NaN beyond the number of hits,
        and for rows or shards that are no longer available.
    scores : ndarray of the shape of ids, float32, or None
        Scores of a search with ``text=``, descending, 0 beyond the number of hits. Distances are then those
        of vectors, in no particular order.

    Examples
    --------
    >>> result = index.search(queries, k=3, return_metadata=["brand"])
    >>> ids, distances = result
    >>> ids.shape
    (5, 3)
    >>> result.to_arrow().column_names
    ['query', 'rank', 'id', 'distance', 'brand']
    """

    ids: AnyArray
    distances: Float32Array
    counts: AnyArray
    stats: Mapping[str, AnyArray]
    metadata: pa.Table | list[pa.Table] | None = None
    expected: Expectation | None = None
    served: Served | None = None
    vectors: Float32Array | None = None
    scores: Float32Array | None = None

    def __iter__(self) -> Iterator[AnyArray]:
        yield self.ids
        yield self.distances

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _rows(self) -> AnyArray:
        """(query, rank) of every hit."""
        k = self.ids.shape[-1]
        return np.argwhere(np.arange(k) < np.asarray(self.counts)[:, None])

    def to_arrow(self) -> pa.Table:
        """Return a table with one row per hit: ``query``, ``rank`` (from 0), ``id``, ``distance``, with
        ``text=`` the ``score``, then the metadata.

        Returns
        -------
        pyarrow.Table
        """
        queries, ranks = self._rows[:, 0], self._rows[:, 1]
        k = self.ids.shape[-1]
        ids = self.ids.reshape(-1, k)[queries, ranks]
        columns: dict[str, Any] = {
            "query": pa.array(queries.astype(np.int32)),
            "rank": pa.array(ranks.astype(np.int32)),
            "id": _id_column(ids),
            "distance": pa.array(self.distances.reshape(-1, k)[queries, ranks]),
        }
        if self.scores is not None:
            columns["score"] = pa.array(self.scores.reshape(-1, k)[queries, ranks])
        return _with_metadata(columns, self.metadata)

    def _summary(self) -> str:
        reads = float(np.mean(self.stats["reads"])) if len(self.counts) else 0.0
        return f"{type(self).__name__}(shape={self.ids.shape}, reads per query={reads:.1f})"


@dataclass(eq=False, repr=False)
class GroupedResult(SearchResult):
    """The nearest groups of each query, the result of ``search(group_by=…)``; unpacks as ``ids, distances``.

    Attributes
    ----------
    ids : ndarray of shape (nq, k, group_size), or (k, group_size) for a single query
        Groups in the order of their nearest row; -1 (None) if a group has fewer rows or is missing.
    distances : ndarray of the same shape, float32
    counts : ndarray of shape (nq,), uint32
        Number of groups of each query.
    group_sizes : ndarray of shape (nq, k), uint32
        Number of hits of each group.
    groups : list of list, or list for a single query
        The value of each group.
    complete : ndarray of shape (nq,), bool
        False if the search stopped at fewer than k groups although there may be more.
    metadata :
        One row per hit, group after group: a table for a single query, a list of tables for several.
    served, vectors, scores :
        As in :class:`SearchResult`; there are no scores.
    stats, expected :
        As in :class:`SearchResult`; ``stats`` covers all searches for the result.

    Examples
    --------
    >>> result = index.search(query, k=3, group_by="brand", group_size=2)
    >>> len(result.groups), result.ids.shape
    (3, (3, 2))
    """

    group_sizes: AnyArray = field(default_factory=lambda: np.zeros((0, 0), np.uint32))
    groups: list[Any] = field(default_factory=list)
    complete: AnyArray = field(default_factory=lambda: np.zeros(0, bool))

    @cached_property
    def _rows(self) -> AnyArray:
        return np.argwhere(np.arange(self.ids.shape[-1]) < self.group_sizes[:, :, None])

    def to_arrow(self) -> pa.Table:
        """Return a table with one row per hit: ``query``, ``group`` (from 0), ``value``, ``rank`` (within its
        group), ``id``, ``distance``, then the metadata.

        Returns
        -------
        pyarrow.Table
        """
        queries, groups, ranks = self._rows.T
        each = self.groups if self.ids.ndim == 3 else [self.groups]
        shape = (len(self.group_sizes), *self.ids.shape[-2:])
        values = [each[query][group] for query, group in zip(queries, groups, strict=True)]
        columns = {
            "query": pa.array(queries.astype(np.int32)),
            "group": pa.array(groups.astype(np.int32)),
            "value": pa.array(values),
            "rank": pa.array(ranks.astype(np.int32)),
            "id": _id_column(self.ids.reshape(shape)[queries, groups, ranks]),
            "distance": pa.array(self.distances.reshape(shape)[queries, groups, ranks]),
        }
        return _with_metadata(columns, self.metadata)


@dataclass(eq=False, repr=False)
class RangeResult(Hits):
    """All hits within a radius, one query after another; unpacks as ``lims, distances, ids``.

    The hits of query i are the entries ``lims[i]`` to ``lims[i + 1]`` of `distances` and `ids`, nearest
    first; ``result[i]`` is their (ids, distances).

    Attributes
    ----------
    lims : ndarray of shape (nq + 1,), int64
    distances : ndarray of shape (lims[-1],), float32
    ids : ndarray of the same shape
        int64, or str objects if the index has string ids.
    limited : ndarray of shape (nq,), bool
        True if ``limit`` was reached, so there may be more hits.
    stats : dict of str to ndarray of shape (nq,)
        As in :class:`SearchResult`, summed over the searches of a query.
    metadata : pyarrow.Table or None
        One row per hit.
    served : Served or None
        As in :class:`SearchResult`.
    vectors : ndarray of shape (lims[-1], dim), float32, or None
        As in :class:`SearchResult`.

    Examples
    --------
    >>> result = index.range_search(queries, radius=20.0)
    >>> lims, distances, ids = result
    >>> len(lims)
    6
    >>> ids_of_first, distances_of_first = result[0]
    """

    lims: AnyArray
    distances: Float32Array
    ids: AnyArray
    limited: AnyArray
    stats: Mapping[str, AnyArray]
    metadata: pa.Table | None = None
    served: Served | None = None
    vectors: Float32Array | None = None

    def __iter__(self) -> Iterator[AnyArray]:
        yield self.lims
        yield self.distances
        yield self.ids

    def __len__(self) -> int:
        return len(self.lims) - 1

    def __getitem__(self, query: int) -> tuple[AnyArray, Float32Array]:
        if not -len(self) <= query < len(self):
            raise IndexError(f"query {query} is out of range: there are {len(self)} queries")
        query %= len(self)
        part = slice(int(self.lims[query]), int(self.lims[query + 1]))
        return self.ids[part], self.distances[part]

    @property
    def counts(self) -> AnyArray:
        """Hits of each query."""
        return np.diff(self.lims)

    def to_arrow(self) -> pa.Table:
        """Return a table with one row per hit: ``query``, ``rank`` (from 0), ``id``, ``distance``, then the
        metadata.

        Returns
        -------
        pyarrow.Table
        """
        queries = np.repeat(np.arange(len(self)), self.counts)
        columns = {
            "query": pa.array(queries.astype(np.int32)),
            "rank": pa.array((np.arange(len(self.ids)) - self.lims[queries]).astype(np.int32)),
            "id": _id_column(self.ids),
            "distance": pa.array(self.distances),
        }
        return _with_metadata(columns, self.metadata)

    def _summary(self) -> str:
        return f"RangeResult(queries={len(self)}, hits={len(self.ids)})"


def _id_column(ids: AnyArray) -> Any:
    return pa.array(ids, pa.string() if ids.dtype == object else pa.int64())


def _with_metadata(columns: dict[str, Any], metadata: Any) -> pa.Table:
    """Return a table of hits and metadata; conflicting names get a prefix."""
    table = pa.table(columns)
    parts = metadata if isinstance(metadata, list) else [] if metadata is None else [metadata]
    if parts:
        found = pa.concat_tables(parts)
        for name in found.column_names:
            shown = name if name not in columns else f"metadata.{name}"
            table = table.append_column(shown, found.column(name))
    return table


class Fuses(Protocol):
    """A way to fuse two lists: their weights and lengths, and the points of a hit in its list."""

    @property
    def vectors(self) -> float: ...

    @property
    def words(self) -> float: ...

    def depth_of(self, k: int) -> int:
        """Return the number of hits per list for k results."""

    def points(self, values: Float64Array) -> Float64Array:
        """Return the points of each hit of one list, best first."""


def fused(
    fusion: Fuses, nearest: Int64Array, distances: AnyArray, best: Int64Array, scores: Float64Array
) -> tuple[Int64Array, Float64Array]:
    """Fuse two lists of hits, highest score first; ties go to the nearer, then to the better in words.

    `nearest, distances`: Rows found by vectors, nearest first, by number.
    `best, scores`: Rows found by words, best first, by number.
    """
    lists = [(fusion.vectors, nearest, -distances.astype(np.float64)), (fusion.words, best, scores)]
    numbers = np.unique(np.concatenate([found for weight, found, _ in lists if weight > 0]))
    total = np.zeros(len(numbers))
    ranks = []
    for weight, found, values in lists:
        rank = np.full(len(numbers), np.iinfo(np.int64).max)
        if weight > 0:
            at = np.searchsorted(numbers, found)
            rank[at] = np.arange(len(found))
            total[at] += weight * fusion.points(values)
        ranks.append(rank)
    order = np.lexsort((ranks[1], ranks[0], -total))
    return numbers[order], total[order]
