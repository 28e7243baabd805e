"""A collection to serve: a sharded build with its ``collection.json``, or one index as a single shard."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velo.errors import InvalidArgumentError, NotAnIndexError, UnsupportedVersionError, VeloError
from velo.folder.manifest import FOLDER_MANIFEST_FILE, is_live
from velo.folder.replace import os_failure, read_consistently
from velo.folder.shards import built_uuid, is_within
from velo_serving.catalog.locations import checksum_of, find_file, is_url, join, read_file
from velo_serving.catalog.spec import ShardSpec
from velo_serving.protocol.errors import CollectionFormatError

COLLECTION_FILE = "collection.json"
MANIFEST_FILE = "manifest.json"

#: The newest ``format`` of ``collection.json`` that this version reads.
FORMAT_VERSION = 1

METRICS = ("l2", "ip", "cosine")


@dataclass(frozen=True, slots=True)
class Pin:
    """Which node a shard must run on: the one with this custom resource, or with this label.

    A node's id changes whenever it restarts; a resource or label is what the operator gave it together with
    the disk.

    Parameters
    ----------
    resource : str, optional
        Name of a custom resource, as in ``ray start --resources '{"ssd-a": 1}'``.
    label : tuple of (str, str), optional
        Key and value, as in ``ray start --labels ssd=a``.
    """

    resource: str | None = None
    label: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        if (self.resource is None) == (self.label is None):
            raise InvalidArgumentError("a pin is a resource or a label, one of them", argument="pin")

    @classmethod
    def parse(cls, text: str, shard: str = "") -> Pin:
        """Read ``resource:NAME`` or ``label:KEY=VALUE``; ``{shard}`` stands for the shard's name.

        Parameters
        ----------
        text : str
        shard : str, optional

        Returns
        -------
        Pin
        """
        kind, separator, rest = text.replace("{shard}", shard).partition(":")
        if separator and rest and kind == "resource":
            return cls(resource=rest)
        key, equals, value = rest.partition("=")
        if separator and kind == "label" and key and equals and value:
            return cls(label=(key, value))
        raise InvalidArgumentError(
            f"a pin reads 'resource:NAME' or 'label:KEY=VALUE', not {text!r}", argument="pin"
        )

    def __str__(self) -> str:
        return f"resource:{self.resource}" if self.label is None else f"label:{self.label[0]}={self.label[1]}"


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard of a collection.

    Attributes
    ----------
    path : Path or str
        Absolute; text for a place in an object store.
    first_row : int
        Row of the input at which the shard begins.
    pin : Pin or None
        Where it must run, if the file says so.
    uuid, checksum : str
        Of the index as it was built, and of its manifest, if the file says so.
    locations : tuple of str
        Where else it may be found: folders, and places in object stores.
    """

    name: str
    path: Path | str
    rows: int
    first_row: int
    pin: Pin | None = None
    uuid: str = ""
    checksum: str = ""
    locations: tuple[str, ...] = ()

    def spec(self, **options: Any) -> ShardSpec:
        """Return what a shard needs to open it; ``options`` as in ``ShardSpec``."""
        return ShardSpec(
            name=self.name,
            path=str(self.path),
            locations=self.locations,
            checksum=self.checksum,
            uuid=self.uuid,
            **options,
        )


@dataclass(frozen=True, slots=True)
class Collection:
    """A set of vectors that is searched as one.

    Attributes
    ----------
    name : str
    path : Path or str
        Text for a place in an object store.
    n, dim : int
    metric : {"l2", "ip", "cosine"}
    shards : tuple of ShardEntry
        In the order of their first rows.
    version : str
        Shards of two versions are never merged into one answer; "" where the file names none.
    """

    name: str
    path: Path | str
    n: int
    dim: int
    metric: str
    shards: tuple[ShardEntry, ...]
    version: str = ""


def read_collection(path: str | Path, *, name: str | None = None) -> Collection:
    """Read what is to be served at a path.

    Parameters
    ----------
    path : str or Path
        A folder with ``collection.json``, that file itself, the folder of a single index, or the place of
        one of them in an object store, such as ``s3://bucket/photos``.
    name : str, optional
        Default: the folder's name without ``.velo`` or ``.collection``.

    Returns
    -------
    Collection

    Raises
    ------
    NotAnIndexError
        There is neither.
    CollectionFormatError
        The file is not what it should be; the message names the field.
    UnsupportedVersionError
        It is of a newer format.
    LocationError
        The object store does not bring it.
    """
    if isinstance(path, str) and is_url(path):
        return _read_stored(path, name)
    folder = Path(path)
    if folder.name == COLLECTION_FILE and folder.is_file():
        folder = folder.parent
    folder = folder.absolute()
    given_name = checked_name(name or _name_of(folder.name))
    try:
        if (folder / COLLECTION_FILE).is_file():
            return _read_sharded(folder, given_name)
        return read_consistently(folder, lambda: _read_index(folder, given_name))
    except VeloError:
        raise
    except OSError as error:
        raise os_failure(error, str(error.filename or folder)) from None


def _read_index(folder: Path, name: str) -> Collection:
    if is_live(folder):
        return _read_live(folder, name)
    if (folder / MANIFEST_FILE).is_file():
        return _read_single(folder, name)
    what = (
        "is not a folder" if not folder.is_dir() else f"holds neither {COLLECTION_FILE} nor {MANIFEST_FILE}"
    )
    raise NotAnIndexError(f"{folder} {what}", file=str(folder))


def checked_name(name: str) -> str:
    """Refuse a name that a path of HTTP could not hold."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name):
        raise InvalidArgumentError(
            f"a collection's name holds 128 letters, digits and _ . - at most, not {name!r}", argument="name"
        )
    return name


def _read_stored(url: str, name: str | None) -> Collection:
    """A collection, or a single index, in an object store."""
    place = url.partition("?")[0].rstrip("/")
    given_name = checked_name(name or _name_of(place.rpartition("/")[2]))
    file = join(url, COLLECTION_FILE)
    content = find_file(file)
    if content is None:
        manifest = read_file(join(url, MANIFEST_FILE))
        document = _parse(manifest, join(url, MANIFEST_FILE))
        n, dim, metric = _shape_in(document)
        uuid = str(document.get("uuid", ""))
        shard = ShardEntry("0", url, n, 0, uuid=uuid, checksum=checksum_of(manifest))
        return Collection(given_name, url, n, dim, metric, (shard,))
    return _sharded(_parse(content, file), file, url, given_name)


def _name_of(folder: str) -> str:
    plain = folder.removesuffix(".velo").removesuffix(".collection")
    return re.sub(r"[^A-Za-z0-9_.-]", "_", plain) or "index"


def _load(path: Path) -> Mapping[str, Any]:
    return _parse(path.read_bytes(), path)


def _parse(content: bytes, path: Path | str) -> Mapping[str, Any]:
    try:
        document = json.loads(content)
    except ValueError as error:
        raise CollectionFormatError(f"{path} is not JSON: {error}", file=str(path)) from None
    if not isinstance(document, dict):
        raise CollectionFormatError(f"{path} is not a JSON object", file=str(path))
    return document


def _read_single(folder: Path, name: str) -> Collection:
    n, dim, metric = _shape_in(_load(folder / MANIFEST_FILE))
    return Collection(name, folder, n, dim, metric, (_single(folder, n),))


def _single(folder: Path, n: int) -> ShardEntry:
    """An index as a shard: whoever opens it elsewhere must find the one that was built here."""
    try:
        uuid = built_uuid(folder)
    except VeloError:
        uuid = ""  # the shard says what is wrong when it opens it
    return ShardEntry("0", folder, n, 0, uuid=uuid)


def _shape_in(manifest: Mapping[str, Any]) -> tuple[int, int, str]:
    n, dim, metric = manifest.get("n", 0), manifest.get("dim", 0), manifest.get("metric", "")
    if not (_is_count(n) and _is_count(dim)):
        # The library reads manifests for real and says what is wrong with this one when the shard opens it.
        n, dim = 0, 0
    return n, dim, str(metric)


def _read_live(folder: Path, name: str) -> Collection:
    """An index that was written to: its parts have the rows, and may have none."""
    root = _load(folder / FOLDER_MANIFEST_FILE)
    dim, parts = root.get("dim", 0), root.get("parts", [])
    rows = [part.get("n", 0) for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    # The library reads it for real, and says what is wrong when the shard opens it.
    n = sum(one for one in rows if _is_count(one))
    shard = _single(folder, n)
    return Collection(name, folder, n, dim if _is_count(dim) else 0, str(root.get("metric", "")), (shard,))


def _read_sharded(folder: Path, name: str) -> Collection:
    file = folder / COLLECTION_FILE
    return _sharded(_load(file), file, folder, name)


def _sharded(document: Mapping[str, Any], file: Path | str, folder: Path | str, name: str) -> Collection:
    def wrong(field: str, why: str) -> CollectionFormatError:
        return CollectionFormatError(f"{file}: {field} {why}", file=str(file), argument=field)

    version = document.get("format")
    if version is None or not _is_count(version):
        raise wrong("format", "must be a version number")
    if version > FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"{file} is of format {version}, this version of velo reads up to {FORMAT_VERSION}",
            file=str(file),
        )
    for field in ("n", "dim"):
        if not _is_count(document.get(field)):
            raise wrong(field, "must be a whole number above 0")
    if document.get("metric") not in METRICS:
        raise wrong("metric", f"must be one of {', '.join(METRICS)}")
    entries = document.get("shards")
    if not isinstance(entries, list) or not entries:
        raise wrong("shards", "must be a list of at least one shard")

    shards: list[ShardEntry] = []
    first_row_expected = 0
    for place, entry in enumerate(entries):
        field = f"shards[{place}]"
        if not isinstance(entry, dict):
            raise wrong(field, "must be an object")
        relative = entry.get("path")
        if not isinstance(relative, str) or not relative:
            raise wrong(f"{field}.path", "must be the path of the shard's folder")
        if not is_url(relative) and not is_within(relative):
            raise wrong(f"{field}.path", f"must lead to a folder within, not {relative!r}")
        if not _is_count(entry.get("rows")):
            raise wrong(f"{field}.rows", "must be a whole number above 0")
        if entry.get("first_row") != first_row_expected:
            raise wrong(f"{field}.first_row", f"must be {first_row_expected}, where the shard before it ends")
        pin = entry.get("pin")
        if pin is not None and not isinstance(pin, str):
            raise wrong(f"{field}.pin", "must be text such as 'resource:NAME'")
        locations = entry.get("locations", [])
        if not isinstance(locations, list) or not all(isinstance(one, str) and one for one in locations):
            raise wrong(f"{field}.locations", "must be a list of folders and places in object stores")
        words = {key: entry.get(key, "") for key in ("uuid", "checksum")}
        for key, word in words.items():
            if not isinstance(word, str):
                raise wrong(f"{field}.{key}", "must be text")
        shards.append(
            ShardEntry(
                name=str(place),
                path=_below(folder, relative),
                rows=entry["rows"],
                first_row=first_row_expected,
                pin=None if pin is None else Pin.parse(pin, str(place)),
                locations=tuple(str(_below(folder, one)) for one in locations),
                **words,
            )
        )
        first_row_expected += entry["rows"]
    if first_row_expected != document["n"]:
        raise wrong("n", f"is {document['n']}, but the shards hold {first_row_expected} rows")
    version = document.get("version", "")
    if not isinstance(version, str):
        raise wrong("version", "must be text")
    return Collection(
        name, folder, document["n"], document["dim"], document["metric"], tuple(shards), version
    )


def _below(folder: Path | str, relative: str) -> Path | str:
    if is_url(relative):
        return relative
    if isinstance(folder, Path) or relative.startswith("/"):
        return Path(folder) / relative
    return join(folder, relative)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
