"""What a part is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from velo.options import METRIC_CODES
from velo.parts.part import Part
from velo.parts.view import View
from velo.types import AnyArray
from velo.upkeep.source_columns import SourceColumns
from velo.upkeep.source_rows import SourceRows

__all__ = ["Sources"]

#: Of a vertex whose row no new part has, as velo.h spells it.
_GONE: Final = np.iinfo(np.uint32).max


@dataclass(frozen=True)
class Sources:
    """What a part is made of: some of the parts of a view, its delta, or both.

    Attributes
    ----------
    view : View
    names : list of str
        The folder of each part of the view.
    parts : list of int
        Those of them whose place it takes, ascending.
    vertices : ndarray
        The rows that it gets, ascending.
    with_delta : bool
        It takes the place of the delta.
    """

    view: View
    names: list[str]
    parts: list[int]
    vertices: AnyArray
    with_delta: bool

    @classmethod
    def alive(cls, view: View, names: list[str], parts: list[int], *, with_delta: bool) -> Sources:
        """What lives in some parts of a view, and in its delta where it has one."""
        starts = np.cumsum([0, *(part.n for part in view.parts)])
        taken = np.zeros(view.n, bool)
        for part in parts:
            rows = view.alive[part].rows
            taken[starts[part] : starts[part + 1]] = True if rows is None else rows.matches()
        if with_delta:
            taken[starts[-1] :] = view.delta_alive
        return cls(view, names, parts, np.flatnonzero(taken), with_delta and view.native.delta_rows > 0)

    @property
    def count(self) -> int:
        """How many rows it gets."""
        return len(self.vertices)

    @property
    def of_rows(self) -> int:
        """Rows of the whole index."""
        return self.view.n

    @property
    def takes_parts(self) -> bool:
        """Whether it takes the place of parts."""
        return bool(self.parts)

    @property
    def like(self) -> Part | None:
        """The largest part of the view, whose bits and degree the new one gets."""
        return self.view.largest

    def vectors(self) -> SourceRows:
        """The rows' vectors."""
        return SourceRows(self.view, self.vertices, self.dtype)

    def ids(self) -> Any:
        """The rows' ids."""
        return self.view.ids.of(self.vertices)

    def metadata(self) -> SourceColumns | None:
        """The rows' columns, or None."""
        return None if self.view.metadata is None else SourceColumns(self.view.metadata, self.vertices)

    @cached_property
    def coded(self) -> list[int]:
        """Those of the parts that store no vectors, if rows of theirs are taken: codes are all there is."""
        numbers = [number for number in self.parts if not self.view.parts[number].stores_vectors]
        return [number for number in numbers if (own := self._rows_of(number)[1]).stop > own.start]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the rows: codes of cosine tell directions, which whole numbers do not hold."""
        parts = self.view.parts
        is_direction = any(parts[number].metric == METRIC_CODES["cosine"] for number in self.coded)
        own = self.view.shape.dtype
        return np.dtype(np.float32) if is_direction and own.kind != "f" else own

    @property
    def calibration(self) -> Mapping[str, Any] | None:
        """What was measured of the largest part; where codes are all there is, of one that has only codes."""
        coded = [self.view.parts[number] for number in self.coded]
        of = max(coded, key=lambda part: part.n) if coded else self.view.largest
        return None if of is None else of.calibration

    def former(self, folder: Path) -> tuple[Path, AnyArray] | None:
        """The largest of these parts, and the row in the new one of each of its vertices."""
        if not self.parts:
            return None
        number = max(self.parts, key=lambda part: self.view.parts[part].n)
        first, own = self._rows_of(number)
        rows = np.full(self.view.parts[number].n, _GONE, np.uint32)
        rows[self.vertices[own] - first] = np.arange(own.start, own.stop)
        return folder / self.names[number], rows

    @property
    def of_delta(self) -> Sources:
        """The rows of the delta alone."""
        first = sum(part.n for part in self.view.parts)
        return replace(self, parts=[], vertices=self.vertices[np.searchsorted(self.vertices, first) :])

    def moved(self, view: View, names: list[str], part: str | None) -> Sources:
        """The same rows in a later view: those of the delta became this part, if there were any."""
        added = len(self.of_delta.vertices)
        stored = self.vertices[: len(self.vertices) - added]
        if part is None:
            return Sources(view, names, self.parts, stored, with_delta=False)
        number = names.index(part)
        first = sum(part.n for part in view.parts[:number])
        return Sources(
            view,
            names,
            [*self.parts, number],
            np.concatenate([stored, np.arange(first, first + added)]),
            with_delta=False,
        )

    def taken(self) -> AnyArray:
        """Of each of these parts which of its rows are taken: a bit a row, in words of its own."""
        words = [np.zeros(0, np.uint64)]
        for number in self.parts:
            first, own = self._rows_of(number)
            bits = np.zeros(-(-self.view.parts[number].n // 64) * 64, bool)
            bits[self.vertices[own] - first] = True
            words.append(np.packbits(bits, bitorder="little").view(np.uint64))
        return np.concatenate(words)

    def _rows_of(self, number: int) -> tuple[int, slice]:
        """The first vertex of a part, and where its rows are among those that are taken."""
        first = sum(part.n for part in self.view.parts[:number])
        start, stop = np.searchsorted(self.vertices, [first, first + self.view.parts[number].n])
        return first, slice(int(start), int(stop))
