"""Ray Data: a dataset becomes an index, or rows of one, and an index becomes a dataset."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import velo
from velo.errors import EmptyError, InvalidArgumentError, VeloError
from velo_serving.catalog.collection import read_collection
from velo_serving.on_ray.actors import ray
from velo_serving.protocol.types import Failure

Mode = Literal["create", "upsert"]

#: Rows that are written, or brought, at once.
BATCH_ROWS: Final = 4096


def write_velo(
    dataset: Any,
    path: str | Path,
    *,
    id_column: str | None = None,
    vector_column: str = "vector",
    mode: Mode = "create",
    ray_remote_args: Mapping[str, Any] | None = None,
    **options: Any,
) -> int:
    """Make an index of a dataset, or write its rows to an index; other columns are metadata.

    One Ray task receives the dataset in batches, on the node of `path`.

    Parameters
    ----------
    dataset : ray.data.Dataset
    path : path
        With ``"create"`` the folder to make, which appears when it is complete; with ``"upsert"`` an index
        that no other process writes to.
    id_column : str, optional
        The column of ids. Without it ``"create"`` numbers the rows.
    vector_column : str
        The column of the vectors: lists of numbers, or tensors.
    mode : {"create", "upsert"}
        ``"upsert"`` is atomic for each batch of some thousand rows. After a failure it can be repeated.
    ray_remote_args : mapping, optional
        Of that task, as in ``ray.remote``: ``{"resources": {"disk-a": 0.001}}`` chooses the node.
    **options
        As for ``velo.build``, or as for ``velo.open``.

    Returns
    -------
    int
        The number of written rows.

    Raises
    ------
    EmptyError, InvalidArgumentError, VeloError
        There are no rows, no such mode or column, or ``velo.build`` or ``Index.upsert`` fails.
    """
    if mode not in get_args(Mode):
        raise InvalidArgumentError(f"mode is 'create' or 'upsert', not {mode!r}", argument="mode")
    if mode == "upsert" and id_column is None:
        raise InvalidArgumentError("to upsert takes a column of ids", argument="id_column")
    # It waits for other tasks, which need the processor more.
    task: Any = ray.remote(_write).options(**{"num_cpus": 0, "max_retries": 0, **(ray_remote_args or {})})
    where = str(Path(path).absolute())
    done = ray.get(task.remote(dataset, where, id_column, vector_column, mode, options))
    if isinstance(done, Failure):
        raise done.to_error()
    return int(done)


def _write(
    dataset: Any, path: str, ids: str | None, vectors: str, mode: Mode, options: Mapping[str, Any]
) -> int | Failure:
    try:
        tables = _tables(dataset, ids, vectors)
        return (_create if mode == "create" else _upsert)(tables, path, ids, vectors, options)
    except VeloError as error:
        return Failure.of(error)


def _tables(dataset: Any, ids: str | None, vectors: str) -> Iterator[pa.Table]:
    for table in dataset.iter_batches(batch_size=BATCH_ROWS, batch_format="pyarrow"):
        for argument, name in (("id_column", ids), ("vector_column", vectors)):
            if name is not None and name not in table.column_names:
                raise InvalidArgumentError(
                    f"the dataset has no column {name!r}, only {', '.join(table.column_names)}",
                    argument=argument,
                )
        if table.num_rows:
            place = table.column_names.index(vectors)
            yield table.set_column(place, vectors, _lists(table.column(vectors)))


def _lists(column: Any) -> Any:
    """Vectors as a column of lists that the library reads; tensors of Ray's are a type of its own."""
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    rows: Any = np.concatenate([chunk.to_numpy(zero_copy_only=False) for chunk in column.chunks])
    if rows.dtype == object or rows.ndim != 2:
        raise InvalidArgumentError("tensors of the dataset are no vectors of one length", argument="vectors")
    flat = rows.astype(np.float32) if rows.dtype == np.float64 else rows
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), rows.shape[1])


def _create(
    tables: Iterator[pa.Table], path: str, ids: str | None, vectors: str, options: Mapping[str, Any]
) -> int:
    """Build through a Parquet file beside the index: a build reads its vectors twice."""
    beside = tempfile.mkdtemp(prefix=".velo-write-", dir=Path(path).parent)
    try:
        file = Path(beside) / "rows.parquet"
        first = next(tables, None)
        if first is None:
            raise EmptyError("the dataset has no row to make an index of")
        count = first.num_rows
        with parquet.ParquetWriter(file, first.schema) as writer:
            writer.write_table(first)
            for table in tables:
                writer.write_table(table.cast(first.schema))
                count += table.num_rows
        others = set(first.column_names) - {ids, vectors}
        velo.build(
            path, file, column=vectors, ids_column=ids, metadata=bool(others) or None, **options
        ).close()
        return count
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _upsert(
    tables: Iterator[pa.Table], path: str, ids: str | None, vectors: str, options: Mapping[str, Any]
) -> int:
    count = 0
    with velo.open(path, writable=True, **options) as index:
        for table in tables:
            others = set(table.column_names) - {ids, vectors}
            index.upsert(table, column=vectors, ids_column=ids, metadata=bool(others) or None)
            count += table.num_rows
    return count


def read_velo(
    path: str | Path,
    *,
    columns: Sequence[str] | bool = True,
    vector_column: str | None = "vector",
    filter: Any = None,  # noqa: A002 - as in velo.Index.rows
    compute: Any = None,
    ray_remote_args: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Make a dataset of the rows of an index or a collection, with a task for each shard.

    Parameters
    ----------
    path : path
        Visible to every node of a task.
    columns : sequence of str, or bool
        Of the metadata; all of them with True.
    vector_column : str, optional
        The name of the column of stored vectors; None leaves it out.
    filter : dict or str, optional
    compute : ray.data.TaskPoolStrategy, optional
        How many tasks run at once.
    ray_remote_args : mapping, optional
        Of each task, as in ``ray.remote``.
    **options
        As for ``velo.open``.

    Returns
    -------
    ray.data.Dataset
        ``id``, the columns, the vectors; it is lazy.
    """
    folder = Path(path).absolute()
    shards = [{"shard": str(entry.path)} for entry in read_collection(folder).shards]
    names = list(columns) if not isinstance(columns, bool) else columns
    asked = {"columns": names, "vectors": vector_column, "condition": filter, "options": options}
    data: Any = ray.data
    return data.from_items(shards, override_num_blocks=len(shards)).map_batches(
        _rows,
        fn_kwargs=asked,
        batch_size=1,
        batch_format="pyarrow",
        compute=compute,
        **(ray_remote_args or {}),
    )


def _rows(
    batch: pa.Table,
    *,
    columns: list[str] | bool,
    vectors: str | None,
    condition: Any,
    options: Mapping[str, Any],
) -> Iterator[pa.Table]:
    shards: list[Any] = batch.column("shard").to_pylist()
    for shard in shards:
        with velo.open(shard, **options) as index:
            after = None
            while True:
                table = index.rows(condition, limit=BATCH_ROWS, after=after, columns=columns)
                full = table.num_rows == BATCH_ROWS
                after = table["id"][-1] if full else None
                if vectors is not None:
                    rows = index.get_vectors(table["id"].combine_chunks())
                    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), index.dim)
                    table = table.append_column(vectors, lists)
                yield table
                if not full:
                    break
