"""Metadata of documents: as text that keeps all of it, and as columns for filters."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import date, datetime, timezone
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from velo.errors import FilterError, InvalidArgumentError

#: The kinds of values that a filter can look at, and the type of their columns.
KINDS: Final[dict[str, Any]] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "time": pa.timestamp("us"),
    "instant": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
    "texts": pa.list_(pa.string()),
    "ints": pa.list_(pa.int64()),
    "floats": pa.list_(pa.float64()),
    "other": pa.bool_(),
}
#: Kinds that hold text.
TEXTS: Final = ("text", "texts")
#: How the columns of a store's own begin.
OWN: Final = "velo_"
#: Between the name of a field and its kind, where the field has values of several kinds.
_OF_KIND: Final = "::"
#: The key under which text keeps what JSON has no word for.
_TAG: Final = "velo:is"
#: How deeply values may be nested.
_DEPTH_MAX: Final = 64


# ---- text that keeps everything


def encoded(value: Any, where: str) -> bytes:
    """A value as JSON, from which :func:`decoded` makes an equal one."""
    try:
        return json.dumps(_plain(value, where, 0), ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{where}: a text is not UTF-8: {error}", argument="metadata") from error


def _plain(value: Any, where: str, depth: int) -> Any:
    if depth > _DEPTH_MAX:
        raise InvalidArgumentError(f"{where} is nested deeper than {_DEPTH_MAX}", argument="metadata")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and _TAG not in value:
            return {key: _plain(one, f"{where}.{key}", depth + 1) for key, one in value.items()}
        pairs = [
            [_plain(key, where, depth + 1), _plain(one, f"{where}.{key}", depth + 1)]
            for key, one in value.items()
        ]
        return {_TAG: ["pairs", pairs]}
    if isinstance(value, list | tuple):
        items = [_plain(one, f"{where}[{at}]", depth + 1) for at, one in enumerate(value)]
        return items if isinstance(value, list) else {_TAG: ["tuple", items]}
    if isinstance(value, datetime):
        return {_TAG: ["datetime", value.isoformat()]}
    if isinstance(value, date):
        return {_TAG: ["date", value.isoformat()]}
    if isinstance(value, UUID):
        return {_TAG: ["uuid", str(value)]}
    if isinstance(value, bytes):
        return {_TAG: ["bytes", base64.b64encode(value).decode()]}
    raise InvalidArgumentError(
        f"{where} is a {type(value).__name__}: metadata holds what JSON holds, times, UUIDs and bytes",
        argument="metadata",
    )


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "pairs": dict,
    "tuple": tuple,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "uuid": UUID,
    "bytes": base64.b64decode,
}


def decoded(text: bytes) -> Any:
    """The value that :func:`encoded` was given."""
    return json.loads(text, object_hook=_read)


def _read(value: dict[str, Any]) -> Any:
    if _TAG not in value:
        return value
    kind, inside = value[_TAG]
    return _READERS[kind](inside)


# ---- columns for filters


def values_of(metadata: Mapping[str, Any], *, dates_in_texts: bool) -> dict[tuple[str, str], Any]:
    """The values of a document's metadata for filters, by field and kind.

    A nested dict gives the fields ``outer.inner``. With `dates_in_texts` a text that is a date of ISO 8601 is
    a time, too; ``time`` then is the local clock's time also for times with a zone, which have an ``instant``
    as well.
    """
    found: dict[tuple[str, str], Any] = {}
    for field, value in _fields(metadata, ""):
        for kind, held in _kinds(value, dates_in_texts):
            found[field, kind] = held
    return found


def _fields(metadata: Mapping[Any, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in metadata.items():
        name = f"{before}{key}"
        if _OF_KIND in name or name.startswith(OWN):
            raise InvalidArgumentError(
                f"metadata: {name!r} is not a field name: none begins with {OWN!r} or contains {_OF_KIND!r}",
                argument="metadata",
            )
        if isinstance(value, Mapping) and value:
            yield from _fields(value, f"{name}.")
        elif value is not None:
            yield name, value


def _kinds(value: Any, dates_in_texts: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        yield "bool", value
    elif isinstance(value, int) and -(2**63) <= value < 2**63:
        yield "int", value
    elif isinstance(value, float):
        yield "float", value
    elif isinstance(value, str | UUID):
        yield "text", str(value)
        moment = as_date(value) if dates_in_texts else None
        if moment is not None:
            yield from _moments(moment)
    elif isinstance(value, datetime):
        if dates_in_texts:
            yield from _moments(value)
        elif value.tzinfo is None:
            yield "time", value
        else:
            yield "instant", value.astimezone(timezone.utc)
    elif isinstance(value, date):
        yield "date", value
    elif isinstance(value, list | tuple) and value:
        kind = _list_kind(value)
        yield kind, True if kind == "other" else list(value)
    else:  # a field that is there, and that no comparison holds for; False: an empty list
        yield "other", not isinstance(value, list | tuple)


def _moments(moment: datetime) -> Iterator[tuple[str, datetime]]:
    yield "time", moment.replace(tzinfo=None)
    if moment.tzinfo is not None:
        yield "instant", moment.astimezone(timezone.utc)


def _list_kind(values: Sequence[Any]) -> str:
    kinds = {type(one.item() if isinstance(one, np.generic) else one) for one in values}
    if kinds == {str}:
        return "texts"
    if kinds == {int} and all(-(2**63) <= one < 2**63 for one in values):
        return "ints"
    return "floats" if kinds <= {int, float} else "other"


def as_date(text: Any) -> datetime | None:
    """The moment that a text of ISO 8601 names, with all of its date; None where it names none."""
    if not isinstance(text, str) or len(text) < 10 or text[4] != "-" or text[7] != "-":
        return None
    try:
        return datetime.fromisoformat(text[:-1] + "+00:00" if text[-1] in "Zz" else text)
    except ValueError:
        return None


class Columns:
    """The columns of an index that hold fields, by field and kind.

    A field's first kind has a column of the field's name, further ones ``field::kind``. `filterable` limits
    the fields that filters may use.
    """

    def __init__(self, schema: Any, filterable: Collection[str] | None = None) -> None:
        self.schema = schema
        self._filterable = filterable
        self._of: dict[str, dict[str, str]] = {}
        kinds = {one: kind for kind, one in KINDS.items() if kind != "other"}
        for column in schema:
            field, _, kind = column.name.rpartition(_OF_KIND)
            if not field or kind not in KINDS:
                field, kind = column.name, kinds.get(column.type, "other")
            self._of.setdefault(field, {})[kind] = column.name

    def of(self, field: str) -> dict[str, str]:
        """The columns of a field by kind; empty if no document has it."""
        asked = self._filterable
        if asked is not None and field.partition(".")[0] not in asked and not field.startswith(OWN):
            raise FilterError(
                f"filter: {field!r} is not filterable; these fields are: {', '.join(sorted(asked))}",
                argument="filter",
            )
        return self._of.get(field, {})

    def within(self, field: str) -> list[str]:
        """All columns of a field, and those of the fields inside it."""
        names = list(self.of(field).values())
        for other, columns in self._of.items():
            if other.startswith(f"{field}."):
                names += columns.values()
        return names

    @property
    def fields(self) -> list[str]:
        return list(self._of)

    def missing(self, wanted: Sequence[tuple[str, str]]) -> Any:
        """A schema of the missing columns that these fields and kinds need."""
        added: dict[str, dict[str, str]] = {}
        fields = []
        for field, kind in wanted:
            known = {**self.of(field), **added.get(field, {})}
            if kind in known:
                continue
            name = field if not known and kind != "other" else f"{field}{_OF_KIND}{kind}"
            added.setdefault(field, {})[kind] = name
            fields.append(pa.field(name, KINDS[kind]))
        return pa.schema(fields)
