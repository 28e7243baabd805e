"""A collection to serve: a sharded build with its ``collection.json``, or one index as a single shard."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velo.errors import InvalidArgumentError, NotAnIndexError, UnsupportedVersionError, VeloError
from velo.folder.manifest import manifest_path
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
    """The node of a shard: the one with this custom resource, or with this label.

    The id of a node changes when it restarts; a resource or label does not.

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

    ``path`` is absolute, or a URL; ``locations`` are further folders and URLs. ``first_row`` is a row of the
    input. ``uuid`` and ``checksum`` identify the built index and its manifest, if the file names them.
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
    """Read the collection at a path.

    Parameters
    ----------
    path : str or Path
        A folder with ``collection.json``, that file itself, the folder of a single index, or the location of
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
    CollectionFormatError, UnsupportedVersionError
        The file is invalid, or of a newer format.
    LocationError
        The object store does not answer.
    """
    folder: Path | str
    if isinstance(path, str) and is_url(path):
        folder, base = path, path.partition("?")[0].rstrip("/").rpartition("/")[2]
    else:
        given = Path(path)
        folder = given.parent if given.name == COLLECTION_FILE and given.is_file() else given
        folder = folder.absolute()
        base = folder.name
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", base.removesuffix(".velo").removesuffix(".collection"))
    checked = checked_name(name or plain or "index")
    try:
        content = _find(folder, COLLECTION_FILE)
        if content is not None:
            file = _below(folder, COLLECTION_FILE)
            return _sharded(_parse(content, file), file, folder, checked)
        if isinstance(folder, str):
            return _read_stored_index(folder, checked)
        local = folder
        return read_consistently(local, lambda: _read_index(local, checked))
    except VeloError:
        raise
    except OSError as error:
        raise os_failure(error, str(error.filename or folder)) from None


def _find(folder: Path | str, name: str) -> bytes | None:
    if isinstance(folder, str):
        return find_file(join(folder, name))
    return (folder / name).read_bytes() if (folder / name).is_file() else None


def checked_name(name: str) -> str:
    """Check that a name fits into a URL path."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name):
        raise InvalidArgumentError(f"name: 128 letters, digits, _.- at most, not {name!r}", argument="name")
    return name


def _parse(content: bytes, path: Path | str) -> Mapping[str, Any]:
    try:
        document = json.loads(content)
    except ValueError as error:
        raise CollectionFormatError(f"{path} is not JSON: {error}", file=str(path)) from None
    if not isinstance(document, dict):
        raise CollectionFormatError(f"{path} is not a JSON object", file=str(path))
    return document


def _read_stored_index(url: str, name: str) -> Collection:
    content = read_file(join(url, MANIFEST_FILE))
    manifest = _parse(content, join(url, MANIFEST_FILE))
    uuid = str(manifest.get("uuid", ""))
    return _single(name, url, manifest, manifest.get("n"), uuid=uuid, checksum=checksum_of(content))


def _read_index(folder: Path, name: str) -> Collection:
    path = manifest_path(folder)
    content = _find(folder, path.name)
    if content is None:
        why = f"holds neither {COLLECTION_FILE} nor {MANIFEST_FILE}" if folder.is_dir() else "is not a folder"
        raise NotAnIndexError(f"{folder} {why}", file=str(folder))
    manifest = _parse(content, path)
    segments: Any = manifest.get("parts", [manifest])  # the manifest of a segment describes itself
    counts: list[Any] = []
    if isinstance(segments, list):
        counts += [one.get("n") for one in segments if isinstance(one, dict)]
    rows = sum(filter(_is_count, counts))
    try:
        uuid = built_uuid(folder)
    except VeloError:
        uuid = ""
    return _single(name, folder, manifest, rows, uuid=uuid)


def _single(
    name: str, path: Path | str, manifest: Mapping[str, Any], rows: Any, **identity: Any
) -> Collection:
    """One index as a collection. Faults of its manifest are reported by the shard that opens it."""
    dim = manifest.get("dim") if _is_count(manifest.get("dim")) else 0
    n = rows if _is_count(rows) and dim else 0
    shard = ShardEntry("0", path, n, 0, **identity)
    return Collection(name, path, n, dim or 0, str(manifest.get("metric", "")), (shard,))


def _sharded(document: Mapping[str, Any], file: Path | str, folder: Path | str, name: str) -> Collection:
    def check(valid: Any, field: str, why: str) -> None:
        if not valid:
            raise CollectionFormatError(f"{file}: {field} {why}", file=str(file), argument=field)

    check(_is_count(document.get("format")), "format", "must be a version number")
    if document["format"] > FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"{file} is of format {document['format']}, this version of velo reads up to {FORMAT_VERSION}",
            file=str(file),
        )
    for field in ("n", "dim"):
        check(_is_count(document.get(field)), field, "must be a whole number above 0")
    check(document.get("metric") in METRICS, "metric", f"must be one of {', '.join(METRICS)}")
    entries: Any = document.get("shards")
    check(isinstance(entries, list) and entries, "shards", "must be a list of at least one shard")
    shards: list[ShardEntry] = []
    first_row = 0
    for place, entry in enumerate(entries):
        field = f"shards[{place}]"
        check(isinstance(entry, dict), field, "must be an object")
        path, rows, pin = entry.get("path"), entry.get("rows"), entry.get("pin")
        check(isinstance(path, str) and path, f"{field}.path", "must be the path of the shard's folder")
        inside = is_url(path) or is_within(path)
        check(inside, f"{field}.path", f"must lead to a folder within, not {path!r}")
        check(_is_count(rows), f"{field}.rows", "must be a whole number above 0")
        follows = entry.get("first_row") == first_row
        check(follows, f"{field}.first_row", f"must be {first_row}, where the shard before it ends")
        check(pin is None or isinstance(pin, str), f"{field}.pin", "must be text such as 'resource:NAME'")
        locations = entry.get("locations", [])
        texts = isinstance(locations, list) and all(isinstance(one, str) and one for one in locations)
        check(texts, f"{field}.locations", "must be a list of folders and places in object stores")
        identity = {key: entry.get(key, "") for key in ("uuid", "checksum")}
        for key, value in identity.items():
            check(isinstance(value, str), f"{field}.{key}", "must be text")
        shards.append(
            ShardEntry(
                name=str(place),
                path=_below(folder, path),
                rows=rows,
                first_row=first_row,
                pin=None if pin is None else Pin.parse(pin, str(place)),
                locations=tuple(str(_below(folder, one)) for one in locations),
                **identity,
            )
        )
        first_row += rows
    n, dim, metric, version = document["n"], document["dim"], document["metric"], document.get("version", "")
    check(first_row == n, "n", f"is {n}, but the shards hold {first_row} rows")
    check(isinstance(version, str), "version", "must be text")
    return Collection(name, folder, n, dim, metric, tuple(shards), version)


def _below(folder: Path | str, relative: str) -> Path | str:
    if is_url(relative):
        return relative
    if isinstance(folder, Path) or relative.startswith("/"):
        return Path(folder) / relative
    return join(folder, relative)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
