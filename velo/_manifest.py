"""The manifest as Python reads it: the library has checked its sum, here values are held to their bounds."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, Final

from velo.errors import (
    CorruptIndexError,
    DeviceError,
    NotAnIndexError,
    OutOfMemoryError,
    PermissionDeniedError,
    VeloError,
)

__all__ = ["MANIFEST_FILE", "first_row_in", "generation_in", "load_json", "read_failure", "read_manifest"]

MANIFEST_FILE: Final = "manifest.json"

#: Rows of the whole input, and generations of metadata, that are counted.
_COUNT_MAX: Final = 2**62


def read_failure(error: OSError, file: str) -> VeloError:
    """The error for a file of an index that the system does not let us read.

    Only a file that is missing is damage: where the system refuses, nobody knows what is there.
    """
    if error.errno == errno.ENOENT:
        return CorruptIndexError(f"{file} is missing from the index", file=file)
    message = f"{file} cannot be read: {os.strerror(error.errno) if error.errno else error}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionDeniedError(message, file=file)
    if error.errno == errno.ENOMEM:
        return OutOfMemoryError(message, file=file)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        message += " (limits: ulimit -n, fs.file-max)"
    return DeviceError(message, file=file)


def load_json(path: Path) -> Any:
    """A JSON file of an index.

    Raises
    ------
    FileNotFoundError
        It is not there.
    CorruptIndexError
        It holds something else.
    DeviceError, PermissionDeniedError
        The system does not let us read it.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise read_failure(error, path.name) from error
    except (ValueError, RecursionError) as error:
        raise CorruptIndexError(f"{path.name} cannot be read: {error}", file=path.name) from error


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an index.

    Raises
    ------
    NotAnIndexError
        There is none.
    CorruptIndexError, DeviceError, PermissionDeniedError
    """
    try:
        manifest = load_json(folder / MANIFEST_FILE)
    except FileNotFoundError as error:
        raise NotAnIndexError(f"{folder} is no index: it has no {MANIFEST_FILE}", argument="path") from error
    if not isinstance(manifest, dict):
        raise _no_sense("its content")
    return manifest


def first_row_in(manifest: dict[str, Any]) -> int:
    """The row of the whole input at which this index begins, where it is a shard."""
    return _count(_part(manifest, "user"), "first_row", 0, 0)


def generation_in(manifest: dict[str, Any]) -> int:
    """Which generation of metadata the index has, if it has any."""
    return _count(_part(_part(manifest, "user"), "metadata"), "generation", 1, 1)


def _part(holder: dict[str, Any], name: str) -> dict[str, Any]:
    part = holder.get(name)
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise _no_sense(name)
    return part


def _count(holder: dict[str, Any], name: str, default: int, least: int) -> int:
    value = holder.get(name, default)
    if type(value) is not int or not least <= value <= _COUNT_MAX:
        raise _no_sense(name)
    return value


def _no_sense(what: str) -> CorruptIndexError:
    return CorruptIndexError(f"{MANIFEST_FILE} says nothing sensible of {what}", file=MANIFEST_FILE)
