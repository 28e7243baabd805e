"""Tables of LanceDB in a local folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from velo.errors import FormatError, InvalidArgumentError, MissingDependencyError, UnsupportedError
from velo.importing.files import ROWS, Asked, Batch, ForeignIndex, metric_of

_ENDING: Final = ".lance"
_METRICS: Final = {"l2": "l2", "cosine": "cosine", "dot": "ip"}


def open_lancedb(asked: Asked) -> ForeignIndex:
    """Open a table in its present state; its other columns keep their types.

    A table does not name its metric, but an index of it does.
    """
    try:
        import lancedb
    except ImportError as error:
        raise MissingDependencyError("tables of LanceDB need lancedb: pip install lancedb") from error
    folder, name = _table_of(asked)
    try:
        table = lancedb.connect(folder).open_table(name)
        schema = table.schema
    except (OSError, RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise FormatError(f"{asked.source}: LanceDB cannot open {name}: {said}", file=asked.source) from error
    vector, dim = _vectors_of(schema, asked)
    if asked.ids_column is not None:
        _check_ids(schema, asked.ids_column)
    metric = metric_of(asked, _told(table, vector, asked))
    others = [one for one in schema if one.name not in (vector, asked.ids_column)]
    # A scan returns the location of a blob, which has another type.
    scanned = table.search().output_schema()
    blobs = [one.name for one in others if one.type != scanned.field(one.name).type]
    kept = pa.schema([(one.name, one.type) for one in others if one.name not in blobs])
    notes = (f"columns of blobs are left out: {', '.join(blobs)}",) if blobs else ()
    rows = _Rows(table, vector, asked.ids_column, kept)
    return ForeignIndex(dim, metric, rows.batches(), kept if len(kept) else None, notes)


def _table_of(asked: Asked) -> tuple[Path, str]:
    """The folder of the database, and the name of the table."""
    path = Path(asked.source)
    if path.suffix == _ENDING and path.is_dir():
        folder, there = path.parent, [path.stem]
    else:
        folder, there = path, sorted(one.stem for one in path.glob(f"*{_ENDING}") if one.is_dir())
    if not there:
        raise FormatError(f"{path} is neither a table of LanceDB nor a folder of them", file=str(path))
    name = asked.collection
    if name is None and len(there) == 1:
        name = there[0]
    if name not in there:
        raise InvalidArgumentError(f"say which table; there are: {', '.join(there)}", argument="collection")
    return folder, name


def _vectors_of(schema: Any, asked: Asked) -> tuple[str, int]:
    """Name and dimensions of the column of vectors that was asked for."""
    there = {one.name: one.type.list_size for one in schema if _are_vectors(one.type)}
    name = asked.vector
    if name is None and len(there) == 1:
        (name,) = there
    if name is None or name not in there:
        names = ", ".join(there) or "none"
        raise InvalidArgumentError(f"say which column of vectors; there are: {names}", argument="vector")
    return name, there[name]


def _are_vectors(kind: Any) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type))


def _check_ids(schema: Any, name: str) -> None:
    if name not in schema.names:
        there = ", ".join(schema.names)
        raise InvalidArgumentError(f"there is no column {name!r}; there are: {there}", argument="ids_column")
    kind = schema.field(name).type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InvalidArgumentError(
            f"ids are integers or strings, and the column {name!r} is of {kind}", argument="ids_column"
        )


def _told(table: Any, vector: str, asked: Asked) -> str | None:
    """The metric of an index of the vectors; None: there is no index."""
    for index in table.list_indices():
        if list(index.columns) != [vector]:
            continue
        distance = table.index_stats(index.name).distance_type
        if distance not in _METRICS:
            raise UnsupportedError(f"{asked.source} compares {vector} by {distance}, which velo does not")
        return _METRICS[distance]
    return None


class _Rows:
    """The rows of a table that were not deleted, in the order in which LanceDB scans them."""

    def __init__(self, table: Any, vector: str, ids_column: str | None, schema: Any) -> None:
        self._table = table
        self._vector = vector
        self._ids_column = ids_column
        self._schema = schema

    def batches(self) -> Iterator[Batch]:
        """Yield ids, vectors and columns."""
        names = [self._vector, *self._schema.names]
        if self._ids_column is not None:
            names.append(self._ids_column)
        start = 0
        for rows in _together(self._table.search().select(names).to_batches(batch_size=ROWS)):
            ids = np.arange(start, start + len(rows)) if self._ids_column is None else self._ids_of(rows)
            columns = rows.select(self._schema.names) if len(self._schema) else None
            yield ids, self._vectors_of(rows), columns
            start += len(rows)

    def _ids_of(self, rows: Any) -> Any:
        ids = rows[self._ids_column]
        if ids.null_count:
            raise UnsupportedError(f"a row has no {self._ids_column}, and a row of velo has an id")
        return ids.to_numpy() if pa.types.is_integer(ids.type) else ids.to_pylist()

    def _vectors_of(self, rows: Any) -> Any:
        vectors = rows[self._vector]
        if vectors.null_count:
            raise UnsupportedError(f"a row has no {self._vector}, and a row of velo has a vector")
        flat = pa.chunked_array([one.flatten() for one in vectors.chunks], vectors.type.value_type)
        return np.asarray(flat.to_numpy(), np.float32).reshape(len(rows), -1)


def _together(batches: Any) -> Iterator[Any]:
    """Yield tables of about as many rows as are read at once: each append to a table makes a batch."""
    waiting: list[Any] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= ROWS:
            yield pa.Table.from_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)
