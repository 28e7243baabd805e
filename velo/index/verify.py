"""Read all files of an index and check them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from velo import _native
from velo.folder.ids import Ids
from velo.folder.live import data_folders, is_live
from velo.folder.manifest import read_manifest
from velo.folder.metadata import MetadataStore, open_metadata
from velo.folder.opened import OpenedFolder
from velo.options import folder_path
from velo.parts.data import LiveData
from velo.types import PathLike
from velo.words.opening import check_words

__all__ = ["verify_folder"]


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
    parts = []
    for data in data_folders(folder):
        manifest = read_manifest(data)
        ids = Ids(data, manifest.row_count, manifest.first_row)
        ids.rows()
        store = open_metadata(data, manifest.row_count)
        if store is not None:
            _ = store.native_columns, store.statistics
            check_words(data)
        parts.append(_Part(data.name, manifest.row_count, ids, store))
    if is_live(folder):
        _check_delta(folder, parts)
    return int(pages[0])


@dataclass(frozen=True)
class _Part:
    """As much of a part as tells which of its rows are dead."""

    name: str
    n: int
    ids: Ids
    metadata: MetadataStore | None


def _check_delta(folder: Path, parts: list[_Part]) -> None:
    """Rows that no part holds: the sums of their log say that they were written, not that they are sound."""
    live = LiveData(OpenedFolder(folder))
    try:
        live.begin(cast(Any, parts))
        live.check_delta()
    finally:
        live.close()
