"""The file of words of an index or a part: found, made where it is missing, made anew where it is damaged."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from velo.errors import CorruptIndexError, NoSpaceError, PermissionDeniedError, RebuiltWarning
from velo.folder.live import PART_FIRST, is_live
from velo.folder.manifest import read_manifest
from velo.folder.metadata import MetadataStore, generation_in, open_metadata, words_name
from velo.folder.shards import built_uuid
from velo.folder.text_column import text_column_of
from velo.words.file import Texts, Words, check_sum, write_words

__all__ = ["OpenWords", "check_words", "make_words", "open_words", "settle_words", "texts_of"]


def texts_of(store: Any, column: str) -> Texts:
    """The texts of the rows of some columns (:class:`velo.folder.metadata.MetadataStore` or its like)."""

    def texts(start: int, end: int) -> Sequence[str | None]:
        rows = store.undressed_rows(np.arange(start, end), [column])
        found: Sequence[str | None] = rows.column(0).to_pylist()
        return found

    return texts


def _stamp(folder: Path, store: MetadataStore, column: str) -> str:
    return f"{built_uuid(folder)} {store.generation} {column}"


def make_words(folder: Path) -> None:
    """Write the words of an index whose files are complete, where one of its columns holds text.

    Raises
    ------
    NoSpaceError, DeviceError, PermissionDeniedError, CorruptIndexError
    """
    store = open_metadata(folder, read_manifest(folder).row_count)
    column = None if store is None else text_column_of(store.schema)
    if store is None or column is None:
        return
    path = folder / words_name(store.generation)
    write_words(path, texts_of(store, column), store.row_count, _stamp(folder, store, column))


def open_words(folder: Path, store: MetadataStore, column: str) -> Words:
    """The words of a part, made from its rows where their file is missing or damaged.

    Where the folder takes no file, or has no room for it, they are made for this process alone.

    Raises
    ------
    NoSpaceError, DeviceError, OutOfMemoryError
    """
    path, stamp = folder / words_name(store.generation), _stamp(folder, store, column)
    try:
        return Words.opened(path, stamp)
    except FileNotFoundError:
        pass
    except CorruptIndexError as error:
        warnings.warn(
            f"{error.message}: the words of column {column!r} are made anew from the rows", RebuiltWarning, 2
        )
    texts = texts_of(store, column)
    try:
        write_words(path, texts, store.row_count, stamp)
        return Words.opened(path, stamp)
    except (FileNotFoundError, CorruptIndexError, PermissionDeniedError, NoSpaceError):
        # The folder takes no file, or is taken away just now.
        return Words.beside(texts, store.row_count, stamp)


class OpenWords:
    """Words of a part, and what they were opened from."""

    def __init__(self, folder: Path, store: MetadataStore, column: str) -> None:
        self.store, self.column = store, column
        self.words = open_words(folder, store, column)

    @property
    def damaged(self) -> bool:
        """Whether they turned out to be damaged while they were read."""
        return self.words.damaged


def check_words(folder: Path) -> None:
    """Look at all of the file of words of an index, where it has one.

    Raises
    ------
    CorruptIndexError
    """
    generation = generation_in(folder)
    if generation:
        with contextlib.suppress(FileNotFoundError):
            check_sum(folder / words_name(generation))


def settle_words(folder: Path) -> None:
    """Put words into the part that an index became with its first write, or away where that part is gone."""
    if not is_live(folder):
        return
    with contextlib.suppress(OSError):
        for path in folder.glob("columns*.words"):
            if (folder / PART_FIRST).is_dir() and not (folder / PART_FIRST / path.name).exists():
                os.rename(path, folder / PART_FIRST / path.name)
            else:
                path.unlink()
