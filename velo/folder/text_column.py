"""The column of an index that full-text searches use; its name is kept in the schema's metadata."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from velo.errors import InvalidArgumentError, UnknownColumnError

#: In the metadata of a schema, wherever that is kept: in the root, and with the columns of each part.
_KEY: Final = b"velo.text"


def text_column_of(schema: Any) -> str | None:
    """The text column; None if there is none, also if a schema lost the column and kept its name."""
    name = None if schema is None else (schema.metadata or {}).get(_KEY)
    if name is None:
        return None
    found = str(name.decode(errors="replace"))
    return found if found in schema.names and _is_text(schema.field(found).type) else None


def with_text_column(schema: Any, name: Any) -> Any:
    """A schema with `name` marked as the text column."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"text is the name of a column, not {name!r}", argument="text")
    if schema is None or name not in schema.names:
        there = ", ".join(map(repr, [] if schema is None else schema.names)) or "none"
        raise UnknownColumnError(
            f"text: the metadata has no column {name!r}; there are: {there}", argument="text"
        )
    kind = schema.field(name).type
    if not _is_text(kind):
        raise InvalidArgumentError(
            f"text: column {name!r} is {kind}; words come from a column of strings", argument="text"
        )
    return schema.with_metadata({**(schema.metadata or {}), _KEY: name.encode()})


def kept_text_column(before: Any, schema: Any) -> Any:
    """A new schema, with the text column of the old one; an error if the new one lacks it."""
    name = text_column_of(before)
    if name is None:
        return schema
    try:
        return with_text_column(schema, name)
    except (InvalidArgumentError, UnknownColumnError) as error:
        error.argument = "metadata"
        raise


def _is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_view = getattr(pa.types, "is_string_view", lambda _: False)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_view(kind))
