"""One call of a search: its queries in the library's layout, and the arrays that the library writes into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from velo import _native
from velo.errors import CorruptIndexError, DimensionMismatchError, DtypeError, VeloError
from velo.filters.compiler import Columns
from velo.formats.source import array_of, native_dtype
from velo.options import DTYPE_CODES
from velo.results import Expectation
from velo.types import AnyArray

__all__ = ["COUNTERS", "QUERY_DTYPES", "Answer", "Counters", "Request", "expectation_of", "native_queries"]

#: By the numbers that the library gives them.
_PAGE_FILES: Final = ("pages.bin", "vectors.bin")

_NARROW: Final = (
    "counts",
    "reads",
    "rounds",
    "cache_hits",
    "estimates",
    "expanded",
    "filtered",
    "records_scored",
    "records_used",
    "shared_reads",
    "outside",
)
_WIDE: Final = ("bytes_read", "latency_us")

#: The names in ``SearchResult.stats``, in the order in which they are shown.
COUNTERS: Final = (
    "reads",
    "rounds",
    "bytes_read",
    "shared_reads",
    "cache_hits",
    "estimates",
    "expanded",
    "filtered",
    "records_scored",
    "records_used",
    "outside",
    "latency_us",
)
#: Each counter's array (True: the wide one) and its row there.
_PLACES: Final = {
    name: (name in _WIDE, (_WIDE if name in _WIDE else _NARROW).index(name)) for name in COUNTERS
}

#: The element types that the library takes as they are, and their codes.
QUERY_DTYPES: Final[dict[np.dtype[Any], int]] = {np.dtype(name): code for name, code in DTYPE_CODES.items()}


def native_queries(queries: Any, dim: int) -> tuple[AnyArray, bool]:
    """Queries as a C-contiguous array of shape (nq, dim) in a native type, and whether one came alone."""
    array = queries if isinstance(queries, np.ndarray) else array_of(queries, "queries")
    if array.dtype.kind == "O":
        raise DtypeError("queries must be numbers; their rows may differ in length", argument="queries")
    dtype = native_dtype(array.dtype, "queries")
    if array.ndim not in (1, 2) or array.shape[-1] != dim:
        expected = f"({dim},) or (nq, {dim})"
        raise DimensionMismatchError(
            f"queries have the shape {array.shape}, this index takes {expected}", argument="queries"
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is reported as such
        native = np.ascontiguousarray(array, dtype)
    return native.reshape(-1, dim), array.ndim == 1


class Counters(Mapping[str, AnyArray]):
    """The counters of some queries by name; rows of two arrays, looked up when they are asked for."""

    __slots__ = ("_narrow", "_wide")

    def __init__(self, narrow: AnyArray, wide: AnyArray) -> None:
        self._narrow = narrow
        self._wide = wide

    def __getitem__(self, name: str) -> AnyArray:
        wide, place = _PLACES[name]
        row: AnyArray = (self._wide if wide else self._narrow)[place]
        return row

    def __iter__(self) -> Iterator[str]:
        return iter(COUNTERS)

    def __len__(self) -> int:
        return len(COUNTERS)

    def __repr__(self) -> str:
        return repr(dict(self))


def expectation_of(expected: Expectation, stats: Counters) -> Expectation:
    """What a search was expected to be like: without numbers where nobody measured queries like these.

    Parameters
    ----------
    expected : Expectation
        Of its options.
    stats : Counters
        Of its queries.
    """
    if not stats["outside"].any() or expected.recall is None or expected.recall == 1:
        return expected
    return Expectation(expected.list_size)


class Answer:
    """The arrays that the library writes into for some queries, and the struct that points to them.

    They must live until the library has answered; it fills all of them, padding included.
    """

    __slots__ = (
        "_keep",
        "distances",
        "error_files",
        "error_pages",
        "first",
        "k",
        "narrow",
        "out",
        "statuses",
        "vertices",
        "wide",
    )

    def __init__(self, count: int, k: int) -> None:
        self.k = k
        self.vertices = np.empty((count, k), np.int64)
        self.distances = np.empty((count, k), np.float32)
        self.narrow = np.zeros((len(_NARROW), count), np.uint32)
        self.wide = np.zeros((len(_WIDE), count), np.uint64)
        self.statuses = np.zeros(count, np.int32)
        self.error_pages = np.full(count, -1, np.int64)
        self.error_files = np.zeros(count, np.int32)
        if count == 0:
            return
        #: Vertices and distances of the first query.
        self.first = self.vertices[0], self.distances[0]
        out = self.out = _native.new("velo_search_out")
        pointer = _native.pointer
        narrow = pointer("uint32_t", self.narrow, writable=True)
        wide = pointer("uint64_t", self.wide, writable=True)
        statuses = pointer("int32_t", self.statuses, writable=True)
        pages = pointer("int64_t", self.error_pages, writable=True)
        files = pointer("int32_t", self.error_files, writable=True)
        vertices = pointer("int64_t", self.vertices, writable=True)
        distances = pointer("float", self.distances, writable=True)
        # A struct's pointer fields do not keep memory alive: the buffers here do.
        self._keep = (narrow, wide, statuses, pages, files, vertices, distances)
        for position, name in enumerate(_NARROW):
            setattr(out, name, narrow + position * count)
        for position, name in enumerate(_WIDE):
            setattr(out, name, wide + position * count)
        out.statuses, out.error_pages, out.error_files = statuses, pages, files
        out.vertices, out.distances = vertices, distances

    @property
    def counts(self) -> AnyArray:
        """Real entries of each query."""
        counts: AnyArray = self.narrow[0]
        return counts

    def stats(self) -> Counters:
        """The counters by name, as views."""
        return Counters(self.narrow, self.wide)

    def take_nearest(self, answers: Sequence[Answer]) -> None:
        """Become the answer over the rows of several, no two of which have a row in common.

        Counters are sums; a query is outside only where it is outside of all.
        """
        outside = np.min([one.stats()["outside"] for one in answers], axis=0)
        self.narrow[:] = np.sum([one.narrow for one in answers], axis=0)
        self.wide[:] = np.sum([one.wide for one in answers], axis=0)
        self.stats()["outside"][:] = outside
        vertices = np.concatenate([one.vertices for one in answers], axis=1)
        distances = np.concatenate([one.distances for one in answers], axis=1)
        order = np.argsort(distances, axis=1, kind="stable")[:, : self.k]
        self.vertices[:] = np.take_along_axis(vertices, order, 1)
        self.distances[:] = np.take_along_axis(distances, order, 1)
        np.minimum(self.narrow[0], self.k, out=self.narrow[0])


class Request(Answer):
    """One call: its queries in the library's layout, and room for the answer."""

    __slots__ = (
        "dtype",
        "expected",
        "filter_count",
        "filter_handles",
        "filters",
        "options",
        "queries",
        "query_count",
        "query_pointer",
        "single",
        "store",
    )

    def __init__(
        self, queries: Any, dim: int, k: int, options: Any, filters: Sequence[Any], handles: Any
    ) -> None:
        self.queries, self.single = native_queries(queries, dim)
        #: What a search with these options is expected to be like; the caller's to set.
        self.expected: Any = None
        self.dtype = QUERY_DTYPES[self.queries.dtype]
        self.query_count = len(self.queries)
        super().__init__(self.query_count, k)
        self.options = options
        self.filters = filters
        self.store: Columns | None = None  # where the hits' metadata comes from
        self.filter_handles = handles
        self.filter_count = len(filters)
        self.query_pointer = _native.pointer("uint8_t", self.queries) if self.query_count else None

    def end_by(self, left_s: float) -> None:
        """It takes so many seconds at most, however many others of its options take."""
        options = _native.ffi.new("velo_search_options *", self.options[0])
        options.timeout_us = max(1, int(left_s * 1e6))
        self.options = options

    def failure(self, status: int, row: int | None = None) -> VeloError:
        """The exception for a call that ended with `status`, from what the library wrote for each query.

        Parameters
        ----------
        status : int
        row : int, optional
            The query that ended with it, where that is known.
        """
        if row is None:
            failed = np.flatnonzero(self.statuses == status)
            row = int(failed[0]) if len(failed) else None
        page = int(self.error_pages[row]) if row is not None and self.error_pages[row] >= 0 else None
        file = None if page is None else _PAGE_FILES[self.error_files[row]]
        error = _native.error_of(status, file=file, page=page, row=row)
        if page is not None:
            damaged = isinstance(error, CorruptIndexError)
            what = f"page {page} of {file} is damaged"
            error.message = what if damaged else f"the device failed to read page {page} of {file}"
        return error
