"""Exceptions for native statuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from velo._native.abi import CData
from velo._native.library import ERRORS_BY_STATUS, native
from velo._native.structs import new, text
from velo.errors import IndexExistsError, NotAnIndexError, VeloError

#: Errors for which a caller of `check` may name the argument that the library does not know by its name.
_ABOUT_ARGUMENTS: Final = (ValueError, NotAnIndexError, IndexExistsError)


def close(function: Callable[[CData], int], place: CData) -> None:
    """Close the handle in a place; an interrupt ends the wait for calls inside, and closing goes on later."""
    while (status := function(place)) == native().lib.VELO_BUSY:
        pass
    check(status)


def check(status: int, argument: str | None = None) -> None:
    """Raise the exception of the status table unless `status` is VELO_OK.

    `status`: What a native call returned, in this thread, just now.
    `argument`: The name to report where the library knows none.
    """
    if status != 0:
        _raise_last(status, argument)


def _raise_last(status: int, argument: str | None) -> NoReturn:
    last = new("velo_error")
    native().lib.velo_last_error(last)
    if not issubclass(ERRORS_BY_STATUS.get(status, VeloError), _ABOUT_ARGUMENTS):
        argument = None  # the device, the clock or a file is at fault, not what was given
    if last.status != status:
        raise error_of(status, argument=argument)
    raise error_of(
        status,
        text(last.message),
        argument=text(last.argument) or argument,
        file=text(last.file) or None,
        page=int(last.page) if last.page >= 0 else None,
        row=int(last.row) if last.row >= 0 else None,
        needed_bytes=int(last.needed_bytes) or None,
    )


def error_of(
    status: int,
    message: str = "",
    *,
    argument: str | None = None,
    file: str | None = None,
    page: int | None = None,
    row: int | None = None,
    needed_bytes: int | None = None,
) -> VeloError:
    """The exception for `status`, not raised."""
    kind = ERRORS_BY_STATUS.get(status, VeloError)
    sentence = message or (kind.__doc__ or "unknown error").strip().partition("\n")[0]
    return kind(sentence, argument=argument, file=file, page=page, row=row, needed_bytes=needed_bytes)
