"""Read all files of an index and check them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from velo import _native
from velo.folder.consistent import read_consistently
from velo.folder.ids import Ids
from velo.folder.live import is_live
from velo.folder.manifest import read_manifest
from velo.folder.metadata import open_metadata
from velo.folder.opened import OpenedFolder
from velo.folder.paths import check_is_folder
from velo.fulltext.opening import check_words
from velo.index.folder import begin_with, close_all
from velo.options import folder_path
from velo.segments.data import LiveData
from velo.segments.segment import lock_segment, unlock_segment
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
    folder = folder_path(path)
    return read_consistently(folder, partial(_verify, folder))


def _verify(folder: Path) -> int:
    check_is_folder(folder)
    pages = _native.ffi.new("uint64_t *")
    _native.check(_native.lib.velo_verify(bytes(folder), pages), "path")
    # What the library does not read: ids and metadata.
    opened = OpenedFolder(folder)
    if not is_live(opened.at):
        _CheckedSegment(opened.at)
        return int(pages[0])
    live, segments = begin_with(LiveData(opened), _check_segment)
    try:
        # The sums of the log say that its rows were written, not that they are sound.
        live.check_delta()
    finally:
        close_all(segments, live)
    return int(pages[0])


class _CheckedSegment:
    """Ids and metadata of a segment, read whole: as much of it as tells which of its rows are dead."""

    def __init__(self, folder: Path, name: str = "") -> None:
        self.name = name
        self._lock = [lock_segment(folder)] if name else []
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
        unlock_segment(self._lock)


def _check_segment(folder: Path, name: str, *_: object) -> _CheckedSegment:
    return _CheckedSegment(folder, name)
