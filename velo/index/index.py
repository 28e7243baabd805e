"""An open index: what it holds, what a call that begins now sees, and its end."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from velo.errors import ClosedError, InvalidArgumentError, UnsupportedError
from velo.folder.exchange import change_metadata
from velo.folder.live import is_live
from velo.folder.manifest import MANIFEST_FILE
from velo.folder.opened import OpenedFolder, shown
from velo.hints import METHODS
from velo.index.inspection import Inspection
from velo.index.owned import Owned, begin, close_native
from velo.index.verbs import LiveVerbs
from velo.options import METRIC_CODES
from velo.parts.added import NewColumns
from velo.parts.data import MOVED, LiveData
from velo.parts.gate import Gate
from velo.parts.part import OpenOptions, Part
from velo.search.prepared import PreparedOptions
from velo.search.searches import Searches
from velo.search.view_searches import ViewSearches
from velo.types import AnyArray, MetricName
from velo.upkeep.folds import Folds

__all__ = ["Index"]

_METRICS: Final[dict[int, MetricName]] = {code: name for name, code in METRIC_CODES.items()}  # type: ignore[misc]


class Index(Inspection, Searches, LiveVerbs):
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
        folder: OpenedFolder,
        how: OpenOptions,
        reopen: partial[Index],
        parts: list[Part],
        live: LiveData | None,
    ) -> None:
        self.path: Path = folder.path
        self._folder = folder
        self._how = how
        self._reopen = reopen
        self._gate = Gate(str(folder.path))
        self._refreshing = threading.Lock()
        self._updating = threading.Lock()
        self._live: LiveData | None = None
        self._folds: Folds | None = None
        self._newest: ViewSearches | None = None
        self._owned = Owned(folder, parts)
        if live is None:
            self._take(parts[0])
            metric = parts[0].metric
        else:
            self._own(live)
            metric = int(live.info().metric)
            self.dim = live.shape().dim
        self.metric: MetricName = _METRICS[metric]
        self._finalizer = weakref.finalize(self, close_native, self._gate, self._owned)

    def _take(self, part: Part) -> None:
        """Searches are those of an index that is as it was built."""
        self.dim = part.dim
        self._single_shapes = ((self.dim,), (1, self.dim))
        self._handle, self._completions = part.handle, part.completions
        self._prepared = PreparedOptions(part)
        self._ids, self._metadata, self._filters = part.ids, part.metadata, part.filters

    def _own(self, live: LiveData) -> None:
        """Searches go by what the moment is."""
        self._owned.live = live
        if live.durability is not None:
            how = self._how

            def open_part(name: str, of_rows: int, beside: Part | None) -> Part:
                beside = next(iter(live.opened), beside)
                return Part(live.folder.at / name, how, of_rows, name, beside)

            folds = Folds(live, open_part, how.threads, how.merge_memory, how.memory)
            self._folds = self._owned.folds = folds
        self._live = live
        self._newest_searches()
        if self._folds is not None:
            self._folds.resume()

    @property
    def n(self) -> int:
        """Rows that were built, and that came since; dead ones among them."""
        if self._live is None:
            return self._owned.parts[0].n
        try:
            with self._gate.inside():
                return self._newest_searches().n
        except ClosedError:
            return 0 if self._newest is None else self._newest.n

    def _newest_searches(self) -> ViewSearches:
        """What a call that begins now sees, also of an index that is as it was built."""
        live = self._live
        if live is None:
            raise AssertionError("only live data has moments")
        view = live.view()
        newest = self._newest
        if newest is None or newest.seen is not view:
            newest = self._newest = ViewSearches(view, self._gate, weakref.WeakMethod(self.info))
        return newest

    def _seen(self) -> Searches:
        """What a call that begins now searches: itself, unless rows came or went."""
        if self._live is None:
            return self
        with self._gate.inside():
            return self._newest_searches()

    def _view(self) -> None:
        """All rows live."""

    def _vectors(self, vertices: AnyArray) -> AnyArray:
        return self._owned.parts[0].vectors(vertices)

    def _refreshed(self) -> bool:
        with self._refreshing:
            live = self._live
            if live is not None:
                changed = live.refresh()
                if changed != MOVED:
                    return bool(changed)
                known: Sequence[Part] = live.opened
            else:
                folder = self._folder.at
                if not is_live(folder):
                    if (folder / MANIFEST_FILE).is_file() or is_live(folder):
                        return False
                    raise UnsupportedError(f"{self.path} was replaced by another index: open it again")
                known = self._owned.parts
            fresh, parts = begin(
                LiveData(self._folder), self._how, {(one.name, one.uuid): one for one in known}, None
            )
            changed_any = live is not None or fresh.info().sequence > 0 or self._lacks_columns_of(fresh)
            self._own(fresh)  # the former one is closed once nobody looks at it any more
            self._owned.parts = tuple(parts)
            return bool(changed_any)

    def _lacks_columns_of(self, live: LiveData) -> bool:
        """Whether columns were added since this was opened, as it was built."""
        own = [] if self._metadata is None else self._metadata.column_names
        return live.schema is not None and live.schema.names != own

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

    def add_columns(self, columns: Any, *, ids_column: str | None = None, overwrite: bool = False) -> None:
        """Add columns to the metadata, also of an index that was written to.

        The change is atomic: a process killed meanwhile leaves all of them or none. Rows that are there get
        one value, or are missing in the column; no file of theirs is written anew. Rows that come from then
        on bring the new columns like all others.

        Parameters
        ----------
        columns : pyarrow.Schema, list of pyarrow.Field, or mapping of names
            A schema or fields: rows that are there are missing in them. In a mapping a column has a
            ``pyarrow.DataType``, in which they are missing, or one value, which all of them get: a plain one
            or a ``pyarrow.Scalar``, which says its type. An index that is as it was built, and not open to
            write, takes also a table with a row a vector, as :meth:`set_metadata` does.
        ids_column : str, optional
            Of such a table, as for :meth:`set_metadata`.
        overwrite : bool
            Columns of the same name take the place of those that are there; refused without it, and where
            rows were written: :meth:`update` changes them there.

        Raises
        ------
        InvalidArgumentError
            A name that is empty, twice, or there already; a type that cannot be stored; a column without
            nulls and without a value.
        ReadOnlyError
            Rows were written to the index, and it was opened without ``writable=True``.
        UnsupportedError
            A table for an index that is open to write or was written to: add its columns, then
            :meth:`update`.
        NoSpaceError, DeviceError
            As for :meth:`insert`.
        UnknownColumnError, UnknownIdError, DuplicateIdError, BusyError
            Of a table.

        Examples
        --------
        >>> import pyarrow as pa
        >>> with velo.open("shop.velo", writable=True) as index:
        ...     done = index.delete([17])
        ...     index.add_columns({"stock": 12, "color": pa.string()})
        ...     done = index.update([18], {"color": "red"})
        ...     print(index.get([18, 19], columns=["stock", "color"]).to_pylist())
        ...     print(index.count("color is null") == len(index) - 1)
        [{'id': 18, 'stock': 12, 'color': 'red'}, {'id': 19, 'stock': 12, 'color': None}]
        True
        """
        new = NewColumns.of(columns)
        if new is None:
            self._change_metadata(columns, ids_column=ids_column, keep=True, overwrite=overwrite)
            return
        if ids_column is not None:
            raise InvalidArgumentError(
                "ids_column goes with a table of a row a vector", argument="ids_column"
            )
        self._add_new(new, overwrite=overwrite)

    def _add_new(self, new: NewColumns, *, overwrite: bool) -> None:
        if self._live is not None:
            self._add_columns(new, overwrite=overwrite)
            return
        if not overwrite:
            new.check_new([] if self._metadata is None else self._metadata.column_names)
        self._change_metadata(new.table(self.n), keep=True, overwrite=overwrite)

    def _change_metadata(self, table: Any, **how: Any) -> None:
        with self._gate.inside():
            if self._live is not None:
                raise UnsupportedError(
                    f"{self.path} is open to write, or rows were written to it: its metadata cannot be "
                    "exchanged. add_columns takes types, or one value a column; update then changes rows"
                )
            change_metadata(self._folder.at, table, self.n, self._ids, **how)
            part = self._owned.parts[0]
            part.load_metadata()
            self._take(part)

    # ---- its end ----

    def close(self) -> None:
        """Stop the workers and give memory and files back; twice is once. Searches under way end first.

        Interrupted, it can be called again. In a forked child this does nothing: the index is its parent's.
        """
        close_native(self._gate, self._owned)
        self._finalizer.detach()

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
        with self._gate.inside():
            return self._newest_searches().seen.live_count

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._reopen,)

    def __repr__(self) -> str:
        rows, state = (self.n, ", closed") if self._gate.closed else (len(self), "")
        return f"velo.Index({shown(self.path)!r}, n={rows}, dim={self.dim}, metric={self.metric!r}{state})"


def _reopened(reopen: partial[Index]) -> Index:
    return reopen()
