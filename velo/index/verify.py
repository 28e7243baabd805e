"""Read all files of an index and check them."""

from __future__ import annotations

from velo import _native
from velo.folder.ids import Ids
from velo.folder.live import data_folders
from velo.folder.manifest import read_manifest
from velo.folder.metadata import open_metadata
from velo.options import folder_path
from velo.types import PathLike

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
    for data in data_folders(folder):
        manifest = read_manifest(data)
        Ids(data, manifest.row_count, manifest.first_row).rows()
        store = open_metadata(data, manifest.row_count)
        if store is not None:
            _ = store.native_columns, store.statistics
    return int(pages[0])
