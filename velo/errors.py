"""All errors of velo: one tree under :class:`VeloError`, and the table from native statuses to it."""

from __future__ import annotations

import os
import re
from types import MappingProxyType
from typing import Final

__all__ = [
    "BudgetTooSmallError",
    "BusyError",
    "CancelledError",
    "ClosedError",
    "CorruptIndexError",
    "DeviceError",
    "DimensionMismatchError",
    "DtypeError",
    "DuplicateIdError",
    "EmptyError",
    "FilterError",
    "FilterTypeError",
    "ForkedError",
    "FormatError",
    "GpuError",
    "GpuWarning",
    "IndexExistsError",
    "InternalError",
    "InvalidArgumentError",
    "LeftOutWarning",
    "MissingDependencyError",
    "NativeLibraryError",
    "NoSpaceError",
    "NotAnIndexError",
    "NotFiniteError",
    "OutOfMemoryError",
    "PermissionDeniedError",
    "ReadOnlyError",
    "RebuiltWarning",
    "RecallWarning",
    "SearchTimeoutError",
    "UnknownColumnError",
    "UnknownIdError",
    "UnsupportedError",
    "UnsupportedVersionError",
    "VeloError",
]


#: The path of an open index's folder, through its descriptor (velo.folder.opened).
_DESCRIPTOR: Final = re.compile(r"/proc/self/fd/\d+")


def with_names(message: str) -> str:
    """Replace paths through descriptors in a message by the current names of their folders."""

    def name(found: re.Match[str]) -> str:
        try:
            return os.readlink(found[0])
        except OSError:
            return found[0]

    return _DESCRIPTOR.sub(name, message) if "/proc/self/fd/" in message else message


class VeloError(Exception):
    """Base of every error that velo raises, with the cause and its location.

    Attributes
    ----------
    message : str
        One sentence.
    argument : str or None
        Name of the invalid argument.
    file : str or None
        The file: a name inside the index folder, or the path of an input file.
    page : int or None
        Page of that file.
    row : int or None
        Row of the input.
    position : int or None
        Byte of an input file.
    needed_bytes : int or None
        The smallest sufficient budget.
    """

    def __init__(
        self,
        message: str = "",
        *,
        argument: str | None = None,
        file: str | None = None,
        page: int | None = None,
        row: int | None = None,
        position: int | None = None,
        needed_bytes: int | None = None,
    ) -> None:
        message = with_names(message)
        super().__init__(message)
        self.message = message
        self.argument = argument
        self.file = None if file is None else with_names(file)
        self.page = page
        self.row = row
        self.position = position
        self.needed_bytes = needed_bytes

    def __str__(self) -> str:
        # KeyError would print the repr, OSError an errno; velo's errors print the message and the location.
        places = [
            f"{name} {value}"
            for name, value in (
                ("argument", self.argument),
                ("file", self.file),
                ("page", self.page),
                ("row", self.row),
                ("byte", self.position),
                ("needed bytes", self.needed_bytes),
            )
            if value is not None and str(value) not in self.message
        ]
        return f"{self.message} ({', '.join(places)})" if places else self.message


class InvalidArgumentError(VeloError, ValueError):
    """An argument has an invalid value."""


class DtypeError(VeloError, TypeError):
    """Vectors have an unsupported element type."""


class DimensionMismatchError(VeloError, ValueError):
    """Vectors have a different dimension than the index, or rows differ in length."""


class NotFiniteError(VeloError, ValueError):
    """A vector contains NaN or an infinity."""


class EmptyError(VeloError, ValueError):
    """The set of vectors is empty."""


class DuplicateIdError(InvalidArgumentError):
    """Two vectors were given the same id."""


class UnknownIdError(VeloError, KeyError):
    """No vector of the index has this id."""


class FormatError(VeloError, ValueError):
    """An input file is truncated, or its content does not match its name."""


class NotAnIndexError(VeloError, FileNotFoundError):
    """The folder does not exist, or contains no complete index."""


class CorruptIndexError(VeloError):
    """A file of the index is damaged: its size, checksum or content has changed."""


class UnsupportedVersionError(VeloError):
    """The index has a format version that this version of velo cannot read."""


class DeviceError(VeloError, OSError):
    """The file system or the device below it failed."""


class NoSpaceError(DeviceError):
    """The file system is full, or a quota or file size limit is reached."""


class PermissionDeniedError(VeloError, PermissionError):
    """The file system refuses access, or is mounted read-only."""


class ReadOnlyError(VeloError, RuntimeError):
    """A write to an index that was opened for reading."""


class IndexExistsError(VeloError, FileExistsError):
    """The folder for a new index is not empty."""


class OutOfMemoryError(VeloError, MemoryError):
    """The operating system refused memory."""


class BudgetTooSmallError(InvalidArgumentError):
    """The memory budget is below the minimum, which ``needed_bytes`` states."""


class CancelledError(VeloError):
    """A build was canceled by its callback or an interrupt, or a search by its caller."""


class SearchTimeoutError(VeloError, TimeoutError):
    """A search did not finish within ``timeout_s``."""


class ClosedError(VeloError, RuntimeError):
    """The index was closed."""


class ForkedError(VeloError, RuntimeError):
    """The index was opened before this process was forked; open it again."""


class FilterError(VeloError, ValueError):
    """A filter is malformed."""


class UnknownColumnError(FilterError, KeyError):
    """A filter or a request for metadata names a column that the index does not have."""


class FilterTypeError(FilterError, TypeError):
    """A filter compares a column with a value of an incompatible type."""


class BusyError(VeloError, RuntimeError):
    """Too many searches are waiting, or another process writes to the index; try again later."""


class UnsupportedError(VeloError, RuntimeError):
    """The index was built without something that the call needs."""


class GpuError(VeloError, RuntimeError):
    """There is no usable GPU, or it has too little memory, which ``needed_bytes`` states."""


class InternalError(VeloError, RuntimeError):
    """A mistake of velo itself; please report it."""


class NativeLibraryError(VeloError, ImportError):
    """The native library is missing, or does not match the version of the package."""


class MissingDependencyError(VeloError, ImportError):
    """An optional package that this call needs is not installed."""


class RecallWarning(UserWarning):
    """A build cannot reach a commonly requested recall; the message suggests a fix."""


class RebuiltWarning(UserWarning):
    """A file derived from rows was damaged, and was rebuilt from them."""


class LeftOutWarning(UserWarning):
    """A build ignores part of its input, or can use it only in part."""


class GpuWarning(RuntimeWarning):
    """A GPU failed; the CPU does its work from then on."""


#: The exception of each ``velo_status`` of ``velo.h`` (VELO_OK: none).
STATUS_ERRORS: Final = MappingProxyType(
    {
        "VELO_INVALID_ARGUMENT": InvalidArgumentError,
        "VELO_DIMENSION_MISMATCH": DimensionMismatchError,
        "VELO_NOT_FINITE": NotFiniteError,
        "VELO_EMPTY": EmptyError,
        "VELO_NOT_AN_INDEX": NotAnIndexError,
        "VELO_CORRUPT": CorruptIndexError,
        "VELO_UNSUPPORTED_VERSION": UnsupportedVersionError,
        "VELO_IO": DeviceError,
        "VELO_NO_SPACE": NoSpaceError,
        "VELO_PERMISSION": PermissionDeniedError,
        "VELO_OUT_OF_MEMORY": OutOfMemoryError,
        "VELO_BUDGET_TOO_SMALL": BudgetTooSmallError,
        "VELO_CANCELED": CancelledError,
        "VELO_TIMEOUT": SearchTimeoutError,
        "VELO_CLOSED": ClosedError,
        "VELO_FORKED": ForkedError,
        "VELO_FILTER": FilterError,
        "VELO_BUSY": BusyError,
        "VELO_EXISTS": IndexExistsError,
        "VELO_UNSUPPORTED": UnsupportedError,
        "VELO_INTERNAL": InternalError,
        "VELO_GPU": GpuError,
    }
)
