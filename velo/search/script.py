"""Answers that take several searches, written once for callers that block and for those that wait.

A script is a generator: it yields what to search for, is sent what was found, and returns its answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from velo.search.answer import COUNTERS
from velo.search.request import Request
from velo.types import AnyArray

__all__ = [
    "HITS_AT_ONCE",
    "Answer",
    "CombinedHits",
    "Requests",
    "Round",
    "Script",
    "Totals",
    "blocks",
    "drive",
    "drive_async",
    "requests_of",
]

#: Hits that one search of a script may bring, over all its queries: bounds what a script holds at once.
HITS_AT_ONCE: Final = 1 << 22

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One search of a script: native queries, k, and a compiled filter (or None) for each.

    With `scan` it looks at the codes of all rows that pass, unless the caller chose how filters are met.
    """

    queries: AnyArray
    k: int
    filters: Sequence[Any]
    scan: bool = False


@dataclass(slots=True, eq=False)
class CombinedHits:
    """The combined hits of several searches, shaped like a :class:`Request`."""

    vertices: AnyArray
    distances: AnyArray
    counts: AnyArray
    counters: dict[str, AnyArray]

    @property
    def k(self) -> int:
        """Places a query."""
        return int(self.vertices.shape[1])

    def stats(self) -> dict[str, AnyArray]:
        """The counters of all searches, summed for each query."""
        return self.counters


Script: TypeAlias = Generator[Round, CombinedHits | Request, Answer]
#: The same once its searches were made into requests: of one search, or of a script.
Requests: TypeAlias = Generator[Request, Request, Answer]


def requests_of(script: Script[Answer], prepare: Callable[[Round], Request]) -> Requests[Answer]:
    """A script whose searches are made into requests."""
    try:
        step = next(script)
        while True:
            step = script.send((yield prepare(step)))
    except StopIteration as ended:
        answer: Answer = ended.value
        return answer


def drive(requests: Requests[Answer], run: Callable[[Request], Request]) -> Answer:
    """Have requests answered one after another, blocking."""
    try:
        step = next(requests)
        while True:
            step = requests.send(run(step))
    except StopIteration as ended:
        answer: Answer = ended.value
        return answer


async def drive_async(requests: Requests[Answer], run: Callable[[Request], Awaitable[Request]]) -> Answer:
    """The same, awaiting each."""
    try:
        step = next(requests)
        while True:
            step = requests.send(await run(step))
    except StopIteration as ended:
        answer: Answer = ended.value
        return answer


def blocks(rows: Sequence[int], k: int) -> Generator[Sequence[int], None, None]:
    """`rows`, so many at a time that their hits stay below ``HITS_AT_ONCE``."""
    step = max(1, HITS_AT_ONCE // k)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


@dataclass(slots=True, eq=False)
class Totals:
    """The counters of all searches of a script, summed for each query."""

    count: int
    stats: dict[str, AnyArray] = field(init=False)

    def __post_init__(self) -> None:
        self.stats = {name: np.zeros(self.count, np.uint64) for name in COUNTERS}

    def add(self, rows: Sequence[int], request: CombinedHits | Request) -> None:
        """Count a search whose queries were `rows`, which may repeat."""
        for name, values in request.stats().items():
            np.add.at(self.stats[name], np.asarray(rows, np.int64), values.astype(np.uint64))
