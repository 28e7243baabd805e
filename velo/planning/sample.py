"""A sample of the user's vectors: drawn, indexed in a scratch folder, searched for held-out rows."""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from velo import _native
from velo.building.build import build_shard
from velo.building.held_out import draw_rows, rows_of
from velo.errors import (
    DimensionMismatchError,
    EmptyError,
    ForkedError,
    GpuError,
    InvalidArgumentError,
    NotFiniteError,
)
from velo.folder.replace import os_failure
from velo.formats.source import ArraySource, FileSource, Source, native_dtype
from velo.index import Index, open_index
from velo.options import BuildOptions, OpenTuning, gpu_code, links_steps
from velo.testing import brute_force, exact_distances, recall_at_k
from velo.types import AnyArray, Int64Array, MetricName, PathLike

__all__ = [
    "Gpu",
    "Sample",
    "TunedPoint",
    "at_recall",
    "check_source",
    "draw",
    "gpu_of",
    "links_bytes_grown",
    "reads_per_s",
    "scratch_folder",
]

_ROWS_MIN: Final = 1000
#: Threads that ask the device, and reads of each.
_READERS: Final = 32
_READS: Final = 200
_QUERIES_MAX: Final = 600
_LISTS: Final = (10, 16, 26, 42, 68, 110, 180, 290, 470, 760)

#: How often each list is searched with; the least counts.
_RUNS: Final = 3

#: A budget that holds any sample.
_AMPLE: Final = 1 << 60

#: Bits by which a link in memory, or an edge in a record, grows with each doubling of the vectors (gaps of
#: ids in placement order): 0.68 to 0.73 from 50,000 to a million SIFT descriptors.
_LINK_BITS_DOUBLING: Final = 0.73


@dataclass(frozen=True)
class TunedPoint:
    """Searches of a sample with one list size, or for one recall: means of a query.

    Attributes
    ----------
    list_size : float
        Length of the candidate list.
    recall, reads, rounds, estimates : float
    busy_us : float
        Processor time, the least of three runs over all queries; microseconds.
    gpu_us : float
        The same of the GPU: copies and navigation; 0 on the CPU.
    """

    list_size: float
    recall: float
    reads: float
    rounds: float
    estimates: float
    busy_us: float
    gpu_us: float = 0.0


@dataclass
class Gpu:
    """The GPU of the searches.

    `least_bytes`: The least device memory that an index of all rows takes, of those measured so far.
    """

    device: str
    free_bytes: int
    least_bytes: float = math.inf


def gpu_of(device: str) -> Gpu | None:
    """The GPU that ``device`` of :func:`velo.open` names; None where the CPU makes all searches."""
    code = gpu_code(device)
    if code == 0:
        return None
    info = _native.new("velo_gpu_info")
    try:
        _native.check(_native.lib.velo_gpu_probe(abs(code) - 1, info), "device")
    except (GpuError, ForkedError):
        if code > 0:
            raise
        return None
    return Gpu(device, int(info.free_bytes))


@dataclass(frozen=True)
class Sample:
    """Vectors to index, other vectors as queries, and their exact neighbors; the whole input has `n` rows."""

    n: int
    rows: AnyArray
    queries: AnyArray
    truth: Int64Array
    truth_distances: AnyArray
    metric: MetricName
    k: int

    def build(self, folder: Path, options: BuildOptions, tell: Callable[[], bool | None]) -> None:
        """Index `rows`."""
        try:
            build_shard(
                folder,
                ArraySource(self.rows),
                replace(options, calibrate=False),
                resume=False,
                watch=lambda _stage, _done, _total: tell(),
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None  # a build would say that its work stays

    def open_within(
        self, folder: Path, budget_bytes: int, threads: int | None, gpu: Gpu | None = None
    ) -> Index:
        """Open that index with the links and pages in memory that the whole one keeps in `budget_bytes`.

        With a GPU it has as many links as fit into device memory, too; if none do, the CPU searches.
        """
        built, page_links = None, True
        own_least = links_steps()[-1]
        shared = links_steps(shared=True) if gpu is None else ()  # the CPU alone reads shared links
        for links in (None, *links_steps(), *shared):
            if links is None or built is None or (links < built and built >= own_least):
                # With a budget that holds everything an open keeps the links that are worth their memory.
                tuning = OpenTuning(links_kept=links, cache_share=0.0)
                index = _open_with_links(folder, _AMPLE, threads, tuning, gpu)
                resident, of_gpu = self.resident_bytes(index), self.gpu_bytes(index)
                if resident <= budget_bytes and _has_room(gpu, of_gpu):
                    return self._with_pages(index, budget_bytes - resident, gpu)
                built, page_links = index.info()["links_built"], index.info()["page_links"]
                index.close()
        if gpu is not None:
            return self.open_within(folder, budget_bytes, threads)
        if not page_links:  # the caller sees that it takes too much
            return open_index(
                folder, threads=threads, tuning=OpenTuning(links_kept=min(own_least, built or 1))
            )
        return open_index(folder, threads=threads, plan="links_on_disk")

    def _with_pages(self, index: Index, left_bytes: float, gpu: Gpu | None) -> Index:
        """The same index with a page cache of its share of the remaining budget."""
        info = index.info()
        index.close()
        memory = info["memory_within_budget_bytes"] + int(left_bytes * len(self.rows) / self.n)
        tuning = OpenTuning(links_kept=info["links_kept"])
        return _open_with_links(info["path"], memory, info["threads"], tuning, gpu)

    def resident_bytes(self, index: Index) -> float:
        """Memory of the codes, links and page directory of the whole index, extrapolated from this one."""
        info = index.info()
        own = sum(info["memory_bytes"][part] for part in ("codes", "links", "pages"))
        grown = links_bytes_grown(info["links_kept"], len(self.rows), self.n)
        return float(self.n * (own / len(self.rows) + grown))

    def gpu_bytes(self, index: Index) -> float:
        """Device memory of the whole index, extrapolated from this one; 0 on the CPU."""
        gpu = index.info()["gpu"]
        return 0.0 if gpu is None else self.n * float(gpu["resident_bytes"]) / len(self.rows)

    def curve(self, index: Index, recall: float) -> list[TunedPoint]:
        """Searches with growing lists until `recall` is found, or the longest list was tried."""
        points: list[TunedPoint] = []
        for list_size in sorted({max(self.k, size) for size in _LISTS}):
            busy_s = gpu_us = math.inf
            for _ in range(_RUNS):
                gpu_before_us = _gpu_busy_us(index)
                started = time.process_time()  # of all workers, whatever else the machine does
                found = index.search(self.queries, self.k, list_size=list_size)
                busy_s = min(busy_s, time.process_time() - started)
                gpu_us = min(gpu_us, _gpu_busy_us(index) - gpu_before_us)
            distances = exact_distances(self.rows, self.queries, found.ids, metric=self.metric)
            share = recall_at_k(
                found.ids, self.truth, found_distances=distances, true_distances=self.truth_distances
            )
            reads, rounds, estimates = (
                float(found.stats[name].mean()) for name in ("reads", "rounds", "estimates")
            )
            times_us = busy_s * 1e6 / len(self.queries), gpu_us / len(self.queries)
            points.append(TunedPoint(list_size, share, reads, rounds, estimates, *times_us))
            if share >= recall or list_size >= index.n:
                break
        return points


def _open_with_links(
    folder: Path, memory: int, threads: int | None, tuning: OpenTuning, gpu: Gpu | None
) -> Index:
    """Open with links in memory; the GPU navigates for every call."""
    return open_index(
        folder,
        threads=threads,
        plan="links_in_memory",
        memory=memory,
        device="cpu" if gpu is None else gpu.device,
        tuning=replace(tuning, gpu_queries=1),
    )


def _has_room(gpu: Gpu | None, needed_bytes: float) -> bool:
    if gpu is None:
        return True
    gpu.least_bytes = min(gpu.least_bytes, needed_bytes)
    return 0 < needed_bytes <= gpu.free_bytes


def _gpu_busy_us(index: Index) -> int:
    """Time of the GPU so far. A failure ends the measurement: the CPU has taken over queries."""
    gpu = index.info()["gpu"]
    if gpu is None:
        return 0
    if gpu["failed_queries"]:
        raise GpuError(f"{gpu['name']} failed while it was measured: {gpu['reason']}", argument="device")
    return int(gpu["busy_us"])


def links_bytes_grown(links: float, sample_rows: int, n: int) -> float:
    """Bytes a vector that links of an index of all rows take more than those of the sample's index."""
    return links * _LINK_BITS_DOUBLING * math.log2(max(1.0, n / sample_rows)) / 8


def at_recall(points: Sequence[TunedPoint], recall: float) -> TunedPoint:
    """The cost of a recall, interpolated between the points around it; the last point if none reaches it."""
    above = next((number for number, point in enumerate(points) if point.recall >= recall), None)
    if above is None or above == 0:
        return points[-1 if above is None else 0]
    low, high = astuple(points[above - 1]), astuple(points[above])
    share = (recall - low[1]) / (high[1] - low[1])
    _, _, *costs = (one + share * (other - one) for one, other in zip(low, high, strict=True))
    return TunedPoint(low[0] * (high[0] / low[0]) ** share, recall, *costs)


def check_source(source: Source) -> None:
    """Refuse a source with too few vectors to learn from."""
    n, dim = source.shape
    if n == 0:
        raise EmptyError("there are no vectors to learn from", argument="vectors")
    if n < _ROWS_MIN:
        raise InvalidArgumentError(
            f"vectors must be at least {_ROWS_MIN:,} rows to learn from, not {n:,}; so few need no tuning",
            argument="vectors",
        )
    if dim < 1:
        raise DimensionMismatchError("the vectors have no dimensions", argument="vectors")
    native_dtype(source.dtype)


def draw(source: Source, count: int, metric: MetricName, k: int, seed: int) -> Sample:
    """Draw `count` rows (all if there are no more) and hold some of them out as queries."""
    n = source.shape[0]
    dtype = native_dtype(source.dtype)
    numbers = draw_rows(n, count, seed)
    with np.errstate(over="ignore"):
        rows = rows_of(source, numbers, 0, n).astype(dtype, copy=False)
    if dtype.kind == "f":
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            row = int(numbers[np.argmin(finite)])
            raise NotFiniteError(
                f"row {row} of vectors has an element that is not finite", argument="vectors", row=row
            )
    held = draw_rows(len(rows), min(_QUERIES_MAX, len(rows) // 10), seed + 1)
    if k > len(held):
        raise InvalidArgumentError(
            f"k must be at most {len(held)} with {len(rows):,} vectors to learn from, not {k}", argument="k"
        )
    queries = rows[held]
    rest = np.delete(rows, held, axis=0)
    truth = brute_force(rest, queries, k, metric=metric)
    assert truth.distances is not None
    return Sample(n, rest, queries, truth.ids, truth.distances, metric, k)


def reads_per_s(path: Path, info: dict[str, Any], random: np.random.Generator) -> float:
    """Reads of a page a second from many threads."""
    size, pages = int(info["page_size"]), int(info["page_count"])
    flags = os.O_RDONLY | (getattr(os, "O_DIRECT", 0) if info["device"]["direct"] else 0)
    file = os.open(path, flags)
    try:
        places = (1 + random.integers(pages, size=(_READERS, _READS))) * size

        def read_all(offsets: Sequence[int]) -> None:
            with mmap.mmap(-1, size) as buffer:  # aligned, as O_DIRECT wants it
                for offset in offsets:
                    os.preadv(file, [buffer], int(offset))

        with ThreadPoolExecutor(_READERS) as readers:
            started = time.perf_counter()
            list(readers.map(read_all, places.tolist()))
            return _READERS * _READS / (time.perf_counter() - started)
    finally:
        os.close(file)


@contextmanager
def scratch_folder(source: Source, folder: PathLike | None) -> Iterator[Path]:
    """An empty folder, removed at the end: in `folder`, or beside the file of vectors, or here."""
    if folder is None:
        beside = source.path.resolve().parent if isinstance(source, FileSource) else Path.cwd()
        parent = beside if os.access(beside, os.W_OK) else Path.cwd()
    else:
        parent = Path(folder)
    try:
        made = Path(tempfile.mkdtemp(prefix=".velo-tune-", dir=parent))
    except OSError as error:
        raise os_failure(error, str(parent)) from error
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
