"""The limits and defaults of ``velo.h``."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from velo._native import loader
from velo._native.declarations import declarations
from velo.errors import NativeLibraryError


class Limit(NamedTuple):
    """The least and the most that an argument may be."""

    low: int
    high: int


@cache
def _numbers(enum: str) -> dict[str, int]:
    """The numbers of an enum by their names. The header alone is read: no library needs to be there."""
    text = declarations(loader.header_path().read_text(encoding="utf-8"))
    body = re.search(rf"enum {enum} \{{(.*?)\}}", text, re.DOTALL)
    found = re.findall(r"VELO_(\w+) = (\d+)", body[1] if body else "")
    return {name.lower(): int(number) for name, number in found}


@cache
def _limits() -> dict[str, Limit]:
    """By the names of arguments."""
    values = _numbers("velo_limit")
    names = [name.removesuffix("_min") for name in values if name.endswith("_min")]
    return {name: Limit(values[f"{name}_min"], values[f"{name}_max"]) for name in names}


def native_limit(argument: str) -> Limit:
    """The limit of an argument such as "degree"; NativeLibraryError if the installed header has none."""
    try:
        return _limits()[argument]
    except KeyError:
        raise NativeLibraryError(f"velo.h names no limit of {argument}", file="velo.h") from None
