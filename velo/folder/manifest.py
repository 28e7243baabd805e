"""The manifests of an index, ``manifest.json`` and ``live.json``, read here alone; checks of paths."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from velo.errors import (
    CorruptIndexError,
    IndexExistsError,
    InvalidArgumentError,
    NotAnIndexError,
    UnsupportedError,
)
from velo.folder.stored import load_json, read_failure


def check_is_folder(folder: Path) -> None:
    """Refuse to read an index where there is no folder, with NotAnIndexError.

    If the system does not allow the test, a later call reports why.
    """
    try:
        if folder.is_dir():
            return
    except OSError:
        return
    file = _file_in(folder)
    what = "is a file, and an index is a folder" if file == folder else "does not exist"
    if file is not None and file != folder:
        what += f": {file} is a file"
    hint = "velo.build(path, vectors) makes an index"
    raise NotAnIndexError(f"{folder} {what}; {hint}", argument="path")


def check_is_no_file(target: Path) -> None:
    """Refuse to make an index where a file is in the way, or where the parent folder is missing."""
    try:
        if target.is_dir() or (target.parent.is_dir() and not target.exists()):
            return
    except (OSError, ValueError):
        return
    file = _file_in(target)
    if file == target:
        raise IndexExistsError(f"{target} is a file, and an index is a folder", argument="path")
    why = "its parent folder does not exist" if file is None else f"{file} is a file"
    raise InvalidArgumentError(f"cannot create {target}: {why}", argument="path")


def _file_in(path: Path) -> Path | None:
    """The file that a path leads to or through, such as "notes.txt" in "notes.txt/shop.velo"."""
    return next((place for place in (path, *path.parents) if place.is_file()), None)


FOLDER_MANIFEST_FILE: Final = "live.json"
MANIFEST_FILE: Final = "manifest.json"
#: Beside the folders of shards instead.
COLLECTION_FILE: Final = "collection.json"
#: Beside the files that a segment's manifest names, once the index was written to (zig/src/live/find.zig).
_FIND_FILE: Final = "ids.find"


@dataclass(frozen=True, slots=True)
class NamedSegment:
    """A segment as the manifest of its index names it.

    `path`: Of its files, within the folder of the index.
    `deleted`: The file with its deleted rows, if there are any.
    """

    path: str
    uuid: str = ""
    deleted: str | None = None


@dataclass(frozen=True, slots=True)
class FolderManifest:
    """The manifest of an index: its segments and its log.

    A build leaves one segment, whose files are in the folder of the index itself, and neither ``live.json``
    nor a log: the first write adds them. This class describes both forms.

    `text`: The content of ``live.json``; None before the first write.
    `built`: The uuid of the segment that was built; "" before the first write, and if the index began empty.
    """

    segments: tuple[NamedSegment, ...] = (NamedSegment("."),)
    built: str = ""
    log: str = ""
    text: bytes | None = None

    @property
    def built_segment(self) -> NamedSegment | None:
        """The segment that was built; None if the index began empty, or since a merge replaced it."""
        return next((one for one in self.segments if one.uuid == self.built), None)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that never change, without those that the manifests of segments name."""
        if self.text is None:
            return ()
        deleted = (one.deleted for one in self.segments if one.deleted is not None)
        return (*(f"{one.path}/{_FIND_FILE}" for one in self.segments), *deleted)


def manifest_path(folder: Path) -> Path:
    """The file that describes an index: ``live.json``, or ``manifest.json`` before the first write."""
    path = folder / FOLDER_MANIFEST_FILE
    return path if path.is_file() else folder / MANIFEST_FILE


def read_folder_manifest(folder: Path) -> FolderManifest:
    """The segments and the log of an index."""
    check_is_folder(folder)
    path = manifest_path(folder)
    if path.name != FOLDER_MANIFEST_FILE:
        return FolderManifest()
    try:
        text = path.read_bytes()
        document = json.loads(text)
        manifest = FolderManifest(
            tuple(
                NamedSegment(
                    str(one["path"]), str(one.get("uuid", "")), str(one["dead"]) if one.get("dead") else None
                )
                for one in document["parts"]
            ),
            str(document.get("built", "")),
            str(document["first_log"]),
            text,
        )
    except OSError as error:
        raise read_failure(error, FOLDER_MANIFEST_FILE) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptIndexError(
            f"{FOLDER_MANIFEST_FILE} cannot be read: {error}", file=FOLDER_MANIFEST_FILE
        ) from error
    deleted = (one.deleted for one in manifest.segments if one.deleted is not None)
    for name in (*(one.path for one in manifest.segments), *deleted, manifest.log):
        if Path(name).name != name:
            raise CorruptIndexError(
                f"{FOLDER_MANIFEST_FILE} names a file outside: {name!r}", file=FOLDER_MANIFEST_FILE
            )
    return manifest


def data_folders(folder: Path) -> list[Path]:
    """The folders with the files of an index, one for each segment."""
    return [folder / one.path for one in read_folder_manifest(folder).segments]


def data_folder(folder: Path) -> Path:
    """The folder with the files of an index of one segment."""
    folders = data_folders(folder)
    if len(folders) == 1:
        return folders[0]
    raise UnsupportedError(f"{folder} has {len(folders)} parts: optimize it first, so that it has one")


#: Rows of a whole input, and generations of metadata, are not more.
_COUNT_MAX: Final = 2**62


@dataclass(frozen=True, slots=True)
class Manifest:
    """The members of a manifest that Python needs; the library checks all of it when it opens the index.

    `user`: Entries of this package: the kind of ids, the first row, the metadata's generation.
    """

    row_count: int
    dim: int
    metric: str
    memory_bits: int
    record_bits: int
    page_count: int
    files: tuple[str, ...]
    user: dict[str, Any]
    calibration: dict[str, Any] | None

    @property
    def first_row(self) -> int:
        """The row of the whole input at which this index begins, where it is a shard."""
        return _count(self.user, "first_row", 0)

    @property
    def is_interim(self) -> bool:
        """Whether it was built to be searched beside a larger segment: with less effort, not calibrated."""
        return bool(self.user.get("interim"))

    @property
    def generation(self) -> int:
        """The number of the metadata's generation, where there is metadata."""
        return _count(self.user.get("metadata") or {}, "generation", 1)


def _count(holder: dict[str, Any], name: str, least: int) -> int:
    """A number that begins with `least`, which is what it is where nothing is said."""
    value = holder.get(name, least)
    if type(value) is not int or not least <= value <= _COUNT_MAX:
        raise ValueError(f"{name} is {str(value)[:40]}")
    return value


def read_manifest(folder: Path) -> Manifest:
    try:
        document = load_json(folder / MANIFEST_FILE)
        manifest = Manifest(
            row_count=int(document["n"]),
            dim=int(document["dim"]),
            metric=str(document["metric"]),
            memory_bits=int(document["memory_bits"]),
            record_bits=int(document["record_bits"]),
            page_count=int(document["page_count"]),
            files=tuple(entry["name"] for entry in document["files"]),
            user=dict(document.get("user") or {}),
            calibration=dict(document["calibration"]) if document.get("calibration") else None,
        )
        # Checked here, so that readers get numbers.
        _ = manifest.first_row, manifest.generation
    except FileNotFoundError as error:
        raise NotAnIndexError(f"{folder} is no index: it has no {MANIFEST_FILE}", argument="path") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CorruptIndexError(f"{MANIFEST_FILE} cannot be read: {error}", file=MANIFEST_FILE) from error
    return manifest
