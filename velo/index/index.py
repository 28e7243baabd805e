"""An open index: its searches, its looks and its verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from velo.errors import InvalidArgumentError, UnsupportedError
from velo.folder.exchange import change_metadata
from velo.folder.moment import at_one_moment
from velo.hints import METHODS
from velo.index.inspection import Inspection
from velo.index.verbs import LiveVerbs
from velo.parts.added import NewColumns
from velo.words.opening import make_words

__all__ = ["Index"]


class Index(Inspection, LiveVerbs):
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
            at_one_moment(self._folder.at, part.load_metadata)  # another process may set metadata, too
            self._take(part)
            make_words(self._folder.at)
