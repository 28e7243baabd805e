"""Entries of ``collection.json``, and checks that a folder holds the shard it names."""

from __future__ import annotations

import contextlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np

from velo.errors import CorruptIndexError
from velo.folder.manifest import COLLECTION_FILE, MANIFEST_FILE, read_folder_manifest
from velo.folder.stored import load_json
from velo.types import Int64Array

#: The odd multiplier of Fibonacci hashing: 2^64 divided by the golden ratio.
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Shard:
    """An entry of ``collection.json``."""

    path: str
    rows: int
    dim: int
    uuid: str


def shards_of(folder: Path) -> list[Shard]:
    """The shards of a collection; CorruptIndexError if its file cannot be read."""
    try:
        document = json.loads((folder / COLLECTION_FILE).read_bytes())
        dim = int(document["dim"])
        found = [
            Shard(str(entry["path"]), int(entry["rows"]), dim, str(entry.get("uuid", "")))
            for entry in document["shards"]
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptIndexError(f"{COLLECTION_FILE} cannot be read: {error}", file=COLLECTION_FILE) from error
    if not found:
        raise CorruptIndexError(f"{COLLECTION_FILE} names no shards", file=COLLECTION_FILE)
    for one in found:
        if not is_within(one.path):
            raise CorruptIndexError(
                f"{COLLECTION_FILE} names a shard outside: {one.path!r}", file=COLLECTION_FILE
            )
    return found


def homes(ids: Any, shards: int, *, numbered: bool = False) -> Int64Array:
    """The shard for each new id (docs/decisions/0010).

    With `numbered` the index numbers its rows: then the numbers after those of another shard are taken.
    """
    if numbered:
        return np.full(len(ids), shards - 1, np.int64)
    if isinstance(ids, np.ndarray):
        with np.errstate(over="ignore"):
            mixed = (ids.astype(np.uint64) * _GOLDEN) >> np.uint64(32)
    else:
        mixed = np.array([zlib.crc32(one.encode()) for one in ids.to_pylist()], np.uint64)
    places: Int64Array = (mixed % np.uint64(shards)).astype(np.int64)
    return places


def is_within(path: str) -> bool:
    """Whether a shard's path leads to a folder within its collection's, as all do."""
    parts = PurePosixPath(path).parts
    return bool(parts) and "\0" not in path and parts[0] != "/" and ".." not in parts


def built_uuid(folder: Path) -> str:
    """The uuid of the index that was built in a folder, whatever was written and merged since; "" if it began
    empty.
    """
    try:
        manifest = read_folder_manifest(folder)
        if manifest.text is None:
            with contextlib.suppress(FileNotFoundError):
                return str(load_json(folder / MANIFEST_FILE)["uuid"])
            manifest = read_folder_manifest(folder)  # the first write came meanwhile
        if manifest.text is None:
            raise CorruptIndexError(f"{MANIFEST_FILE} is missing from the index", file=MANIFEST_FILE)
        return manifest.built
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptIndexError(
            f"{folder} does not say which index it holds: {error}", file=str(folder)
        ) from error


def check_shard(folder: Path, name: str, uuid: str) -> None:
    """Refuse a folder that holds another index than `uuid`, the one its collection names ("" names none)."""
    found = built_uuid(folder) if uuid else ""
    if found and found != uuid:
        raise CorruptIndexError(
            f"shard {name}: {folder} holds another index ({found}) than its collection says ({uuid})",
            file=str(folder),
        )
