"""Replacement of the metadata of a finished index: new files beside the old ones, then one rename.

A new generation of the metadata's files is written complete and synced; the manifest that names it replaces
the old one in a single rename; the old files are removed. Pages, links and codes are not touched. A process
killed before the rename leaves the old metadata, and files that the next replacement removes.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from velo import _native, errors
from velo.filters.arrow_values import one_array, valid_of
from velo.folder import metadata
from velo.folder.ids import Ids
from velo.folder.manifest import data_folder, read_folder_manifest, read_manifest
from velo.folder.replace import is_metadata, os_failure, read_consistently, without_writers
from velo.folder.text_column import kept_text_column
from velo.types import AnyArray, Int64Array

_PREFIX: Final = "columns."


def find_index(folder: Path) -> tuple[int, Ids]:
    """Read the row count and ids of an index without opening all of it."""

    def find() -> tuple[int, Ids]:
        data = data_folder(folder)
        manifest = read_manifest(data)
        return manifest.row_count, Ids(data, manifest.row_count, manifest.first_row)

    return read_consistently(folder, find)


def change_metadata(
    folder: Path,
    source: Any,
    row_count: int,
    ids: Ids,
    *,
    ids_column: str | None = None,
    keep: bool = False,
    overwrite: bool = False,
) -> None:
    """Write new metadata of an index and replace the old.

    `ids_column`: The column with the id of the vector that a row belongs to; not stored as metadata.
      Without it rows are in the order in which the vectors were built.
    """
    if read_folder_manifest(folder).text is not None:
        raise errors.UnsupportedError(
            f"{folder} has rows that came or went: its metadata cannot be exchanged"
        )
    with locked(folder):
        table, rows = _placed(source, row_count, ids, ids_column)
        arrays, schema = metadata.encoded_columns(table, rows), table.schema
        before = metadata.open_metadata(folder, row_count)
        if before is not None:
            if keep:
                arrays, schema = _joined(before, arrays, schema, overwrite)
            schema = kept_text_column(before.schema, schema)
        present = metadata.generation_in(folder)
        generation = max(1, present + 1)
        # Files left by a killed change may have the names written now; nothing refers to them.
        _remove_all_but(folder, present)
        try:
            names = metadata.write_batch(folder, arrays, schema, generation)
            _recommit(folder, names, generation)
        except OSError as error:
            if isinstance(error, errors.VeloError):
                raise
            raise os_failure(error, str(error.filename or folder)) from error
        finally:
            # The manifest says which files count.
            with contextlib.suppress(errors.VeloError, OSError):
                _remove_all_but(folder, metadata.generation_in(folder))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other changes; the system unlocks when a process dies."""
    if not folder.is_dir():
        raise errors.NotAnIndexError(f"{folder} is no index", argument="path")
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(without_writers(folder))
        except PermissionError as error:
            raise errors.PermissionDeniedError(f"{folder}: permission denied", file=str(folder)) from error
        except BlockingIOError:
            raise errors.BusyError(f"{folder} is being changed already") from None
        except OSError as error:
            raise errors.DeviceError(
                f"{folder} cannot be locked: {error.strerror}", file=str(folder)
            ) from error
        yield


def _placed(source: Any, row_count: int, ids: Ids, ids_column: str | None) -> tuple[Any, AnyArray]:
    """The table without its ids, and the row of the table for each vertex."""
    columns = metadata.given_metadata(source, row_count)
    table = columns.table()
    if ids_column is None:
        return table, ids.rows()
    if ids_column not in table.schema.names:
        raise errors.UnknownColumnError(f"the table has no column {ids_column!r}", argument="ids_column")
    column = table.column(ids_column)
    table = table.drop_columns([ids_column])
    if not table.schema.names:
        raise errors.InvalidArgumentError("metadata has no columns beside its ids", argument="metadata")
    return table, _rows_of(column, row_count, ids)


def _rows_of(column: Any, row_count: int, ids: Ids) -> Int64Array:
    """``rows[vertex]``: as many ids as vertices, each known, none twice, is a permutation."""
    if column.null_count:
        at = int(np.flatnonzero(~valid_of(one_array(column)))[0])
        raise errors.InvalidArgumentError(f"row {at} has no id", argument="ids_column", row=at)
    vertices = ids.find(column.combine_chunks(), "ids_column")
    unknown = np.flatnonzero(vertices < 0)
    if len(unknown):
        at = int(unknown[0])
        raise errors.UnknownIdError(
            f"no vector has the id {column[at].as_py()!r} of row {at}", argument="ids_column", row=at
        )
    rows = np.full(row_count, -1, np.int64)
    rows[vertices] = np.arange(row_count)
    doubled = np.flatnonzero(rows[vertices] != np.arange(row_count))
    if len(doubled):
        at = int(doubled[0])
        value = column[at].as_py()
        raise errors.DuplicateIdError(
            f"the id {value!r} of row {at} is a duplicate", argument="ids_column", row=at
        )
    return rows


def _joined(
    before: metadata.MetadataStore, arrays: list[Any], schema: Any, overwrite: bool
) -> tuple[list[Any], Any]:
    """The old columns in their order, those of the same name replaced, then the new ones."""
    fresh = dict(zip(schema.names, arrays, strict=True))
    shared = [name for name in before.column_names if name in fresh]
    if shared and not overwrite:
        raise errors.InvalidArgumentError(
            f"the index has a column {shared[0]!r} already; overwrite=True replaces it", argument="metadata"
        )
    joined, fields = [], []
    for field, stored in zip(before.schema, before.stored_columns, strict=True):
        exchanged = field.name in fresh
        joined.append(fresh[field.name] if exchanged else stored)
        fields.append(schema.field(field.name) if exchanged else field)
    for field in schema:
        if field.name not in shared:
            joined.append(fresh[field.name])
            fields.append(field)
    return joined, pa.schema(fields, before.schema.metadata)


def _recommit(folder: Path, names: list[str], generation: int) -> None:
    user = read_manifest(folder).user | {"metadata": {"generation": generation}}
    names_of_files = [_native.ffi.new("char[]", os.fsencode(name)) for name in names]
    pointers = _native.ffi.new("char *[]", names_of_files)
    _native.check(
        _native.lib.velo_index_recommit(
            os.fsencode(folder), _PREFIX.encode(), pointers, len(names_of_files), json.dumps(user).encode()
        ),
        "path",
    )


def _remove_all_but(folder: Path, generation: int) -> None:
    """Remove metadata files of every other generation, and those that were never finished."""
    own_names = (*metadata.file_names(generation), metadata.words_name(generation)) if generation else ()
    for entry in folder.iterdir():
        if is_metadata(entry.name) and entry.name not in own_names:
            with contextlib.suppress(FileNotFoundError):
                entry.unlink()
