"""Open an index, or make one without rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

import pyarrow as pa
from numpy.typing import DTypeLike

from velo import _native, options
from velo.errors import IndexExistsError, InvalidArgumentError, NotAnIndexError, VeloError
from velo.folder.manifest import COLLECTION_FILE, check_is_folder, check_is_no_file
from velo.folder.opened import OpenedFolder
from velo.folder.replace import os_failure, read_consistently
from velo.folder.shards import check_shard, shards_of
from velo.folder.text_column import with_text_column
from velo.hints import hinted
from velo.index.folder import OpenFolder
from velo.index.index import Index, Resources
from velo.index.sharded import ShardedIndex
from velo.index.writer import Writer
from velo.segments.columns import check_schema, schema_text
from velo.segments.data import DURABILITY_CODES, LiveData
from velo.segments.lifetime import LifetimeGuard
from velo.segments.segment import OpenOptions, Segment, shape_of_folder
from velo.types import DurabilityName, IoName, Memory, MetricName, PathLike, PlanName, UnknownColumns

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: The meaning of a missing column in a filter.
UNKNOWN_COLUMNS: Final = {"error": 0, "missing": 1}
#: What new rows may take before a segment is made of them: a tenth of `memory`, within these bounds.
_DELTA_BYTES: Final = (1 << 20, 64 << 20)


class OpenKeywords(TypedDict, total=False):
    """The options of :func:`open_path`, for type checkers."""

    memory: Memory | None
    threads: int | None
    io: IoName
    plan: PlanName
    device: str
    tuning: options.OpenTuning | None
    unknown_columns: UnknownColumns
    writable: bool
    durability: DurabilityName
    merge_memory: Memory | None
    follow: bool


def open_index(path: PathLike, **how: Unpack[OpenKeywords]) -> Index:
    """Open one index, and refuse a collection of shards; :func:`velo.open` documents the options."""
    folder = options.folder_path(path)
    if (folder / COLLECTION_FILE).is_file():
        raise NotAnIndexError(f"{folder} is a collection of shards, not one index", argument="path")
    return open_path(folder, **how)


def _open_once(
    folder: Path, how: OpenOptions, reopen: partial[Index], durability: DurabilityName | None, follow: bool
) -> Index:
    guard = LifetimeGuard(str(folder))
    opened = _open_folder(folder, how, durability, follow, lambda: None)
    resources = Resources(guard, [opened])
    writer = None if opened.compactor is None else Writer(opened)
    index = Index(folder, resources, [opened], reopen, writer)
    if opened.compactor is not None:
        opened.compactor.resume()
    return index


def _open_folder(
    folder: Path,
    how: OpenOptions,
    durability: DurabilityName | None,
    follow: bool,
    any_segment: Callable[[], Segment | None],
) -> OpenFolder:
    check_is_folder(folder)
    opened = OpenedFolder(folder)
    return OpenFolder(opened, _live_of(opened, durability, how), how, any_segment, follows=follow)


@hinted
def open_path(
    path: PathLike,
    *,
    memory: Memory | None = None,
    threads: int | None = None,
    io: IoName = "auto",
    plan: PlanName = "auto",
    device: str = "cpu",
    tuning: options.OpenTuning | None = None,
    unknown_columns: UnknownColumns = "error",
    writable: bool = False,
    durability: DurabilityName = "sync",
    merge_memory: Memory | None = None,
    follow: bool = True,
) -> Index:
    """Open what :func:`velo.build` or :func:`velo.build_collection` made.

    Parameters
    ----------
    path : path
        The folder.
    memory : int, float or str, optional
        What the index may keep in memory: bytes, a share of n·d·4 bytes (``"15%"`` or 0.15), or a size
        (``"2GiB"``). Without it the index keeps its codes and links, and up to 256 MiB of pages. A
        share of few vectors counts as what the index needs to open, up to 1.25 MiB.
    threads : int, optional
        Workers that search. Without it there is one for each core.
    io : {"auto", "uring", "threads"}
        ``"auto"`` takes io_uring where the system allows it.
    plan : {"auto", "links_in_memory", "links_on_disk", "walk"}
        ``"auto"`` keeps links in memory where `memory` has room for them. ``"walk"`` has a few codes of each
        page in memory and nothing of single vectors, and goes from page to page by the neighbors that a page
        lists; ``"auto"`` takes it where `memory` has no room for codes and the index was built with
        `page_codes`. ``"pages"`` is its former name.
    device : str
        ``"cuda"``, or ``"cuda:1"`` for the second: codes and links are also kept in that GPU's memory, and it
        navigates for calls of many queries; with `writable` it also links the segments of flushes. ``"auto"``
        is the first GPU where there is one, else the CPU.
    tuning : OpenTuning, optional
    unknown_columns : {"error", "missing"}
        ``"missing"`` for filters on data without a schema.
    writable : bool
        Open an index, or all shards of a collection, also to change it. Any number of processes and handles
        may at once: each call waits for those of others, and sees what they wrote.
    durability : {"sync", "interval", "process"}
        When a change is on the device: before its call returns, 100 ms later, or when the system writes it.
    merge_memory : int, float or str, optional
        With `writable`, what all merges that run may take together, beside `memory`; as much as `memory`
        where it is not named, and then what a segment needs at least. With 400 bytes a row or more (at 128
        dimensions) a merge goes on from the graph that is there.
    follow : bool
        Searches and lookups show what other processes wrote before they began. False: the index stays as it
        was when it was opened, until :meth:`Index.refresh`; not with `writable`.

    Returns
    -------
    Index
        Use it in ``with``, or close it. Where the folder holds a collection of shards it is a
        :class:`ShardedIndex`, which has the same methods.

    Raises
    ------
    NotAnIndexError
        There is no folder, or no complete index in it.
    CorruptIndexError
        A file is damaged.
    UnsupportedVersionError
        Another version of the format.
    BudgetTooSmallError
        `memory` does not hold what the index cannot do without; ``needed_bytes`` says how much that is.
    DeviceError
        The system refused a read, a thread or a descriptor.
    GpuError
        With `device`: no driver (``libcuda.so.1``), no such GPU, or too little memory of it.
    BusyError
        With `writable`: a call of another process did not end within a minute.
    UnsupportedError
        With `writable`: the file system has no locks or no shared memory, as some network file systems.

    Examples
    --------
    >>> with velo.open("shop.velo", memory="50%") as index:
    ...     ids, distances = index.search(query, k=3)
    """
    folder = options.folder_path(path)
    plan = options.plan_name(plan, stacklevel=3)
    options.code_of(DURABILITY_CODES, durability, "durability")
    if merge_memory is not None:
        options.memory_bytes(merge_memory, 1 << 30, 1, "merge_memory")
    how = OpenOptions(
        memory=memory,
        merge_memory=merge_memory,
        threads=threads,
        io=io,
        plan=plan,
        device=device,
        tuning=tuning,
        unknown_is_missing=bool(options.code_of(UNKNOWN_COLUMNS, unknown_columns, "unknown_columns")),
    )
    how.native()  # refused before anything is opened
    if writable and not follow:
        raise InvalidArgumentError("an index that is open to write follows others", argument="follow")
    reopen = partial(
        open_path,
        str(folder),
        memory=memory,
        threads=threads,
        io=io,
        plan=plan,
        device=device,
        tuning=tuning,
        unknown_columns=unknown_columns,
        follow=follow,
    )
    to_write = durability if writable else None
    if (folder / COLLECTION_FILE).is_file():
        return _open_shards(folder, how, reopen, to_write, follow)
    return read_consistently(folder, lambda: _open_once(folder, how, reopen, to_write, follow))


def _open_shards(
    folder: Path, how: OpenOptions, reopen: partial[Index], durability: DurabilityName | None, follow: bool
) -> ShardedIndex:
    """Open all shards with one set of workers; a budget is divided by rows."""
    entries = shards_of(folder)
    total, dim = sum(entry.rows for entry in entries), entries[0].dim
    memory, merge_memory = (
        None if given is None else options.memory_bytes(given, total, dim, name)
        for name, given in (("memory", how.memory), ("merge_memory", how.merge_memory))
    )
    folders: list[OpenFolder] = []

    def any_segment() -> Segment | None:
        return next((segment for one in folders if (segment := one.segment) is not None), None)

    with contextlib.ExitStack() as opened:
        for place, entry in enumerate(entries):
            share = entry.rows / max(1, total)
            of_shard = replace(
                how,
                memory=None if memory is None else int(memory * share),
                merge_memory=None if merge_memory is None else int(merge_memory * share),
                cache_bytes=int(how.cache_bytes * share),
            )
            one = read_consistently(
                folder / entry.path,
                partial(_open_folder, folder / entry.path, of_shard, durability, follow, any_segment),
            )
            opened.callback(one.close)
            folders.append(one)
            check_shard(folder / entry.path, str(place), entry.uuid)
        resources = Resources(LifetimeGuard(str(folder)), folders)
        made = ShardedIndex(folder, resources, folders, reopen, [entry.path for entry in entries])
        opened.pop_all()
    for one in folders:
        if one.compactor is not None:
            one.compactor.resume()
    return made


@hinted
def create_index(
    path: PathLike,
    *,
    dim: int,
    metric: MetricName = "l2",
    dtype: DTypeLike = "float32",
    metadata: Any = None,
    text: str | None = None,
    memory: Memory | None = None,
    threads: int | None = None,
    unknown_columns: UnknownColumns = "error",
    durability: DurabilityName = "sync",
    merge_memory: Memory | None = None,
) -> Index:
    """Make an index without rows, open to write.

    The first rows decide what ids are: numbers that the index gives, where they bring none, whole numbers, or
    strings. Its vectors are stored.

    Parameters
    ----------
    path : path
        The folder to make; its parent must exist.
    dim : int
    metric : {"l2", "ip", "cosine"}
    dtype : {"float32", "float16", "uint8", "int8"}
        Of the vectors.
    metadata : pyarrow.Schema, optional
        The columns that every row brings.
    text : str, optional
        The column that holds the text, as for :func:`velo.build`.
    memory, threads, unknown_columns, durability, merge_memory :
        As for :func:`velo.open`.

    Returns
    -------
    Index

    Raises
    ------
    IndexExistsError
        The folder is there and not empty.
    InvalidArgumentError
        Among others a column of a type that cannot be stored.
    NoSpaceError, PermissionDeniedError
    """
    folder = options.folder_path(path)
    codes = (
        options.code_of(options.METRIC_CODES, metric, "metric"),
        options.code_of(options.DTYPE_CODES, dtype, "dtype"),
    )
    options.code_of(DURABILITY_CODES, durability, "durability")
    options.code_of(UNKNOWN_COLUMNS, unknown_columns, "unknown_columns")
    options.whole_number(dim, "dim", 1, 8192)
    OpenOptions(memory=memory, threads=threads).native()
    schema = None
    if metadata is not None:
        if not isinstance(metadata, pa.Schema) or not metadata.names:
            raise InvalidArgumentError(
                "metadata is the pyarrow.Schema of the columns, one at least", argument="metadata"
            )
        if len(set(metadata.names)) < len(metadata.names):
            raise InvalidArgumentError("metadata has two columns of one name", argument="metadata")
        check_schema(metadata)
    if text is not None:
        metadata = with_text_column(metadata, text)
    if metadata is not None:
        schema = _native.ffi.new("char[]", schema_text(metadata).encode())
    check_is_no_file(folder)
    try:
        folder.mkdir(exist_ok=True)
        if any(folder.iterdir()):
            raise IndexExistsError(f"{folder} is not empty", argument="path")
    except OSError as error:
        raise error if isinstance(error, VeloError) else os_failure(error, str(folder)) from error
    try:
        status = _native.lib.velo_live_create(
            bytes(folder), dim, *codes, _native.ffi.NULL if schema is None else schema
        )
        _native.check(status, "path")
    except BaseException:
        for name in ("live.json.tmp", "log-0000000000000001.velolog"):
            with contextlib.suppress(OSError):
                (folder / name).unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise
    return open_index(
        folder,
        memory=memory,
        threads=threads,
        unknown_columns=unknown_columns,
        writable=True,
        durability=durability,
        merge_memory=merge_memory,
    )


def _live_of(opened: OpenedFolder, durability: DurabilityName | None, how: OpenOptions) -> LiveData:
    """The log, tombstones and segments of a folder."""
    folder, memory = opened.at, how.memory
    delta_bytes = 0
    if memory is not None and durability is not None:
        whole = options.memory_bytes(memory, *shape_of_folder(folder))
        delta_bytes = min(max(whole // 10, _DELTA_BYTES[0]), _DELTA_BYTES[1])
    try:
        return LiveData(opened, durability, delta_bytes)
    except NotAnIndexError:
        if durability is None:
            Segment(folder, how).close()  # raises an error that names the cause
        raise
