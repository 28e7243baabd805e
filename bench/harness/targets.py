"""Targets of a report: a bound, how its value follows from the sections, and the verdict."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bench.harness import curves
from bench.harness.curves import At, Row

Found = Mapping[str, Row]
#: Computes a value and a note from the sections. Raises Missing with the reason where it cannot.
Value = Callable[[Found], tuple[float, str]]
NOT_ASKED = "not asked for"


class Missing(Exception):
    """A value that was not measured; the message is the reason."""


@dataclass(frozen=True)
class Line:
    """One line of a table of targets; the note names the settings, or the reason where there is no value."""

    what: str
    target: str
    value: float | None
    note: str = ""
    digits: int = 3

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not measured"
        return "met" if holds(self.target, self.value) else "**missed**"

    @property
    def measured(self) -> str:
        return f"not measured: {self.note}" if self.value is None else f"{self.value:,.{self.digits}f}"

    def record(self) -> Row:
        """The line as a JSON row."""
        return {"line": asdict(self) | {"verdict": self.verdict}}


@dataclass(frozen=True)
class Target:
    """A bound and the computation of the value that is held against it."""

    what: str
    bound: str
    value: Value
    digits: int = 2

    def line(self, found: Found) -> Line:
        try:
            value, note = self.value(found)
        except Missing as why:
            return Line(self.what, self.bound, None, str(why), self.digits)
        return Line(self.what, self.bound, value, note, self.digits)


def holds(target: str, value: float) -> bool:
    """Whether ``value`` satisfies a bound such as ``≥ 0.9``, ``≤ 1/3`` or ``< 1``."""
    sign, _, text = target.partition(" ")
    above, _, below = text.partition("/")
    bound = float(above) / float(below or 1)
    match sign:
        case "≥":
            return value >= bound
        case "≤":
            return value <= bound
        case "<":
            return value < bound
    raise ValueError(f"a bound begins with ≥, ≤ or <, not {target!r}")


def tally(lines: Iterable[Line]) -> str:
    """``12 met, 3 missed, 1 not measured``."""
    verdicts = [line.verdict.strip("*") for line in lines]
    return ", ".join(f"{verdicts.count(kind)} {kind}" for kind in ("met", "missed", "not measured"))


# ---- values of sections ----


def result(found: Found, section: str) -> Row:
    """The result of a section. Raises Missing with its error."""
    row = found.get(section, {})
    if "result" not in row:
        raise Missing(str(row.get("error", NOT_ASKED)))
    told: Row = row["result"]
    return told


def curve(found: Found, path: str) -> list[Row]:
    """The rows of a curve, ``velo20`` or ``disk/on`` for the key ``on``; none where it was not measured."""
    section, _, key = path.partition("/")
    rows: list[Row] = found.get(section, {}).get("result", {}).get(key or "rows", [])
    return rows


def of(section: str, value: str | Callable[[Any], float], note: str | Callable[[Any], str] = "") -> Value:
    """A number of one section's result.

    ``value`` is a path such as ``burst.rows``, or two with `` / `` or `` - `` between them; ``note`` is a
    format string over the result. Both may be functions of the result.
    """

    def computed(found: Found) -> tuple[float, str]:
        told = result(found, section)
        try:
            number = _number(told, value) if isinstance(value, str) else value(told)
            return float(number), note.format_map(told) if isinstance(note, str) else note(told)
        except (KeyError, IndexError, StopIteration, TypeError, ZeroDivisionError) as why:
            raise Missing(f"{section} has no such value: {why!r}") from why

    return computed


def _number(told: Any, text: str) -> float:
    for sign, combine in ((" / ", operator.truediv), (" - ", operator.sub)):
        left, found, right = text.partition(sign)
        if found:
            return float(combine(_number(told, left), _number(told, right)))
    for key in text.split("."):
        told = told[int(key)] if isinstance(told, list) else told[key]
    return float(told)


def at(path: str, key: str, recall: float) -> Value:
    """``key`` of a curve at a recall."""

    def computed(found: Found) -> tuple[float, str]:
        return _noted(_at(found, path, key, recall))

    return computed


def ratio(mine: str, theirs: str, key: str, recall: float) -> Value:
    """``key`` of one curve over that of another at the same recall."""

    def computed(found: Found) -> tuple[float, str]:
        for path in (mine, theirs):
            try:
                _at(found, path, key, recall)
            except Missing as why:
                raise Missing(f"{path.partition('/')[0]}: {why}") from why
        both = curves.ratio(curve(found, mine), curve(found, theirs), key, recall)
        if both is None:
            raise Missing("no ratio")
        return _noted(both)

    return computed


def _at(found: Found, path: str, key: str, recall: float) -> At:
    section, _, _ = path.partition("/")
    result(found, section)
    rows = curve(found, path)
    value = curves.at_recall(rows, key, recall)
    if value is None:
        raise Missing(curves.why_missing(rows, recall))
    return value


def _noted(value: At) -> tuple[float, str]:
    return value.value, value.how if value.exact else f"{value.how}; the curve begins above the recall"
