"""Queries in the library's layout, and the arrays that the library writes answers into."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from velo import _native
from velo.errors import DimensionMismatchError, DtypeError
from velo.formats.source import array_of, native_dtype
from velo.options import DTYPE_CODES
from velo.results import Expectation
from velo.types import AnyArray

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


def deadline_of(timeout_s: Any) -> float | None:
    """When the last of a script's searches must have ended."""
    if timeout_s is None or isinstance(timeout_s, str) or not timeout_s > 0:
        return None
    return time.monotonic() + float(timeout_s)


def left_s(timeout_s: float | None, deadline: float | None) -> float | None:
    """The rest of a timeout, in whole milliseconds, so that prepared options are reused."""
    if deadline is None:
        return timeout_s  # none, or one that is refused when the search is prepared
    return max(1.0, math.ceil((deadline - time.monotonic()) * 1000)) / 1000


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
    """The expected cost of a search; without numbers for queries unlike the calibrated ones."""
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
        """Merge answers over disjoint rows into this one.

        Counters are summed. A query counts as outside only if it is outside in every answer.
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
