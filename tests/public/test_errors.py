"""The tree of errors and the table from statuses to it."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from velo import errors
from velo._native import loader
from velo._native.declarations import declarations

NAMED = [getattr(errors, name) for name in errors.__all__]
CLASSES = [one for one in NAMED if isinstance(one, type) and issubclass(one, errors.VeloError)]


def statuses_in_header() -> dict[str, int]:
    text = declarations(loader.header_path().read_text())
    body = re.search(r"enum velo_status \{(.*?)\}", text, re.DOTALL)[1]
    return {name: int(value) for name, value in re.findall(r"(VELO_\w+)\s*=\s*(\d+)", body)}


def test_every_status_of_the_header_has_its_exception() -> None:
    statuses = statuses_in_header()
    assert statuses.pop("VELO_OK") == 0
    assert set(statuses) == set(errors.STATUS_ERRORS)
    assert len(set(errors.STATUS_ERRORS.values())) == len(statuses), "no two statuses share an exception"


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_says_what_and_where(kind: type[errors.VeloError]) -> None:
    error = kind(
        "the row is bad", argument="vectors", file="a.fbin", page=3, row=7, position=12, needed_bytes=99
    )
    assert isinstance(error, errors.VeloError)
    assert (
        str(error)
        == "the row is bad (argument vectors, file a.fbin, page 3, row 7, byte 12, needed bytes 99)"
    )
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_error_messages_do_not_repeat_their_attributes() -> None:
    assert str(errors.CorruptIndexError("page 3 of pages.bin is damaged", file="pages.bin", page=3)) == (
        "page 3 of pages.bin is damaged"
    )


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_has_a_sentence(kind: type[errors.VeloError]) -> None:
    assert kind.__doc__
    first = kind.__doc__.partition("\n")[0]
    assert first.endswith(".")


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.InvalidArgumentError, ValueError),
        (errors.DimensionMismatchError, ValueError),
        (errors.NotFiniteError, ValueError),
        (errors.DtypeError, TypeError),
        (errors.DeviceError, OSError),
        (errors.NoSpaceError, OSError),
        (errors.SearchTimeoutError, TimeoutError),
        (errors.IndexExistsError, FileExistsError),
        (errors.PermissionDeniedError, PermissionError),
        (errors.OutOfMemoryError, MemoryError),
        (errors.UnknownColumnError, KeyError),
        (errors.UnknownColumnError, errors.FilterError),
        (errors.FilterTypeError, TypeError),
        (errors.MissingDependencyError, ImportError),
    ],
)
def test_errors_derive_from_builtin_exceptions(kind: type, builtin: type) -> None:
    assert issubclass(kind, builtin)


def test_header_is_the_checkouts(root: Path) -> None:
    assert loader.header_path() == root / "zig" / "velo.h"


def test_every_exception_is_a_name_of_the_package() -> None:
    import velo
    from velo import errors

    for name in set(errors.__all__) - {"STATUS_ERRORS"}:
        assert getattr(velo, name) is getattr(errors, name)
        assert name in velo.__all__
