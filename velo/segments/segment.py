"""A segment in the library's hands: a folder that was built, or one of those that rows were flushed to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from velo import _native
from velo.errors import (
    BudgetTooSmallError,
    FilterTypeError,
    GpuWarning,
    InvalidArgumentError,
    NotAnIndexError,
    VeloError,
)
from velo.filters.compiler import Columns, FilterCompiler
from velo.folder.ids import Ids
from velo.folder.manifest import data_folders, read_manifest
from velo.folder.metadata import open_metadata
from velo.fulltext.file import Words
from velo.fulltext.opening import OpenWords
from velo.options import (
    GPU_STATES,
    IO_CODES,
    PLAN_CODES,
    OpenTuning,
    code_of,
    gpu_code,
    in_range,
    memory_bytes,
)
from velo.options.checks import SHARE_FLOOR_BYTES, has_floor
from velo.segments.completions import Completions
from velo.types import AnyArray, Float32Array, Int64Array, IoName, Memory, PlanName


def compiler_for(
    row_count: int,
    store: Columns | None,
    ids: Ids,
    unknown_is_missing: bool = False,
    *,
    with_masks: bool = True,
) -> FilterCompiler:
    """The compiler of an open index: conditions over its metadata, masks over its rows, its ids."""

    def vertices_of(values: Any) -> Int64Array:
        try:
            return ids.find(values, "filter")
        except InvalidArgumentError as error:
            said = error.message.removeprefix("filter: ").removeprefix("filter ")
            raise FilterTypeError(f"filter {said}", argument="filter") from error

    return FilterCompiler(
        row_count,
        store,
        rows=ids.rows if with_masks else None,
        vertices_of=vertices_of,
        unknown_is_missing=unknown_is_missing,
    )


#: For whole pages where no budget was named: all those of a million vectors of 128 dimensions have room.
_CACHE_BYTES: Final = 256 << 20
#: A segment gets at least one `_SEGMENT_LEAST_SHARE`-th of its folder's budget, and at least these bytes.
_SEGMENT_LEAST_SHARE: Final = 8
_SEGMENT_LEAST_BYTES: Final = 1 << 18
#: Written once and never again (zig/src/index).
_PAGES_FILE: Final = "pages.bin"


@dataclass(frozen=True, kw_only=True)
class OpenOptions:
    """How the segments of an index are opened; see :func:`velo.open`."""

    memory: Memory | None = None
    #: Budget of merges, beside `memory`; None: as much as that.
    merge_memory: Memory | None = None
    threads: int | None = None
    io: IoName = "auto"
    plan: PlanName = "auto"
    #: "cpu", "cuda", "cuda:1", … or "auto".
    device: str = "cpu"
    #: A segment that the GPU has no room for is searched by the CPU.
    gpu_optional: bool = False
    tuning: OpenTuning | None = None
    #: A column that the metadata does not have has no values, instead of being an error.
    unknown_is_missing: bool = False
    #: For whole pages if `memory` is None.
    cache_bytes: int = _CACHE_BYTES

    def native(self) -> Any:
        """A ``velo_open_options`` without a budget."""
        struct = _native.new("velo_open_options")
        struct.io = code_of(IO_CODES, self.io, "io")
        struct.plan = code_of(PLAN_CODES, self.plan, "plan")
        struct.gpu = gpu_code(self.device, optional=self.gpu_optional)
        struct.threads = 0 if self.threads is None else in_range(self.threads, "threads")
        (self.tuning or OpenTuning()).fill(struct)
        return struct

    def fill_budget(self, struct: Any, folder: Path, of_rows: int | None) -> None:
        """The bytes of a segment, of a folder of ``of_rows`` rows in all; None: it is the whole folder."""
        rows, dim = shape_in_manifest(folder)
        struct.memory_bytes = segment_bytes(self.memory, rows, of_rows or rows, dim)
        if self.memory is None:
            struct.cache_bytes = self.cache_bytes * rows // max(rows, of_rows or 0)

    def grows_to(self, needed_bytes: int, folder: Path, of_rows: int | None) -> bool:
        """Whether a segment's budget grows to its need, up to `SHARE_FLOOR_BYTES`: beside others it does."""
        is_beside = (of_rows or 0) > shape_in_manifest(folder)[0]
        return has_floor(self.memory, needed_bytes) or (is_beside and needed_bytes <= SHARE_FLOOR_BYTES)


def segment_bytes(memory: Memory | None, rows: int, of_rows: int, dim: int) -> int:
    """The budget of a segment of `rows` rows, of a folder of `of_rows` rows; 0: there is none.

    A small one gets more than its share.
    """
    if of_rows <= rows or memory is None:
        return memory_bytes(memory, rows, dim)
    total = memory_bytes(memory, of_rows, dim)
    least = min(SHARE_FLOOR_BYTES, max(_SEGMENT_LEAST_BYTES, total // _SEGMENT_LEAST_SHARE))
    return max(least, total * rows // of_rows)


def shape_in_manifest(folder: Path) -> tuple[int, int]:
    """(n, d) for a budget given as a share; made up where the library will say what is wrong anyway."""
    try:
        manifest = read_manifest(folder)
    except VeloError:
        return 1 << 20, 1 << 10  # large enough that no share of it is nothing
    return min(max(1, manifest.row_count), 2**31), min(max(1, manifest.dim), 2**16)


def shape_of_folder(folder: Path) -> tuple[int, int]:
    """(n, d) of the first segment of an index, as :func:`shape_in_manifest` returns it."""
    return shape_in_manifest(next(iter(data_folders(folder)), folder))


class Segment:
    """A segment that is open, with its ids, its metadata and what searches of it share.

    It closes when nothing refers to it any more, or by :meth:`close`.

    `name`: Of the segment in its index; the folder of that name is locked, so that no writer removes it.
    `beside`: Another segment that is open: both are searched by the same workers.
    """

    def __init__(
        self,
        folder: Path,
        how: OpenOptions,
        of_rows: int | None = None,
        name: str = "",
        beside: Segment | None = None,
    ) -> None:
        self.folder = folder
        self.name = name
        self._unknown_is_missing = how.unknown_is_missing
        self._on_gpu = how.device != "cpu"
        struct = how.native()
        if beside is not None:
            struct.workers_of = beside.handle
        with contextlib.ExitStack() as undo:
            lock = lock_segment(folder, name)
            undo.callback(unlock_segment, lock)
            how.fill_budget(struct, folder, of_rows)
            #: Where the library puts the handle, and from where it takes it when it closes.
            place = _native.ffi.gc(_native.ffi.new("velo_index *"), _native.lib.velo_index_close)
            try:
                _native.check(_native.lib.velo_index_open(bytes(folder), struct, place), "path")
            except BudgetTooSmallError as error:
                if error.needed_bytes is None or not how.grows_to(error.needed_bytes, folder, of_rows):
                    raise
                struct.memory_bytes = error.needed_bytes
                _native.check(_native.lib.velo_index_open(bytes(folder), struct, place), "path")
            self.handle: int = int(place[0])
            undo.callback(_native.close, _native.lib.velo_index_close, place)
            info = self.info()
            self.uuid = _native.text(info.uuid)
            self._file = _file_of(folder)
            self.n, self.dim, self.metric, self.dtype = (
                int(info.n),
                int(info.dim),
                int(info.metric),
                int(info.dtype),
            )
            self.stores_vectors = bool(info.stores_vectors)
            manifest = read_manifest(folder)
            self.calibration = manifest.calibration
            self.is_interim = manifest.is_interim
            # Where memory holds no code of a row, it holds no id of each either.
            is_released = info.plan == PLAN_CODES["walk"]
            self.ids = Ids(folder, self.n, manifest.first_row, is_released=is_released)
            self.completions = Completions(self.handle)
            self._compilers: list[FilterCompiler] = []
            self._words_lock = threading.Lock()
            self._words: OpenWords | None = None
            #: What closes with the segment.
            self._open_words: list[Words] = []
            self.load_metadata()
            undo.pop_all()
        self._finalizer = weakref.finalize(
            self, _close, os.getpid(), place, self.completions, self._compilers, self._open_words, lock
        )

    def is_at(self, folder: Path) -> bool:
        """Whether a folder holds the very files that are open here, whatever its name."""
        return self._file is not None and self._file == _file_of(folder)

    def load_metadata(self) -> None:
        """Open the metadata that the folder has now."""
        self.metadata = open_metadata(self.folder, self.n)
        missing = self._unknown_is_missing
        self.filters = compiler_for(self.n, self.metadata, self.ids, missing)
        #: The same without masks, which go by the rows of a build.
        self.compiler = compiler_for(self.n, self.metadata, self.ids, missing, with_masks=False)
        before = list(self._compilers)
        self._compilers[:] = [self.filters, self.compiler]
        for one in before:
            one.close()

    def info(self) -> Any:
        """A ``velo_index_info``."""
        info = _native.new("velo_index_info")
        _native.check(_native.lib.velo_index_info_get(self.handle, info))
        return info

    def check_gpu(self) -> None:
        """Warn once of a GPU that has failed."""
        if not self._on_gpu:
            return
        gpu = self.info().gpu
        if GPU_STATES.get(gpu.state) == "lost":
            self._on_gpu = False
            warnings.warn(
                f"{_native.text(gpu.name)} failed; the CPU has answered its queries, and answers all later "
                f"ones: {_native.text(gpu.reason)}",
                GpuWarning,
                stacklevel=4,
            )

    def words(self, column: str) -> Words:
        """The words of its rows, opened once; made from its rows where their file is missing or damaged."""
        with self._words_lock:
            words = self._words
            if words is None or words.column != column or words.damaged or self.metadata is not words.store:
                assert self.metadata is not None
                words = self._words = OpenWords(self.folder, self.metadata, column)
                self._open_words[:] = [words.words]
            return words.words

    @property
    def words_bytes(self) -> int:
        """Memory of its full-text index."""
        words = self._words
        return 0 if words is None else words.words.memory_bytes

    @property
    def memory_bytes(self) -> int:
        """Memory of filters by ids and columns."""
        return self.compiler.memory_bytes

    def vectors(self, vertices: AnyArray) -> Float32Array:
        return self._vectors(_native.lib.velo_get_vectors, vertices)

    def decoded(self, vertices: AnyArray) -> Float32Array:
        """Vectors decoded from codes, for vertices without stored vectors; for cosine only directions."""
        return self._vectors(_native.lib.velo_decode_vectors, vertices)

    def _vectors(self, read: Any, vertices: AnyArray) -> Float32Array:
        wanted = np.ascontiguousarray(vertices, np.uint32)
        vectors = np.empty((len(wanted), self.dim), np.float32)
        status = read(
            self.handle,
            _native.pointer("uint32_t", wanted),
            len(wanted),
            _native.pointer("float", vectors, writable=True),
        )
        _native.check(status, "ids")
        return vectors

    def close(self) -> None:
        """Stop the workers and give memory and files back; further calls do nothing."""
        found = self._finalizer.peek()
        if found is not None:
            _, close, arguments, _ = found
            close(*arguments)  # interrupted, it can be called again: all that it does is done once
            self._finalizer.detach()


def _file_of(folder: Path) -> tuple[int, int] | None:
    """Which file the pages are in, on its device."""
    try:
        found = os.stat(folder / _PAGES_FILE)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def lock_segment(folder: Path, name: str) -> list[int]:
    """A descriptor that keeps writers from removing a segment.

    Before the first write the files of a segment are in the folder of its index, which no merge removes; a
    lock on that folder is a writer's. Then the list is empty.
    """
    if not name or folder.name != name:
        return []
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise NotAnIndexError(f"{folder} cannot be opened: {error.strerror}", argument="path") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:  # a writer takes it away just now
        os.close(handle)
        raise NotAnIndexError(f"{folder} is being removed", argument="path") from error
    return [handle]


def _close(
    process: int,
    place: Any,
    completions: Completions,
    compilers: list[FilterCompiler],
    words: list[Words],
    lock: list[int],
) -> None:
    """Free an index; in a forked child there is nothing to free but the descriptor of the lock."""
    if os.getpid() != process:
        unlock_segment(lock)
        return
    _native.close(_native.lib.velo_index_close, place)
    with contextlib.ExitStack() as stack:  # all are closed, whichever fails
        stack.callback(unlock_segment, lock)
        stack.callback(completions.close)
        for one in compilers:
            stack.callback(one.close)
        for open_words in words:
            stack.callback(open_words.close)


def unlock_segment(lock: list[int]) -> None:
    """Close the descriptor in the list, where one is left."""
    while lock:
        os.close(lock.pop())
