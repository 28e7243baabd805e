"""Filters over one index: its metadata, ids and rows."""

from __future__ import annotations

from typing import Any

from velo.errors import FilterTypeError, InvalidArgumentError
from velo.filters.compiler import Columns, FilterCompiler
from velo.folder.ids import Ids
from velo.types import Int64Array

__all__ = ["compiler_for"]


def compiler_for(
    row_count: int,
    store: Columns | None,
    ids: Ids,
    unknown_is_missing: bool = False,
    *,
    with_masks: bool = True,
) -> FilterCompiler:
    """The compiler of an open index: conditions over its metadata, masks over its rows, its ids."""

    def vertices_of(values: Any) -> Int64Array:
        try:
            return ids.find(values, "filter")
        except InvalidArgumentError as error:
            said = error.message.removeprefix("filter: ").removeprefix("filter ")
            raise FilterTypeError(f"filter {said}", argument="filter") from error

    return FilterCompiler(
        row_count,
        store,
        rows=ids.rows if with_masks else None,
        vertices_of=vertices_of,
        unknown_is_missing=unknown_is_missing,
    )
