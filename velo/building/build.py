"""Builds of indexes and segments: vectors are read twice, then the library works while the caller watches."""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

import numpy as np

from velo import _native, errors
from velo.building.calibration import calibrate as calibrate_index
from velo.building.calibration import store_calibration
from velo.folder.flow import ColumnSource
from velo.folder.ids import FILE_NAME, IdColumn, IdsOfRows, given_ids, write_ids
from velo.folder.manifest import MANIFEST_FILE, read_manifest
from velo.folder.metadata import (
    COLUMNS_FILE,
    POSTINGS_FILE,
    STATISTICS_FILE,
    GivenMetadata,
    given_metadata,
    words_name,
    write_metadata,
)
from velo.folder.replace import folder_to_fill, os_failure
from velo.formats.files import as_source
from velo.formats.source import RandomSource, Source, chunk_rows, native_dtype, native_layout
from velo.fulltext.opening import make_words
from velo.options import (
    DTYPE_CODES,
    GPU_STATES,
    METRIC_CODES,
    BuildOptions,
    folder_path,
    gpu_code,
    memory_bytes,
    sizes_of,
)
from velo.segments.segment import Segment
from velo.types import AnyArray, Memory, PathLike, ProgressCallback

#: Stages of a build in order, with the share of its time that each usually takes.
STAGES: Final = {"scan": 2, "encode": 6, "graph": 77, "place": 5, "write": 4, "commit": 1, "calibrate": 5}

#: Told what a build is doing: (stage, done, total), rows of that stage. Returning False cancels.
Watch = Callable[[str, int, int], "bool | None"]

#: Told, once, that a build goes on from a killed one: (stage, done, total), as for `Watch`.
Resumed = Callable[[str, int, int], None]

#: ``store_vectors`` of a build that gets them after placement, as velo.h spells it.
_VECTORS_LAST: Final = 2
#: Bytes of float32 that are read in placement order at a time. Rows that share a page of a source are near
#: each other in the new order, so most pages are read once.
_PLACED_BYTES: Final = 1 << 20

#: How often a running build is looked at.
_POLL_SECONDS = 0.05


def overall(progress: ProgressCallback, rows: int) -> Watch:
    """Turns stages into one (done, total) of rows, each stage weighed by the time it usually takes."""
    names = list(STAGES)
    furthest = 0.0  # pages may be filled twice, the second time with better guesses of sizes

    def watch(stage: str, done: int, total: int) -> bool | None:
        nonlocal furthest
        before = sum(STAGES[name] for name in names[: names.index(stage)])
        furthest = max(furthest, before + STAGES[stage] * (min(done, total) / total if total else 0.0))
        return progress(int(rows * furthest / sum(STAGES.values())), rows)

    return watch


def build_shard(
    path: PathLike,
    source: Source,
    options: BuildOptions,
    *,
    ids: Any = None,
    metadata: Any = None,
    queries: AnyArray | None = None,
    build_memory: Memory | None = None,
    search_bytes: int = 0,
    overwrite: bool = False,
    resume: bool = True,
    watch: Watch | None = None,
    resumed: Resumed | None = None,
    start: int = 0,
    stop: int | None = None,
    warm_start: WarmStart | None = None,
    calibration: Mapping[str, Any] | None = None,
    is_interim: bool = False,
    decoded: bool = False,
    transient: bool = False,
    nice: int = 0,
    gives_way: bool = False,
    gpu_optional: bool = False,
    text: str | None = None,
) -> None:
    """Build an index over the rows `start` to `stop` of a source, without opening it.

    `ids`, `metadata`, `build_memory`, `overwrite` and `resume` are those of :func:`velo.build`, for these
    rows alone; without ids the rows' numbers in the whole source are used. `ids` may be a function, too, that
    is called with rows when these are placed.

    `search_bytes`: Memory of the index once it is searched. The measurement gets as much, however little
      the build has: without it nothing is known of recall.
    `calibration`: Of an index of the same options and no fewer rows; used where it holds for this one.
    `is_interim`: A segment that is searched with the list of another one, whose calibration it gets as it is.
    `gives_way`: Several threads link and place while processors are idle; if none is, one works with that
      nice value.
    `gpu_optional`: The CPU links all vertices where the GPU of the options cannot be had.
    """
    rows_total, dim = source.shape
    stop = rows_total if stop is None else stop
    if stop <= start:
        raise errors.EmptyError("there are no vectors to index", argument="vectors")
    if dim < 1:
        raise errors.DimensionMismatchError("the vectors have no dimensions", argument="vectors")
    options = options.for_vectors(stop - start, dim)
    dtype = native_dtype(source.dtype)
    column = ids if ids is None or callable(ids) else given_ids(ids, stop - start)
    is_flow = metadata is None or isinstance(metadata, ColumnSource)
    table = metadata if is_flow else given_metadata(metadata, stop - start)
    if text is not None:
        if not isinstance(table, GivenMetadata):
            raise errors.InvalidArgumentError(
                "text names a column, but there is no metadata", argument="text"
            )
        table = table.with_text(text)
    target = folder_path(path)
    with folder_to_fill(target, overwrite, MANIFEST_FILE) as folder:
        limit_bytes = memory_bytes(build_memory, stop - start, dim)
        existed = folder.exists()
        work = _Build(
            folder,
            source,
            dtype,
            start,
            stop,
            options,
            limit_bytes,
            restart=not resume,
            transient=transient,
            gives_way=gives_way,
            gpu_optional=gpu_optional,
            is_interim=is_interim,
        )
        removed = False
        try:
            if warm_start is not None:
                work.go_on_from(warm_start)
            work.stream(watch, resumed)
            work.run(watch, nice)
            work.check_gpu(required=options.device != "auto" and not gpu_optional)
            order = work.order()
            work.place_vectors(order, watch)
            work.commit(order, column, table, watch, is_interim=is_interim)
            make_words(folder)
            if is_interim:
                if calibration is not None:
                    store_calibration(folder, calibration)
            elif options.calibrate:
                calibrate_index(
                    folder,
                    source,
                    order,
                    metric=options.metric,
                    seed=options.seed,
                    threads=options.threads,
                    start=start,
                    stop=stop,
                    memory_bytes=limit_bytes and max(limit_bytes, search_bytes + order.nbytes),
                    page_links=bool(options.page_links),
                    vectors=options.store_vectors,
                    watch=lambda done: _tell(watch, "calibrate", done, stop - start),
                    queries=queries,
                    known=calibration,
                    decoded=decoded,
                    lock_held=folder != target,
                )
        except KeyboardInterrupt:
            if transient:
                raise
            work.keep()
            raise KeyboardInterrupt(
                f"the work of this build stays in {folder}; the same call goes on from there"
            ) from None
        except BaseException:
            removed = work.committed
            work.remove()
            raise
        finally:
            # Only now does the library take its marker away: killed before, the same call finishes the index.
            work.close()
            if removed and not existed:
                with contextlib.suppress(OSError):
                    folder.rmdir()
        _tell(watch, "calibrate", stop - start, stop - start)


@dataclass(frozen=True)
class WarmStart:
    """An index whose graph another one starts from.

    `rows`: Returns the row in the new one of each vertex; the greatest number: it has none.
    """

    path: Path
    rows: Callable[[], AnyArray]


class _Build:
    """One native build from its first row to its manifest."""

    def __init__(
        self,
        folder: Path,
        source: Source,
        dtype: np.dtype[Any],
        start: int,
        stop: int,
        options: BuildOptions,
        limit_bytes: int,
        *,
        restart: bool,
        transient: bool,
        gives_way: bool,
        gpu_optional: bool,
        is_interim: bool,
    ) -> None:
        self._folder = folder
        self._source = source
        self._dtype = dtype
        self._start, self._stop = start, stop
        self._rows = stop - start
        struct = _native.new("velo_build_options")
        struct.dim = source.shape[1]
        struct.row_count = self._rows
        struct.dtype = DTYPE_CODES[dtype.name]
        struct.memory_bytes = limit_bytes
        struct.restart = int(restart)
        struct.transient = int(transient)
        struct.gives_way = int(gives_way)
        struct.places_once = int(is_interim)
        options.fill(struct)
        struct.gpu = gpu_code(options.device, optional=gpu_optional)
        #: The rows, if they are stored after placement. The work of a build that may be resumed holds them.
        self._rows_last: RandomSource | None = None
        if transient and options.store_vectors and isinstance(source, RandomSource):
            self._rows_last = source
            struct.store_vectors = _VECTORS_LAST
        #: The library stores the handle here, and clears it when it closes.
        self._place = _native.ffi.gc(_native.ffi.new("velo_build **"), _native.lib.velo_build_close)
        _native.check(_native.lib.velo_build_open(os.fsencode(folder), struct, self._place), "path")
        #: Whether the manifest is there.
        self.committed = False

    @property
    def _handle(self) -> Any:
        return self._place[0]

    def stream(self, watch: Watch | None, resumed: Resumed | None = None) -> None:
        """Both passes over the vectors; the second resumes where a killed build stopped."""
        self._pass("scan", _native.lib.velo_build_scan, watch)
        progress = _native.new("velo_build_progress")
        _native.check(_native.lib.velo_build_progress_get(self._handle, progress))
        stage = list(STAGES)[progress.resumed_stage]
        if stage != "scan" and resumed is not None:
            resumed(stage, int(progress.resumed_done), self._rows)
        if list(STAGES)[progress.stage] == "encode":
            self._pass("encode", _native.lib.velo_build_add, watch, int(progress.done))

    def _pass(
        self, stage: str, take: Callable[[Any, Any, int, int], int], watch: Watch | None, done: int = 0
    ) -> None:
        rows = chunk_rows(self._source.shape[1] * self._dtype.itemsize)
        for rows_of_chunk in self._source.chunks(rows, self._start + done, self._stop):
            chunk = native_layout(rows_of_chunk, self._dtype)
            status = take(self._handle, _native.address(chunk), len(chunk), chunk.strides[0])
            _native.check(status, "vectors")
            done += len(chunk)
            _tell(watch, stage, done, self._rows)

    def go_on_from(self, warm_start: WarmStart) -> None:
        """The graph starts with the lists of another index."""
        rows = np.ascontiguousarray(warm_start.rows(), np.uint32)
        status = _native.lib.velo_build_warm_start(
            self._handle, os.fsencode(warm_start.path), _native.pointer("uint32_t", rows), len(rows)
        )
        _native.check(status, "former")

    def run(self, watch: Watch | None, nice: int) -> None:
        """Graph, placement, pages: in a thread of their own, so that this one can watch and cancel."""
        failures: list[BaseException] = []
        # Not Thread.join, nor an Event: interrupted, they take what runs for ended, or raise something else.
        ended: SimpleQueue[None] = SimpleQueue()
        # After an interrupt the thread must not begin: no caller waits for it.
        turn, began, is_left, is_over = threading.Lock(), [False], [False], [False]

        def work() -> None:
            with turn:
                began[0] = not is_left[0]
            if not began[0]:
                return
            try:
                # Threads inherit it, and all that this one starts end with the call.
                thread = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, thread, max(nice, os.getpriority(os.PRIO_PROCESS, thread)))
                # The calling thread reports the error.
                _native.check(_native.lib.velo_build_run(self._handle), "vectors")
            except BaseException as error:
                failures.append(error)
            finally:
                is_over[0] = True
                ended.put(None)

        progress = _native.new("velo_build_progress")
        stages = list(STAGES)
        try:
            try:
                _thread.start_new_thread(work, ())
            except RuntimeError as error:
                raise errors.DeviceError(
                    "the system gave no thread for the build (limits of processes, ulimit -u, and of address "
                    "space, ulimit -v)"
                ) from error
            while not is_over[0]:
                try:
                    ended.get(timeout=_POLL_SECONDS)
                except Empty:
                    _native.check(_native.lib.velo_build_progress_get(self._handle, progress))
                    if progress.stage < len(stages):
                        _tell(watch, stages[progress.stage], int(progress.done), int(progress.total))
        except BaseException:
            with turn:
                is_left[0] = True
            _native.lib.velo_build_cancel(self._handle)
            raise
        finally:
            # The library's handle must outlive its work, also after a second Ctrl-C.
            while began[0] and not is_over[0]:
                with contextlib.suppress(KeyboardInterrupt, Empty):
                    ended.get(timeout=_POLL_SECONDS)
        if failures:
            raise failures[0]

    def check_gpu(self, *, required: bool) -> None:
        """Warn of a GPU that has failed, or that was required and not used."""
        gpu = _native.new("velo_gpu_info")
        _native.check(_native.lib.velo_build_gpu_get(self._handle, gpu))
        name, reason = _native.text(gpu.name), _native.text(gpu.reason)
        state = GPU_STATES.get(gpu.state)
        if state == "lost":
            warnings.warn(
                f"{name} failed; the CPU has linked the other vertices: {reason}",
                errors.GpuWarning,
                stacklevel=4,
            )
        elif state == "cpu" and required:
            warnings.warn(f"{name} was not used for the build: {reason}", errors.GpuWarning, stacklevel=4)

    def order(self) -> AnyArray:
        """The row of each vertex, after `run`."""
        rows = np.empty(self._rows, np.uint32)
        _native.check(
            _native.lib.velo_build_order(self._handle, _native.pointer("uint32_t", rows, writable=True))
        )
        return rows

    def place_vectors(self, order: AnyArray, watch: Watch | None) -> None:
        """Store the vectors in placement order, unless the library has them from its second pass."""
        if self._rows_last is None:
            return
        step = max(1, _PLACED_BYTES // (4 * self._source.shape[1]))
        for first in range(0, self._rows, step):
            rows = self._start + order[first : first + step].astype(np.int64)
            chunk = native_layout(self._rows_last.take(rows), self._dtype)
            status = _native.lib.velo_build_vectors(
                self._handle, _native.address(chunk), len(chunk), chunk.strides[0]
            )
            _native.check(status, "vectors")
            _tell(watch, "write", min(first + step, self._rows), self._rows)

    def commit(
        self,
        rows: AnyArray,
        ids: IdColumn | IdsOfRows | None,
        table: GivenMetadata | ColumnSource | None,
        watch: Watch | None,
        *,
        is_interim: bool,
    ) -> None:
        """Ids and metadata in placement order `rows`, then the manifest."""
        _tell(watch, "commit", 0, self._rows)
        self.remove_extra_files()  # what a killed build may have written
        try:
            extra_files = [FILE_NAME]
            kind = write_ids(self._folder, ids, rows, self._start)
            if table is not None:
                extra_files += write_metadata(self._folder, table, rows)
        except OSError as error:
            if isinstance(error, errors.VeloError):
                raise
            raise os_failure(error, str(error.filename or self._folder)) from error
        names = [_native.ffi.new("char[]", os.fsencode(name)) for name in extra_files]
        pointers = _native.ffi.new("char *[]", names)
        noted = {"ids": kind, "first_row": self._start} | ({"interim": True} if is_interim else {})
        user = _native.ffi.new("char[]", json.dumps(noted).encode())
        _native.check(_native.lib.velo_build_commit(self._handle, pointers, len(names), user))
        self.committed = True
        _tell(watch, "commit", self._rows, self._rows)

    def keep(self) -> None:
        """Let what was done stay for the next build of the same vectors and options."""
        with contextlib.suppress(errors.VeloError):  # what cannot be saved is done again
            _native.check(_native.lib.velo_build_keep(self._handle), "path")

    def remove(self) -> None:
        """Take away what the library does not remove: an index that is complete, and files written here."""
        if self.committed:
            with contextlib.suppress(OSError, errors.VeloError):
                # The manifest first, so that it is no index from then on.
                for name in (MANIFEST_FILE, *read_manifest(self._folder).files, words_name(1)):
                    (self._folder / name).unlink(missing_ok=True)
        elif not (self._folder / MANIFEST_FILE).exists():  # else that of an index which is not this build's
            self.remove_extra_files()

    def remove_extra_files(self) -> None:
        """Remove what is written here beside the library's own files, so that it can remove the folder."""
        for name in (FILE_NAME, COLUMNS_FILE, STATISTICS_FILE, POSTINGS_FILE, words_name(1)):
            for written in (name, f"{name}.part"):
                with contextlib.suppress(OSError):
                    (self._folder / written).unlink()

    def close(self) -> None:
        """Free the handle; without a commit the library removes what it made."""
        _native.lib.velo_build_close(self._place)


def _tell(watch: Watch | None, stage: str, done: int, total: int) -> None:
    if watch is not None and watch(stage, done, total) is False:
        raise errors.CancelledError(f"the build was canceled while it was at stage {stage!r}")


_METRICS: Final = {code: name for name, code in METRIC_CODES.items()}

#: Candidates kept while a vertex of an interim segment is linked. Over 4,000 SIFT descriptors a search with a
#: list of 40 finds as many as after a build with 100, which takes nearly twice as long.
_INTERIM_LIST_SIZE: Final = 48


def build_segment(
    path: Path,
    vectors: Any,
    *,
    ids: IdsOfRows,
    metadata: Any,
    metric: int,
    like: Segment | None,
    calibration: Mapping[str, Any] | None,
    warm_start: WarmStart | None,
    is_interim: bool,
    store_vectors: bool,
    threads: int | None,
    device: str,
    build_memory: Memory | None,
    search_bytes: int,
    search_memory: Memory | None,
    nice: int,
    gives_way: bool,
    resume: bool,
    watch: Watch | None,
) -> None:
    """Build a segment of live data.

    `calibration`: Of that segment, adopted where it holds for this one.
    `is_interim`: The segment is small beside `like`, with whose list it is searched and with which it is soon
      merged. So its graph takes less effort, and its calibration is a copy.
    `store_vectors`: Whether these are the vectors as given. Otherwise some rows were decoded from codes,
      and the segment stores no vectors.
    `device`: Of the index. Where its GPU cannot be had the CPU links all vertices.
    `search_memory`: Memory of the index: it chooses the bits of a first segment, so that it opens.
    """
    how: dict[str, Any] = {}
    if like is not None:
        info = like.info()
        how = {
            "memory_bits": int(info.memory_bits),
            "record_bits": int(info.record_bits),
            "degree": int(info.degree),
            "links_kept": int(info.links_built),
            "page_links": bool(info.page_links),
            "page_codes": bool(info.page_codes),
            "record_code_bytes": int(info.record_code_bytes),
        }
    else:
        how = _for_share(search_memory, *vectors.shape)
    # The seed is in the uuid of an index, and no two segments have the same.
    seed = int(path.name.rpartition("-")[2], 16)
    options = BuildOptions(
        metric=_METRICS[metric],
        threads=threads,
        seed=seed,
        store_vectors=store_vectors,
        device=device,
        **how,
    )
    if is_interim:
        options = replace(options, build_list_size=_INTERIM_LIST_SIZE)
    build_shard(
        path,
        as_source(vectors),
        options,
        ids=ids,
        metadata=metadata,
        build_memory=build_memory,
        search_bytes=search_bytes,
        resume=resume,
        transient=not resume,
        calibration=calibration,
        is_interim=is_interim,
        warm_start=warm_start,
        decoded=not store_vectors,
        nice=nice,
        gives_way=gives_way,
        gpu_optional=True,
        watch=watch,
    )


def _for_share(memory: Memory | None, row_count: int, dim: int) -> dict[str, Any]:
    """Options with which rows open within a share of themselves, where the usual bits have no room.

    A number of bytes says nothing: more rows will come.
    """
    budget = memory_bytes(memory, row_count, dim)
    is_share = memory_bytes(memory, 2 * row_count, dim) > budget
    usual = sizes_of(row_count, dim)
    least = min(usual.codes_least_bytes, usual.page_codes_least_bytes)
    is_short = least <= budget < usual.needed_bytes
    return {"search_memory": memory} if is_share and is_short else {}
