"""What ``collection.json`` says of a shard's folder: that it lies within, and which index was built there."""

from __future__ import annotations

import contextlib
from pathlib import Path, PurePosixPath

from velo.errors import CorruptIndexError
from velo.folder.live import ROOT_FILE, is_live
from velo.folder.manifest import MANIFEST_FILE
from velo.folder.stored import load_json, read_failure

__all__ = ["built_uuid", "check_shard", "is_within"]


def is_within(path: str) -> bool:
    """Whether a shard's path leads to a folder within its collection's, as all do."""
    parts = PurePosixPath(path).parts
    return bool(parts) and "\0" not in path and parts[0] != "/" and ".." not in parts


def built_uuid(folder: Path) -> str:
    """The uuid of the index that was built in a folder, whatever was written and merged there since.

    Returns
    -------
    str
        "" where none was built: the index began empty.

    Raises
    ------
    CorruptIndexError, DeviceError, PermissionDeniedError
        What says it cannot be read.
    """
    try:
        if not is_live(folder):
            with contextlib.suppress(FileNotFoundError):  # the first write came meanwhile
                return str(load_json(folder / MANIFEST_FILE)["uuid"])
        return str(load_json(folder / ROOT_FILE).get("built", ""))
    except FileNotFoundError as error:
        raise read_failure(error, ROOT_FILE) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptIndexError(
            f"{folder} does not say which index it holds: {error}", file=str(folder)
        ) from error


def check_shard(folder: Path, name: str, uuid: str) -> None:
    """Refuse a folder in which another index was built than the one that its collection names.

    Parameters
    ----------
    folder : Path
    name : str
        Of the shard.
    uuid : str
        What the collection says; "" where it says nothing.

    Raises
    ------
    CorruptIndexError
    """
    found = built_uuid(folder) if uuid else ""
    if found and found != uuid:
        raise CorruptIndexError(
            f"shard {name}: {folder} holds another index ({found}) than its collection says ({uuid})",
            file=str(folder),
        )
