"""The lines of a report: what, target, measured, and whether the target is met."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from bench.harness import tables


@dataclass(frozen=True)
class Line:
    """One line of a table of targets.

    Attributes
    ----------
    what : str
    target : str
        As it is printed: ``≥ 0.6``, ``≤ 16``.
    value : float or None
        None where it was not measured.
    note : str
        Between which settings it lies, or why it was not measured.
    digits : int
    """

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
        if self.value is None:
            return f"not measured: {self.note}"
        return f"{self.value:,.{self.digits}f}"

    def record(self) -> dict[str, Any]:
        """For JSON lines."""
        return {"line": asdict(self) | {"verdict": self.verdict}}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Line:
        """The line that ``record`` was made of."""
        return cls(**{key: value for key, value in record["line"].items() if key != "verdict"})


def holds(target: str, value: float) -> bool:
    """Whether ``value`` keeps a target such as ``≥ 0.9``, ``≤ 1/3`` or ``< 1``."""
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
    raise ValueError(f"a target begins with ≥, ≤ or <, not {target!r}")


def table(lines: Iterable[Line]) -> list[str]:
    """Markdown rows."""
    return tables.table(
        ["what", "target", "measured", "", "how"],
        [
            [line.what, line.target, line.measured, line.verdict, line.note if line.value is not None else ""]
            for line in lines
        ],
    )


def tally(lines: Iterable[Line]) -> str:
    """``12 met, 3 missed, 1 not measured``."""
    verdicts = [line.verdict.strip("*") for line in lines]
    parts = [f"{verdicts.count(kind)} {kind}" for kind in ("met", "missed", "not measured")]
    return ", ".join(parts)
