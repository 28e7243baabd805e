"""The contents of ``manifest.json``; no other Python module reads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from velo.errors import CorruptIndexError, NotAnIndexError
from velo.folder.stored import load_json

__all__ = ["COLLECTION_FILE", "MANIFEST_FILE", "Manifest", "read_manifest"]

MANIFEST_FILE: Final = "manifest.json"
#: Beside the folders of shards instead.
COLLECTION_FILE: Final = "collection.json"

#: Rows of a whole input, and generations of metadata, are not more.
_COUNT_MAX: Final = 2**62


@dataclass(frozen=True, slots=True)
class Manifest:
    """The members of a manifest that Python needs; the library checks all of it when it opens the index.

    Attributes
    ----------
    memory_bits, record_bits : int
        Bits a dimension of the code in memory and of its lower segment on disk.
    files : tuple of str
        The names of all other files of the index.
    user : dict
        Entries of this package: the kind of ids, the first row, the metadata's generation.
    calibration : dict or None
        The table behind ``recall``, from :mod:`velo.building.calibration`.
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
    """Read the manifest of an index.

    Raises
    ------
    NotAnIndexError
        There is none.
    CorruptIndexError
        It is damaged, or lacks a required entry.
    DeviceError, PermissionDeniedError
    """
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
