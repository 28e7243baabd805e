"""Places of shards: folders of this machine, and object stores, from which they are staged into a folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs

from velo.errors import CorruptIndexError, InvalidArgumentError, VeloError
from velo.folder.manifest import MANIFEST_FILE
from velo_serving.protocol.errors import LocationError, ShardNotHereError

#: Files are copied in pieces of this size.
CHUNK_BYTES: Final = 8 << 20

#: Of a checksum, in the name of a folder in the cache.
NAME_LENGTH: Final = 32


def is_url(location: str | os.PathLike[str]) -> bool:
    """Whether this is a location in an object store, such as ``s3://bucket/photos``."""
    return "://" in os.fspath(location)


def join(url: str, name: str) -> str:
    """The URL of a name below another one; the query part, which configures the store, stays."""
    place, mark, how = url.partition("?")
    return f"{place.rstrip('/')}/{name}{mark}{how}"


def checksum_of(manifest: bytes) -> str:
    """The identity of a shard: the hash of its manifest, which holds the checksums of its other files."""
    return hashlib.sha256(manifest).hexdigest()


def cache_folder() -> Path:
    """The folder for shards of object stores: ``VELO_CACHE``, else ``~/.cache/velo``."""
    given = os.environ.get("VELO_CACHE")
    folder = Path(given) if given else Path.home() / ".cache" / "velo"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocationError(f"{folder}: {error.strerror}; set VELO_CACHE", file=str(folder)) from None
    return folder.absolute()


@contextmanager
def _store(url: str) -> Iterator[tuple[Any, str]]:
    """The file system and the path of a URL; errors become ``LocationError``."""
    try:
        system, path = pyarrow.fs.FileSystem.from_uri(url)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InvalidArgumentError(f"{url} is no place that Arrow knows: {error}", argument="path") from None
    try:
        yield system, path
    except (pa.ArrowException, OSError) as error:
        raise LocationError(f"{url}: {error}", file=url) from None


def find_file(url: str) -> bytes | None:
    """Read a small file; None if it does not exist."""
    with _store(url) as (system, path):
        try:
            file = system.open_input_stream(path)
        except FileNotFoundError:
            return None
        with file:
            content: bytes = file.read()
            return content


def read_file(url: str) -> bytes:
    content = find_file(url)
    if content is None:
        raise LocationError(f"{url} is not there", file=url)
    return content


def write_file(url: str, content: bytes) -> None:
    """Write a small file; stores replace files atomically."""
    with _store(url) as (system, path):
        system.create_dir(path.rpartition("/")[0], recursive=True)
        with system.open_output_stream(path) as file:
            file.write(content)


def send_folder(folder: Path, url: str) -> None:
    """Copy the files of an index into a store, the manifest last; existing files are replaced."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    names.sort(key=lambda name: name == MANIFEST_FILE)
    with _store(url) as (system, path):
        if system.get_file_info(path).type == pyarrow.fs.FileType.Directory:
            system.delete_dir(path)
        system.create_dir(path, recursive=True)
        for name in names:
            with open(folder / name, "rb") as read, system.open_output_stream(f"{path}/{name}") as write:
                while chunk := read.read(CHUNK_BYTES):
                    write.write(chunk)


def shard_folder(name: str, locations: Sequence[str], *, checksum: str = "", writable: bool = False) -> str:
    """The folder of a shard on this machine: the first that exists, else staged from a store."""
    for location in locations:
        if not is_url(location) and Path(location).is_dir():
            return location
    urls = [location for location in locations if is_url(location)]
    if not urls:
        node = os.uname().nodename
        raise ShardNotHereError(
            f"shard {name} is not on node {node}: there is no folder {' or '.join(locations)}",
            file=locations[0],
        )
    if writable:
        raise InvalidArgumentError(f"shard {name} is in a store ({urls[0]}), read-only", argument="writable")
    failures: list[LocationError] = []
    for url in urls:
        try:
            return str(stage(url, checksum=checksum))
        except LocationError as error:
            failures.append(error)
    raise failures[0]


def stage(url: str, *, checksum: str = "") -> Path:
    """Copy an index out of a store into the cache, verified, unless the cache has it."""
    top = cache_folder()
    if checksum and (top / checksum[:NAME_LENGTH]).is_dir():
        return top / checksum[:NAME_LENGTH]
    found = checksum_of(read_file(join(url, MANIFEST_FILE)))
    if checksum and found != checksum:
        raise CorruptIndexError(
            f"{url} holds another index than the collection says: its manifest has the checksum {found}",
            file=join(url, MANIFEST_FILE),
        )
    target = top / found[:NAME_LENGTH]
    with _alone(target):
        if not target.is_dir():
            fresh = top / f".{target.name}.part"
            shutil.rmtree(fresh, ignore_errors=True)
            try:
                _fetch(url, fresh)
                _check(fresh, found, url)
                os.rename(fresh, target)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    return target


def keep(folder: Path, checksum: str) -> None:
    """Move an index that was built here into the cache, under the name that ``stage`` would give it."""
    target = cache_folder() / checksum[:NAME_LENGTH]
    with _alone(target):
        if target.is_dir():
            shutil.rmtree(folder)
        else:
            os.rename(folder, target)


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    handle = os.open(target.with_name(f".{target.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _fetch(url: str, folder: Path) -> None:
    folder.mkdir()
    with _store(url) as (system, path):
        for info in system.get_file_info(pyarrow.fs.FileSelector(path)):
            if info.type != pyarrow.fs.FileType.File:
                continue
            with system.open_input_stream(info.path) as read, open(folder / info.base_name, "wb") as write:
                while chunk := read.read(CHUNK_BYTES):
                    write.write(chunk)
                write.flush()
                os.fsync(write.fileno())


def _check(folder: Path, checksum: str, url: str) -> None:
    import velo  # here, so that a router works where the native library is missing

    try:
        manifest = (folder / MANIFEST_FILE).read_bytes()
    except OSError:
        manifest = b""
    if checksum_of(manifest) != checksum:
        raise CorruptIndexError(f"{url} changed while it was copied", file=url)
    try:
        velo.verify(folder)
    except VeloError as error:
        raise CorruptIndexError(f"{url} is damaged: {error}", file=url) from None
