"""An open index: search it, look into it, close it."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from velo import _native
from velo.errors import (
    CorruptIndexError,
    IndexExistsError,
    InvalidArgumentError,
    NotAnIndexError,
    UnsupportedError,
    VeloError,
)
from velo.folder.exchange import change_metadata
from velo.folder.ids import Ids
from velo.folder.live import PART_FIRST, data_folders, is_live
from velo.folder.manifest import COLLECTION_FILE, MANIFEST_FILE, read_manifest
from velo.folder.metadata import encoded_columns, open_metadata
from velo.folder.replace import os_failure
from velo.hints import METHODS, hinted
from velo.live.columns import schema_text
from velo.live.data import MOVED, LiveData
from velo.live.folds import Folds
from velo.live.moment import Moment
from velo.live.rows import ROW
from velo.live.verbs import LiveVerbs
from velo.options import (
    DTYPE_CODES,
    IO_CODES,
    METRIC_CODES,
    PLAN_CODES,
    OpenTuning,
    code_of,
    folder_path,
    memory_bytes,
    whole_number,
)
from velo.search.gate import Gate
from velo.search.searches import Searches
from velo.search.segment import OpenOptions, Segment, shape_in_manifest
from velo.types import (
    DurabilityName,
    Float32Array,
    IoName,
    Memory,
    MetricName,
    PathLike,
    PlanName,
    UnknownColumns,
)

__all__ = ["Index", "create_index", "open_index", "verify_folder"]

_METRICS: Final[dict[int, MetricName]] = {code: name for name, code in METRIC_CODES.items()}  # type: ignore[misc]
_PLANS: Final = {code: name for name, code in PLAN_CODES.items()}
_IO_NAMES: Final = {code: name for name, code in IO_CODES.items()}
#: What a filter means by a column that there is not.
UNKNOWN_COLUMNS: Final = {"error": 0, "missing": 1}
_DTYPE_NAMES: Final = {0: "float32", 1: "float16", 2: "uint8", 3: "int8"}

#: The parts of its memory that an index's budget bounds.
BUDGETED: Final = ("codes", "links", "cache", "pages")

#: How often parts are opened that a writer takes away meanwhile.
_OPEN_ATTEMPTS: Final = 8
#: What new rows may take before a part is made of them: a tenth of `memory`, within these bounds.
_DELTA_BYTES: Final = (1 << 20, 64 << 20)


@hinted
def open_index(
    path: PathLike,
    *,
    memory: Memory | None = None,
    threads: int | None = None,
    io: IoName = "auto",
    plan: PlanName = "auto",
    tuning: OpenTuning | None = None,
    unknown_columns: UnknownColumns = "error",
    writable: bool = False,
    durability: DurabilityName = "sync",
) -> Index:
    """Open one index. :func:`velo.open` says what the options mean, and opens collections of shards, too."""
    folder = folder_path(path)
    if (folder / COLLECTION_FILE).is_file():
        raise NotAnIndexError(f"{folder} is a collection of shards, not one index", argument="path")
    _check_there(folder)
    how = OpenOptions(
        memory=memory,
        threads=threads,
        io=io,
        plan=plan,
        tuning=tuning,
        unknown_is_missing=bool(code_of(UNKNOWN_COLUMNS, unknown_columns, "unknown_columns")),
    )
    how.native()  # refused before anything is opened
    reopen = partial(
        open_index,
        str(folder),
        memory=memory,
        threads=threads,
        io=io,
        plan=plan,
        tuning=tuning,
        unknown_columns=unknown_columns,
    )
    live = _live_of(folder, durability if writable else None, memory)
    if live is None:
        return Index(folder, how, reopen, [Segment(folder, how)], None)
    live, segments = _begun(live, how, {}, durability if writable else None, memory)
    try:
        return Index(folder, how, reopen, segments, live)
    except BaseException:
        _close_all(segments, live)
        raise


def _check_there(folder: Path) -> None:
    """Say in a user's words what is no index; where the system refuses to look the library says why."""
    try:
        there, is_folder = folder.exists(), folder.is_dir()
    except OSError:
        return
    if not is_folder:
        what = "is a file, and an index is a folder" if there else "does not exist"
        hint = "velo.build(path, vectors) makes an index"
        raise NotAnIndexError(f"{folder} {what}; {hint}", argument="path")


@hinted
def create_index(
    path: PathLike,
    *,
    dim: int,
    metric: MetricName = "l2",
    dtype: str = "float32",
    metadata: Any = None,
    memory: Memory | None = None,
    threads: int | None = None,
    durability: DurabilityName = "sync",
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
    memory, threads, durability :
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
    folder = folder_path(path)
    codes = (code_of(METRIC_CODES, metric, "metric"), code_of(DTYPE_CODES, dtype, "dtype"))
    whole_number(dim, "dim", 1, 8192)
    OpenOptions(memory=memory, threads=threads).native()
    schema = None
    if metadata is not None:
        if not isinstance(metadata, pa.Schema) or not metadata.names:
            raise InvalidArgumentError(
                "metadata is the pyarrow.Schema of the columns, one at least", argument="metadata"
            )
        if len(set(metadata.names)) < len(metadata.names):
            raise InvalidArgumentError("metadata has two columns of one name", argument="metadata")
        encoded_columns(metadata.empty_table(), np.zeros(0, np.int64))
        schema = _native.ffi.new("char[]", schema_text(metadata).encode())
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
    return open_index(folder, memory=memory, threads=threads, writable=True, durability=durability)


def _live_of(folder: Path, durability: DurabilityName | None, memory: Memory | None) -> LiveData | None:
    """The changes of an index, where there are any or may be."""
    if durability is None and not is_live(folder) and (folder / MANIFEST_FILE).is_file():
        return None
    delta_bytes = 0
    if memory is not None and durability is not None:
        whole = memory_bytes(
            memory, *shape_in_manifest(data_folders(folder)[0] if data_folders(folder) else folder)
        )
        delta_bytes = min(max(whole // 10, _DELTA_BYTES[0]), _DELTA_BYTES[1])
    try:
        return LiveData(folder, durability, delta_bytes)
    except NotAnIndexError:
        if durability is not None:
            raise
        return None  # the library says what is wrong with what is there


def _begun(
    live: LiveData,
    how: OpenOptions,
    known: Mapping[tuple[str, str], Segment],
    durability: DurabilityName | None,
    memory: Memory | None,
) -> tuple[LiveData, list[Segment]]:
    """Live data whose parts are open; those of `known`, by name and uuid, are not opened again.

    A writer may take parts away between the look at the root and at them: then it is looked at again.
    """
    for attempt in range(_OPEN_ATTEMPTS):
        segments: list[Segment] = []
        opened: list[Segment] = []
        try:
            parts = live.parts()
            rows = int(live.info().rows)
            for name, uuid in parts:
                # What was open as it was built is the first part now, unless another build took its place.
                folder = live.folder / name
                segment = known.get((name, uuid)) or (known.get(("", uuid)) if name == PART_FIRST else None)
                if segment is None or not segment.is_at(folder):
                    segment = Segment(folder, how, rows if len(parts) > 1 else None, name)
                    opened.append(segment)
                segments.append(segment)
            live.begin(segments, how.unknown_is_missing)
        except (NotAnIndexError, CorruptIndexError):
            was = live.parts()
            _close_all(opened, live)
            if attempt + 1 == _OPEN_ATTEMPTS or durability is not None:
                raise
            live = LiveData(live.folder)
            if live.parts() == was and attempt:
                _close_all([], live)
                raise
        except BaseException:
            _close_all(opened, live)
            raise
        else:
            return live, segments
    raise AssertionError("the last attempt returns or raises")


def _close_all(segments: list[Segment], live: LiveData) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(live.close)
        for segment in segments:
            stack.callback(segment.close)


def verify_folder(path: PathLike) -> int:
    """Read every file of an index whole and check every checksum, page and link.

    Parameters
    ----------
    path : path
        The folder of the index.

    Returns
    -------
    int
        How many pages were checked.

    Raises
    ------
    CorruptIndexError
        A file is damaged. The message names it, and the page.

    Examples
    --------
    >>> velo.verify("shop.velo") > 0
    True
    """
    pages = _native.ffi.new("uint64_t *")
    folder = folder_path(path)
    _native.check(_native.lib.velo_verify(bytes(folder), pages), "path")
    # What the library has no eyes for: that ids and metadata are what searches rely on.
    for data in data_folders(folder):
        manifest = read_manifest(data)
        Ids(data, manifest.row_count, manifest.first_row).rows()
        store = open_metadata(data, manifest.row_count)
        if store is not None:
            _ = store.native_columns, store.statistics
    return int(pages[0])


class _Owned:
    """What an index closes, in a box that does not refer to the index."""

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = tuple(segments)
        self.live: LiveData | None = None
        self.folds: Folds | None = None

    def close(self) -> None:
        if self.folds is not None:
            self.folds.join()
        live = self.live
        with contextlib.ExitStack() as stack:  # all are closed, whichever fails
            if live is not None:
                stack.callback(live.close)
            for segment in self.segments if live is None else live.segments:
                stack.callback(segment.close)


def _close_native(gate: Gate, owned: _Owned) -> None:
    """Free an index that was dropped without close(); in a forked child there is nothing to free."""
    if not gate.forked and gate.close():
        owned.close()


class Index(Searches, LiveVerbs):
    """An open index. :func:`velo.open` and :func:`velo.build` make it; ``with`` or :meth:`close` ends it.

    Several threads can call all methods at once. An index belongs to the process that opened it: a forked
    child gets :class:`ForkedError` and opens its own. Pickling sends the path and the options, not the
    contents.

    Attributes
    ----------
    path : pathlib.Path
        The folder.
    n : int
        Rows that were built, those that were deleted since among them. ``len(index)`` counts the rows that
        live.
    dim : int
        Dimensions of a vector.
    metric : {"l2", "ip", "cosine"}
        How vectors are compared.
    """

    if not TYPE_CHECKING:  # a type checker would believe that there is every attribute

        def __new__(cls, *args: Any, **kwargs: Any) -> Index:
            """Say how an index is made to who calls the class."""
            if len(args) < 3:
                raise TypeError(
                    "velo.Index is not called: velo.build(path, vectors) makes an index, "
                    "velo.open(path) opens one"
                )
            return super().__new__(cls)

        def __getattr__(self, name: str) -> Any:
            """Name velo's word for what another library calls so."""
            hint = METHODS.get(name)
            raise AttributeError(
                f"'Index' object has no attribute {name!r}" + (f": {hint}" if hint else ""),
                name=name,
                obj=self,
            )

    def __init__(
        self,
        folder: Path,
        how: OpenOptions,
        reopen: partial[Index],
        segments: list[Segment],
        live: LiveData | None,
    ) -> None:
        self.path = folder
        self._how = how
        self._reopen = reopen
        self._gate = Gate(str(folder))
        self._refreshing = threading.Lock()
        self._updating = threading.Lock()
        self._live: LiveData | None = None
        self._folds: Folds | None = None
        self._newest: Moment | None = None
        self._shown_layout = -1
        self._owned = _Owned(segments)
        if live is None:
            self._take(segments[0])
            metric = segments[0].metric
        else:
            self._own(live)
            metric = int(live.info().metric)
        self.metric: MetricName = _METRICS[metric]
        self._finalizer = weakref.finalize(self, _close_native, self._gate, self._owned)

    def _take(self, segment: Segment) -> None:
        """Searches are those of an index that is as it was built."""
        self.n, self.dim = segment.n, segment.dim
        self._single_shapes = ((self.dim,), (1, self.dim))
        self._handle, self._completions = segment.handle, segment.completions
        self._prepared = segment.prepared
        self._ids, self._metadata, self._filters = segment.ids, segment.metadata, segment.filters

    def _own(self, live: LiveData) -> None:
        """Searches go by what the moment is."""
        self._owned.live = live
        if live.durability is not None:
            how = self._how

            def open_part(name: str, of_rows: int) -> Segment:
                return Segment(live.folder / name, how, of_rows, name)

            self._folds = self._owned.folds = Folds(live, open_part, how.threads, how.memory)
        self._live = live
        self._show()

    def _show(self) -> None:
        """Attributes follow what was written."""
        moment = self._reader_moment()
        self.n, self.dim, self._shown_layout = moment.n, moment.dim, moment.seen.layout
        self._ids, self._metadata, self._filters = moment._ids, moment._metadata, moment._filters
        segments = moment.seen.segments
        if segments:
            self._handle = segments[0].handle

    def _reader_moment(self) -> Moment:
        """What a call that begins now sees, also of an index that is as it was built."""
        live = self._live
        if live is None:
            raise AssertionError("only live data has moments")
        view = live.view()
        newest = self._newest
        if newest is None or newest.seen is not view:
            newest = self._newest = Moment(view, self._gate, weakref.WeakMethod(self.info))
        return newest

    def _moment(self) -> Moment | None:
        """What to search, where rows came or went."""
        if self._live is None:
            return None
        with self._gate:
            return self._reader_moment()

    def _view(self) -> None:
        """All rows live."""

    def _vertices_of(self, ids: Any) -> Any:
        return self._ids.vertices([ids] if isinstance(ids, str | int | np.integer) else ids)

    def _refreshed(self) -> bool:
        with self._refreshing:
            live = self._live
            if live is not None:
                changed = live.refresh()
                if changed != MOVED:
                    if changed:
                        self._show()
                    return bool(changed)
                known = live.segments
            else:
                if not is_live(self.path):
                    return False
                known = self._owned.segments
            fresh, segments = _begun(
                LiveData(self.path), self._how, {(one.name, one.uuid): one for one in known}, None, None
            )
            changed_any = live is not None or fresh.info().sequence > 0
            self._own(fresh)  # the former one is closed once nobody looks at it any more
            self._owned.segments = tuple(segments)
            return bool(changed_any)

    # ---- metadata ----

    def set_metadata(self, table: Any, *, ids_column: str | None = None) -> None:
        """Put other metadata in the place of what the index has, without touching pages or graph.

        The change is atomic: a process killed meanwhile leaves the old metadata. Searches of this index that
        have begun go on with the old one; other open indexes of the same folder keep it until they are opened
        again.

        Parameters
        ----------
        table : pyarrow.Table, RecordBatch, pandas.DataFrame, mapping of columns, or path
            One row a vector.
        ids_column : str, optional
            The column that says by id which vector a row belongs to; it becomes no metadata. Without it rows
            are in the order in which the vectors were given to :func:`velo.build`.

        Raises
        ------
        InvalidArgumentError
            Another number of rows, or a column that cannot be stored.
        UnknownColumnError, UnknownIdError, DuplicateIdError
            Of `ids_column`.
        BusyError
            The metadata of this index is being changed already.

        Examples
        --------
        >>> with velo.open("shop.velo") as index:
        ...     index.set_metadata({"color": ["red", "blue"] * 1_000})
        ...     index.search(query, k=1, filter={"color": "red"}, return_metadata=True).metadata.to_pylist()
        [{'color': 'red'}]
        """
        self._change_metadata(table, ids_column=ids_column)

    def add_columns(self, table: Any, *, ids_column: str | None = None, overwrite: bool = False) -> None:
        """Add columns to the metadata, atomically as :meth:`set_metadata`.

        Parameters
        ----------
        table, ids_column :
            As for :meth:`set_metadata`.
        overwrite : bool
            Columns of the same name take the place of those that are there; refused without it.

        Raises
        ------
        InvalidArgumentError
            Also where the index has a column of that name.
        UnknownColumnError, UnknownIdError, DuplicateIdError, BusyError

        Examples
        --------
        >>> with velo.open("shop.velo") as index:
        ...     index.add_columns({"color": ["red", "blue"] * 1_000})
        ...     index.info()["columns"]
        ['label', 'price', 'brand', 'tags', 'color']
        """
        self._change_metadata(table, ids_column=ids_column, keep=True, overwrite=overwrite)

    def _change_metadata(self, table: Any, **how: Any) -> None:
        with self._gate:
            if self._live is not None:
                raise UnsupportedError(
                    f"{self.path} is open to write, or has rows that were deleted: "
                    "its metadata cannot be exchanged"
                )
            change_metadata(self.path, table, self.n, self._ids, **how)
            segment = self._owned.segments[0]
            segment.load_metadata()
            self._take(segment)

    # ---- the rest ----

    def get_vectors(self, ids: Any) -> Float32Array:
        """The stored vectors of some ids.

        Parameters
        ----------
        ids : array-like of shape (m,)

        Returns
        -------
        ndarray of shape (m, dim), float32
            In the space of the input.

        Raises
        ------
        UnknownIdError
        UnsupportedError
            The index was built without ``store_vectors=True``.

        Examples
        --------
        >>> index.get_vectors([3, 5]).shape
        (2, 32)
        """
        moment = self._moment()
        with self._gate:
            if moment is not None:
                return moment.seen.vectors(moment.vertices(ids))
            return self._owned.segments[0].vectors(self._vertices_of(ids))

    def verify(self) -> int:
        """Read every file whole and check every checksum, page and link.

        Returns
        -------
        int
            How many pages were checked.

        Raises
        ------
        CorruptIndexError
            A file is damaged. The message names it, and the page.
        """
        with self._gate:
            return verify_folder(self.path)

    def _segments(self) -> tuple[Segment, ...]:
        live = self._live
        return self._owned.segments if live is None else live.segments

    def info(self) -> dict[str, Any]:
        """What this index is and what it costs.

        Returns
        -------
        dict
            Among others ``n``, ``dim``, ``metric``, ``plan``, ``memory_bytes`` (by part), of them
            ``memory_within_budget_bytes`` (what a budget bounds: codes, links, cache, page directory) and
            ``memory_beside_budget_bytes`` (workers, filters and tombstones), ``disk_bytes`` (by file),
            ``column_bytes`` (mapped from the file as far as filters touch them), ``device``, and ``live``:
            what was changed since it was built, None where nothing was.

        Examples
        --------
        >>> info = index.info()
        >>> info["n"], info["dim"], info["metric"], info["columns"]
        (2000, 32, 'l2', ['label', 'price', 'brand', 'tags'])
        """
        with self._gate:
            if self._live is not None:
                self._show()
            segments = self._segments()
            infos = [segment.info() for segment in segments]
        # What parts may differ in is told of the largest.
        info = max(infos, key=lambda one: int(one.n)) if infos else _native.new("velo_index_info")
        memory = {
            "codes": sum(int(one.memory_codes_bytes) for one in infos),
            "links": sum(int(one.memory_links_bytes) for one in infos),
            "cache": sum(int(one.memory_cache_bytes) for one in infos),
            "pages": sum(int(one.memory_pages_bytes) for one in infos),
            "workers": sum(int(one.memory_workers_bytes) for one in infos),
            "filters": self._filters.memory_bytes,
        }
        if self._live is not None:
            with self._gate:
                memory["live"] = self._live.memory_bytes
        return {
            "path": str(self.path),
            "uuid": _native.text(info.uuid),
            "n": self.n,
            "dim": self.dim,
            "metric": self.metric,
            "dtype": self._dtype_name(info),
            "ids": self._ids.kind,
            "columns": [] if self._metadata is None else list(self._metadata.column_names),
            "column_bytes": {} if self._metadata is None else self._metadata.bytes_by_column,
            "memory_bits": int(info.memory_bits),
            "record_bits": int(info.record_bits),
            "degree": int(info.degree),
            "links_built": int(info.links_built),
            "links_kept": int(info.links_kept),
            "page_size": int(info.page_size),
            "page_count": sum(int(one.page_count) for one in infos),
            "records_per_page": float(info.records_per_page),
            "page_links": bool(info.page_links),
            "edges_per_vertex": float(info.edges_per_vertex),
            "adjacency_bits_per_edge": float(info.adjacency_bits_per_edge),
            "plan": _PLANS.get(info.plan, "unknown") if infos else "scan",
            "threads": int(info.threads),
            "queries_in_flight": int(info.queries_in_flight),
            "stores_vectors": all(segment.stores_vectors for segment in segments),
            "memory_bytes": memory,
            "memory_bytes_total": sum(memory.values()),
            "memory_within_budget_bytes": sum(memory[part] for part in BUDGETED),
            "memory_beside_budget_bytes": sum(memory.values()) - sum(memory[part] for part in BUDGETED),
            "memory_budget_bytes": sum(int(one.memory_budget_bytes) for one in infos) or None,
            "disk_bytes": _disk_bytes(self.path),
            "live": self._live_info(),
            "device": device_dict(info.device),
        }

    def _live_info(self) -> dict[str, Any] | None:
        live = self._live
        if live is None:
            return None
        with self._gate:
            info = live.info()
            view = self._reader_moment().seen
            parts = [
                {
                    "path": segment.name or PART_FIRST,
                    "n": segment.n,
                    "dead": 0 if alive.rows is None else segment.n - alive.rows.count(),
                    "bytes": sum(_disk_bytes(segment.folder).values()) if segment.name else None,
                }
                for segment, alive in zip(view.segments, view.alive, strict=True)
            ]
        return {
            "writable": bool(info.is_writable),
            "durability": live.durability,
            "numbered": live.shape().id_kind == ROW,
            "sequence": int(info.sequence),
            "dead": int(info.dead_rows) + int(info.delta_dead_rows),
            "parts": parts,
            "delta": {
                "n": int(info.delta_rows),
                "dead": int(info.delta_dead_rows),
                "bytes": int(info.delta_bytes),
                "bytes_max": int(info.delta_bytes_max),
            },
            "pressure": min(1.0, int(info.delta_bytes) / max(1, int(info.delta_bytes_max))),
            "fold_failure": None
            if self._folds is None or self._folds.failure is None
            else str(self._folds.failure),
            "log_bytes": int(info.log_bytes),
            "log_durable_bytes": int(info.log_synced_bytes),
        }

    def _dtype_name(self, info: Any) -> str:
        live = self._live
        if live is None:
            return _DTYPE_NAMES.get(info.dtype, "unknown")
        return str(live.shape().dtype)

    def close(self) -> None:
        """Stop the workers and give memory and files back; twice is once. Searches under way end first.

        In a forked child this does nothing: the index is its parent's.
        """
        self._finalizer()

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._gate.closed

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """Rows that live."""
        live = self._live
        if live is None:
            return self.n
        with self._gate:
            return self._reader_moment().seen.live_count

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._reopen,)

    def __repr__(self) -> str:
        state = ", closed" if self._gate.closed else ""
        return f"velo.Index({str(self.path)!r}, n={self.n}, dim={self.dim}, metric={self.metric!r}{state})"


def _reopened(reopen: partial[Index]) -> Index:
    return reopen()


def _disk_bytes(folder: Path) -> dict[str, int]:
    files = (entry for entry in sorted(folder.rglob("*")) if entry.is_file())
    return {str(entry.relative_to(folder)): entry.stat().st_size for entry in files}


def device_dict(device: Any) -> Mapping[str, Any]:
    """A ``velo_device_info`` as a dict."""
    return {
        "name": _native.text(device.name),
        "io": _IO_NAMES.get(device.io, "unknown"),
        "direct": bool(device.direct),
        "queue_depth": int(device.queue_depth),
        "uring_errno": int(device.uring_errno),
        "direct_errno": int(device.direct_errno),
        "reason": _native.text(device.reason),
        "advice": _native.text(device.advice),
    }
