"""The request to open an index of another library, and its result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from velo.errors import FormatError, InvalidArgumentError
from velo.types import MetricName

__all__ = ["ROWS", "Asked", "Batch", "ForeignIndex", "file_of", "metric_of"]

#: Rows that are read at once.
ROWS: Final = 10_000
_METRICS: Final = ("l2", "ip", "cosine")

#: Ids, vectors, and a table of a row each, or None.
Batch = tuple[Any, Any, Any]


@dataclass(frozen=True)
class Asked:
    """The index to open, and facts that its files may lack.

    Attributes
    ----------
    source : str
        A path, or the address of a server.
    collection : str or None
        If there are several in one place.
    vector : str or None
        If a row has several vectors.
    ids_column : str or None
        The column with the ids of rows; None: numbers from 0.
    """

    source: str
    metric: str | None = None
    collection: str | None = None
    vector: str | None = None
    ids_column: str | None = None


@dataclass(frozen=True)
class ForeignIndex:
    """An index of another library, read in batches of ids, vectors and tables with `schema`.

    `notes` tell how the vectors read differ from the original ones.
    """

    dim: int
    metric: MetricName
    batches: Iterator[Batch]
    schema: Any = None
    notes: tuple[str, ...] = field(default=())


def metric_of(asked: Asked, told: str | None) -> Any:
    """The metric of the index, or the one given if it names none; InvalidArgumentError if they differ."""
    given = asked.metric
    if given is not None and given not in _METRICS:
        raise InvalidArgumentError(
            f"metric is one of {', '.join(_METRICS)}, not {given!r}", argument="metric"
        )
    if told is None and given is None:
        raise InvalidArgumentError(
            f"{asked.source} does not name its metric: give it with metric",
            argument="metric",
        )
    if told is not None and given is not None and told != given:
        raise InvalidArgumentError(f"{asked.source} compares by {told}, not by {given}", argument="metric")
    return told or given


def file_of(asked: Asked) -> Path:
    """The file of an index; FormatError if there is none."""
    path = Path(asked.source)
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise FormatError(f"{path} {what}", file=str(path))
    return path
