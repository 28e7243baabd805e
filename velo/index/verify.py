"""Read all files of an index and check them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from velo import _native
from velo.folder.ids import Ids
from velo.folder.live import is_live
from velo.folder.manifest import read_manifest
from velo.folder.metadata import open_metadata
from velo.folder.moment import at_one_moment
from velo.folder.opened import OpenedFolder
from velo.folder.paths import check_is_folder
from velo.index.folder import begin_with, close_all
from velo.options import folder_path
from velo.parts.data import LiveData
from velo.parts.part import lock_part, unlock_part
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
    folder = folder_path(path)
    return at_one_moment(folder, partial(_verify, folder))


def _verify(folder: Path) -> int:
    check_is_folder(folder)
    pages = _native.ffi.new("uint64_t *")
    _native.check(_native.lib.velo_verify(bytes(folder), pages), "path")
    # What the library does not read: ids and metadata.
    opened = OpenedFolder(folder)
    if not is_live(opened.at):
        _CheckedPart(opened.at)
        return int(pages[0])
    live, parts = begin_with(LiveData(opened), _check_part)
    try:
        # The sums of the log say that its rows were written, not that they are sound.
        live.check_delta()
    finally:
        close_all(parts, live)
    return int(pages[0])


class _CheckedPart:
    """Ids and metadata of a part, read whole: as much of it as tells which of its rows are dead."""

    def __init__(self, folder: Path, name: str = "") -> None:
        self.name = name
        self._lock = [lock_part(folder)] if name else []
        try:
            manifest = read_manifest(folder)
            self.n = manifest.row_count
            self.ids = Ids(folder, self.n, manifest.first_row)
            self.ids.rows()
            self.metadata = open_metadata(folder, self.n)
            if self.metadata is not None:
                _ = self.metadata.native_columns, self.metadata.statistics
                check_words(folder)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        unlock_part(self._lock)


def _check_part(folder: Path, name: str, *_: object) -> _CheckedPart:
    return _CheckedPart(folder, name)
