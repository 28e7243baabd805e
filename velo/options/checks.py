"""Checks of numbers, budgets and paths, before the library sees them."""

from __future__ import annotations

import math
import numbers
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from velo._native.limits import Limit, native_limit
from velo.errors import InvalidArgumentError
from velo.types import Memory

UINT32_MAX: Final = 2**32 - 1

#: Limits of what Python makes of several calls of the library, by argument.
_OWN_LIMITS: Final = {
    # Hits of a query, nearest or within a radius: what is beyond one search of the library comes in several.
    "k": Limit(1, 1 << 24),
    "limit": Limit(1, 1 << 24),
    # Groups times rows of a group, a query.
    "group_hits": Limit(1, 1 << 20),
    "shards": Limit(1, 99_999),
}

#: More than any machine has.
_MEMORY_MAX: Final = 2**62

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


#: A smaller share of a few vectors counts as this much, if it is needed.
SHARE_FLOOR_BYTES: Final = 5 << 18


def is_share(memory: Memory | None) -> bool:
    """Whether a budget is a share of the vectors and not a number of bytes."""
    if isinstance(memory, str):
        return memory.rstrip().endswith("%")
    return isinstance(memory, numbers.Real) and not isinstance(memory, numbers.Integral)


def has_floor(memory: Memory | None, needed_bytes: int) -> bool:
    """Whether a budget that is too small grows to what is needed: a share does, up to `SHARE_FLOOR_BYTES`."""
    return is_share(memory) and needed_bytes <= SHARE_FLOOR_BYTES


def memory_bytes(memory: Memory | None, row_count: int, dim: int, argument: str = "memory") -> int:
    """A budget in bytes; 0 (no budget) for None.

    `memory` is bytes (int), a share of ``row_count * dim * 4`` bytes (float up to 1, or ``"15%"``; the size
    of float32 vectors, whatever their type in the input), or a size with its unit (``"2GiB"``, ``"500 MB"``).
    """
    if memory is None:
        return 0
    bad = InvalidArgumentError(
        f'{argument} must be bytes (int), a share ("15%" or 0.15) or a size ("2GiB"), not {memory!r}',
        argument=argument,
    )
    if isinstance(memory, bool):
        raise bad
    if isinstance(memory, numbers.Integral):
        size = int(memory)
    elif isinstance(memory, numbers.Real):
        share = float(memory)
        if not 0.0 < share <= 1.0:
            raise InvalidArgumentError(
                f"{argument} as a float is a share of the vectors, above 0 and at most 1, not {share}; "
                "bytes are an int",
                argument=argument,
            )
        size = max(1, math.floor(share * row_count * dim * 4))
    elif isinstance(memory, str) and len(memory) < 100:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|[a-z]*)\s*", memory.lower())
        if match is None or (match[2] != "%" and match[2] not in _UNITS):
            raise bad
        if match[2] == "%":
            share = float(match[1]) / 100
            size = max(1, math.floor(share * row_count * dim * 4)) if share > 0 else 0
        else:
            size = math.floor(float(match[1]) * _UNITS[match[2]])
    else:
        raise bad
    if size <= 0:
        raise InvalidArgumentError(f"{argument} must be more than 0 bytes, not {memory!r}", argument=argument)
    if size > _MEMORY_MAX:
        raise InvalidArgumentError(f"{argument} is more than any machine has: {memory!r}", argument=argument)
    return size


def folder_path(path: Any, argument: str = "path") -> Path:
    """`path` as a path that the system takes, and that means the same after a change of directory."""
    try:
        folder = Path(path).absolute()
        if b"\0" not in bytes(folder):
            return folder
    except (TypeError, UnicodeError):
        pass
    except OSError as error:
        raise InvalidArgumentError(
            f"{argument} {str(path)!r} is relative to a directory that is gone: {error.strerror}",
            argument=argument,
        ) from error
    raise InvalidArgumentError(f"{argument} must be a path, not {path!r}", argument=argument)


def whole_number(value: Any, argument: str, low: int, high: int) -> int:
    """`value` as an int between `low` and `high`, or an `InvalidArgumentError`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidArgumentError(f"{argument} must be a whole number, not {value!r}", argument=argument)
    if not low <= int(value) <= high:
        bound = f"at least {low}" if int(value) < low else f"at most {high}"
        raise InvalidArgumentError(f"{argument} must be {bound}, not {int(value)}", argument=argument)
    return int(value)


@cache
def k_of_one_search() -> int:
    """Neighbors that one search of the library brings at most."""
    return native_limit("k").high


def limit_of(argument: str) -> Limit:
    """The limits of an argument such as "degree", the same in Python, over HTTP and in commands."""
    return _OWN_LIMITS.get(argument) or native_limit(argument)


def in_range(value: Any, argument: str, limit: str | None = None) -> int:
    """`value` as an int within the limits of its argument, or of `limit` if that has another name.

    Raises
    ------
    InvalidArgumentError
    """
    return whole_number(value, argument, *limit_of(limit or argument))


def real_number(value: Any, argument: str, low: float, high: float) -> float:
    """`value` as a float between `low` and `high`, or an `InvalidArgumentError`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not low <= float(value) <= high:
        raise InvalidArgumentError(
            f"{argument} must be between {low} and {high}, not {value!r}", argument=argument
        )
    return float(value)
