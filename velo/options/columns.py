"""Types of columns as text."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from velo.errors import InvalidArgumentError

#: Lists in lists.
_NESTED_MAX: Final = 8


def column_type(text: str, name: str, argument: str) -> pa.DataType:
    """Read the type of a column, such as ``int32`` or ``list<string>``."""
    kind = text.strip()
    if kind.count("<") > _NESTED_MAX:
        raise InvalidArgumentError(
            f"column {name!r}: lists lie {_NESTED_MAX} deep at most", argument=argument
        )
    if kind.startswith("list<") and kind.endswith(">"):
        return pa.list_(column_type(kind[5:-1], name, argument))
    of_name: Any = pa.type_for_alias
    try:
        found: pa.DataType = of_name(kind)
    except ValueError as error:
        raise InvalidArgumentError(
            f"column {name!r}: {kind!r} is not a type; int64, float32, string, bool, timestamp[us] or "
            "list<string> are",
            argument=argument,
        ) from error
    return found
