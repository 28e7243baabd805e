"""One call of a search: its queries in the library's layout, and the arrays that the library writes into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from velo import _native
from velo.errors import CorruptIndexError, DimensionMismatchError, DtypeError, VeloError
from velo.formats.source import array_of, native_dtype
from velo.metadata import MetadataStore
from velo.options import DTYPE_CODES
from velo.types import AnyArray

__all__ = ["COUNTERS", "Request", "native_queries"]

PAGES_FILE: Final = "pages.bin"

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
    "latency_us",
)


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


class Request:
    """Buffers of one call; they must live until the library has answered."""

    __slots__ = (
        "_keep",
        "distances",
        "dtype",
        "error_pages",
        "expected",
        "filter_count",
        "filter_handles",
        "filters",
        "k",
        "narrow",
        "options",
        "out",
        "queries",
        "query_count",
        "query_pointer",
        "single",
        "statuses",
        "store",
        "vertices",
        "wide",
    )

    def __init__(
        self, queries: Any, dim: int, k: int, options: Any, filters: Sequence[Any], handles: Any
    ) -> None:
        self.queries, self.single = native_queries(queries, dim)
        #: What a search with these options is expected to be like; the caller's to set.
        self.expected: Any = None
        self.dtype = DTYPE_CODES[self.queries.dtype.name]
        count = self.query_count = len(self.queries)
        self.k = k
        self.options = options
        self.filters = filters
        self.store: MetadataStore | None = None  # where the hits' metadata comes from
        self.filter_handles = handles
        self.filter_count = len(filters)
        # Whoever answers fills all of these, padding included.
        self.vertices = np.empty((count, k), np.int64)
        self.distances = np.empty((count, k), np.float32)
        self.narrow = np.zeros((len(_NARROW), count), np.uint32)
        self.wide = np.zeros((len(_WIDE), count), np.uint64)
        self.statuses = np.zeros(count, np.int32)
        self.error_pages = np.full(count, -1, np.int64)
        if count == 0:
            return
        out = self.out = _native.new("velo_search_out")
        pointer = _native.pointer
        narrow = pointer("uint32_t", self.narrow, writable=True)
        wide = pointer("uint64_t", self.wide, writable=True)
        statuses = pointer("int32_t", self.statuses, writable=True)
        pages = pointer("int64_t", self.error_pages, writable=True)
        vertices = pointer("int64_t", self.vertices, writable=True)
        distances = pointer("float", self.distances, writable=True)
        self.query_pointer = pointer("uint8_t", self.queries.view(np.uint8))
        # A struct's pointer fields do not keep memory alive: the buffers here do.
        self._keep = (narrow, wide, statuses, pages, vertices, distances)
        for position, name in enumerate(_NARROW):
            setattr(out, name, narrow + position * count)
        for position, name in enumerate(_WIDE):
            setattr(out, name, wide + position * count)
        out.statuses, out.error_pages = statuses, pages
        out.vertices, out.distances = vertices, distances

    @property
    def counts(self) -> AnyArray:
        """Real entries of each query."""
        counts: AnyArray = self.narrow[0]
        return counts

    def stats(self) -> dict[str, AnyArray]:
        """The counters by name, as views."""
        found = dict(zip(_NARROW, self.narrow, strict=True)) | dict(zip(_WIDE, self.wide, strict=True))
        return {name: found[name] for name in COUNTERS}

    def failure(self, status: int) -> VeloError:
        """The exception for a call that ended with `status`, from what the library wrote for each query."""
        failed = np.flatnonzero(self.statuses == status)
        row = int(failed[0]) if len(failed) else None
        page = int(self.error_pages[row]) if row is not None and self.error_pages[row] >= 0 else None
        error = _native.error_of(status, file=None if page is None else PAGES_FILE, page=page, row=row)
        if page is not None:
            damaged = isinstance(error, CorruptIndexError)
            what = f"page {page} of {PAGES_FILE} is damaged"
            error.message = what if damaged else f"the device failed to read page {page} of {PAGES_FILE}"
        return error
