"""The file with the full-text index of a segment: opened, and made again if it is missing or damaged."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from velo.errors import CorruptIndexError, NoSpaceError, PermissionDeniedError, RebuiltWarning
from velo.folder.manifest import read_folder_manifest, read_manifest
from velo.folder.metadata import MetadataStore, generation_in, open_metadata, words_name
from velo.folder.shards import built_uuid
from velo.folder.text_column import text_column_of
from velo.fulltext.file import Texts, Words, check_sum, write_words


def texts_of(store: Any, column: str) -> Texts:
    """The texts of the rows of some columns (:class:`velo.folder.metadata.MetadataStore` or its like)."""

    def texts(start: int, end: int) -> Sequence[str | None]:
        rows = store.storage_rows(np.arange(start, end), [column])
        found: Sequence[str | None] = rows.column(0).to_pylist()
        return found

    return texts


def _stamp(folder: Path, store: MetadataStore, column: str) -> str:
    return f"{built_uuid(folder)} {store.generation} {column}"


def make_words(folder: Path) -> None:
    """Write the full-text index of a complete index, if it has a text column."""
    store = open_metadata(folder, read_manifest(folder).row_count)
    column = None if store is None else text_column_of(store.schema)
    if store is None or column is None:
        return
    path = folder / words_name(store.generation)
    write_words(path, texts_of(store, column), store.row_count, _stamp(folder, store, column))


def open_words(folder: Path, store: MetadataStore, column: str) -> Words:
    """The full-text index of a segment, made from its rows if the file is missing or damaged.

    If the folder cannot take the file, it is made for this process alone.
    """
    path, stamp = folder / words_name(store.generation), _stamp(folder, store, column)
    try:
        return Words.opened(path, stamp)
    except FileNotFoundError:
        pass
    except CorruptIndexError as error:
        warnings.warn(
            f"{error.message}: the full-text index of column {column!r} is rebuilt from the rows",
            RebuiltWarning,
            2,
        )
    texts = texts_of(store, column)
    try:
        write_words(path, texts, store.row_count, stamp)
        return Words.opened(path, stamp)
    except (FileNotFoundError, CorruptIndexError, PermissionDeniedError, NoSpaceError):
        # The folder takes no file, or is taken away just now.
        return Words.beside(texts, store.row_count, stamp)


class OpenWords:
    """The full-text index of a segment, with the metadata that it was opened from."""

    def __init__(self, folder: Path, store: MetadataStore, column: str) -> None:
        self.store, self.column = store, column
        self.words = open_words(folder, store, column)

    @property
    def damaged(self) -> bool:
        """Whether damage was found while reading."""
        return self.words.damaged


def check_words(folder: Path) -> None:
    """Verify the file with an index's full-text index, if it has one."""
    generation = generation_in(folder)
    if generation:
        with contextlib.suppress(FileNotFoundError):
            check_sum(folder / words_name(generation))


def settle_words(folder: Path) -> None:
    """Move the full-text index into the segment that an index became with its first write, or remove it."""
    built = read_folder_manifest(folder).built_segment
    home = None if built is None else folder / built.path
    if home == folder:
        return
    with contextlib.suppress(OSError):
        for path in folder.glob("columns*.words"):
            if home is not None and not (home / path.name).exists():
                os.rename(path, home / path.name)
            else:
                path.unlink()
