"""The load of ``bench soak``: callers that read and write, and say of each call what came of it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

import velo
from velo_serving import Client

#: Ids from here on are the writers' own.
FIRST_NEW_ID = 1_000_000

#: Ids of each writer: few enough that rows are replaced all the time, and their number stays bounded.
WRITER_IDS = 2000

#: Replicas see a write a tenth of a second later; a row is looked at only when it is older than this.
SETTLED_S = 2.0

READ_PAUSE_S = 0.04
WRITE_PAUSE_S = 0.1

#: Calls after which a caller connects anew, so that connections spread over gateways that come and go.
CALLS_A_CONNECTION = 40

#: A write that found its shard away is sent again, under the same name, until it is done or this has passed.
WRITE_LIMIT_S = 90.0

Kind = Literal["read", "write"]


@dataclass(frozen=True)
class Build:
    """One of the two builds that replace each other; no id is in both."""

    name: str
    path: str
    vectors: np.ndarray
    first_id: int

    def has(self, ids: np.ndarray) -> np.ndarray:
        """Which ids are of this build's own rows."""
        return (ids >= self.first_id) & (ids < self.first_id + len(self.vectors))


@dataclass(frozen=True)
class Call:
    """One call: when it began, how long it took, and what came of it (nothing to say: an empty outcome)."""

    at_s: float
    took_s: float
    kind: Kind
    what: str
    outcome: str


@dataclass
class Ledger:
    """The calls, and the rows that must be there: written by callers, read by the judge."""

    started: float = field(default_factory=time.monotonic)
    calls: list[Call] = field(default_factory=list)
    #: By build: the stamp that each id was last given, or None where it was deleted.
    rows: dict[str, dict[int, int | None]] = field(default_factory=lambda: {"a": {}, "b": {}})
    #: By build: ids whose last write ran beside a publication, so that either build may have it.
    unknown: dict[str, set[int]] = field(default_factory=lambda: {"a": set(), "b": set()})
    #: The time of the last write of an id.
    written: dict[int, float] = field(default_factory=dict)
    #: The build that is served, or None while one takes the place of the other; counts publications.
    serving: tuple[str | None, int] = ("a", 0)
    #: Whether anything happens that may be announced: then rows are not looked at.
    disturbed: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    def now(self) -> float:
        return time.monotonic() - self.started

    def is_there(self, build: str | None, one: int) -> bool:
        """Whether a row is there for certain: it was written, and not beside a publication."""
        return build is not None and one not in self.unknown[build] and self.rows[build].get(one) is not None

    def is_calm(self) -> bool:
        """Whether nothing happens, so that what was written must be there."""
        return self.serving[0] is not None and not self.disturbed

    def note(self, at_s: float, kind: Kind, what: str, outcome: str) -> None:
        self.calls.append(Call(at_s, self.now() - at_s, kind, what, outcome))

    def wrote(self, before: tuple[str | None, int], stamps: Mapping[int, int | None]) -> None:
        """A write was acknowledged that began while `before` was served."""
        build, _ = before
        now = self.now()
        for one in stamps:
            self.written[one] = now
        if build is not None and before == self.serving:
            self.rows[build].update(stamps)
            self.unknown[build].difference_update(stamps)
            return
        for name in self.rows:
            self.unknown[name].update(stamps)


def outcome_of(error: BaseException) -> str:
    return type(error).__name__ if isinstance(error, velo.VeloError) else f"{type(error).__name__}: {error}"


class Caller(threading.Thread):
    """A thread that asks until it is over, over connections that it renews."""

    def __init__(self, name: str, ledger: Ledger, connect: Callable[[], Client], seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.ledger = ledger
        self.draw = np.random.default_rng(seed)
        #: The error that ended this thread before its time.
        self.fault: BaseException | None = None
        self._connect = connect

    def run(self) -> None:
        try:
            while not self.ledger.over.is_set():
                with self._connect() as client:
                    for _ in range(CALLS_A_CONNECTION):
                        if self.ledger.over.is_set():
                            return
                        self.call(client)
        except BaseException as error:
            self.fault = error

    def call(self, client: Client) -> None:
        """Ask once; each kind of caller has its own way."""
        raise NotImplementedError


def stamps_of(rows: pa.Table) -> dict[Any, Any]:
    """The stamps of rows by their ids."""
    return dict(zip(rows["id"].to_pylist(), rows["stamp"].to_pylist(), strict=True))


class Reader(Caller):
    """Searches, looks rows up and counts them; every answer is of one build."""

    def __init__(
        self,
        number: int,
        ledger: Ledger,
        connect: Callable[[], Client],
        builds: tuple[Build, Build],
        seed: int,
    ) -> None:
        super().__init__(f"reader-{number}", ledger, connect, seed)
        self._builds = builds
        #: Searches for a row of the build that answered, and how many of them found it.
        self.looked = self.found = 0

    def call(self, client: Client) -> None:
        what = str(self.draw.choice(["one", "filter", "many", "get", "count"], p=[0.6, 0.15, 0.1, 0.1, 0.05]))
        at_s = self.ledger.now()
        try:
            outcome = self._ask(client, what)
        except Exception as error:
            outcome = outcome_of(error)
        self.ledger.note(at_s, "read", what, outcome)
        time.sleep(READ_PAUSE_S * (0.5 + self.draw.random()))

    def _ask(self, client: Client, what: str) -> str:
        build = self._builds[int(self.draw.integers(2))]
        rows = self.draw.integers(len(build.vectors), size=8 if what == "many" else 1)
        if what == "count":
            return "" if client.count() >= len(build.vectors) else "wrong count"
        if what == "get":
            asked = [one.first_id + int(rows[0]) for one in self._builds]
            there = len(client.get(asked, columns=["stamp"], unknown="skip"))
            return "" if there == 1 else f"wrong: rows of {there} builds"
        options: dict[str, Any] = {"filter": {"bucket": {"$lt": 5}}} if what == "filter" else {}
        answer = client.search(build.vectors[rows], k=10, timeout_s=10.0, **options)
        ids = np.asarray(answer.ids)
        if sum(bool(one.has(ids).any()) for one in self._builds) != 1:
            return "wrong: not of one build"
        if (ids < 0).any():
            return "wrong: fewer than k"
        if what != "filter" and build.has(ids).any() and not answer.partial:
            self.looked += len(rows)
            self.found += int((ids == (build.first_id + rows)[:, None]).any(axis=1).sum())
        return "partial" if answer.partial else ""


class Writer(Caller):
    """Upserts, updates and deletes rows of its own, repeats what was refused, and checks its rows."""

    def __init__(
        self, number: int, ledger: Ledger, connect: Callable[[], Client], dim: int, seed: int
    ) -> None:
        super().__init__(f"writer-{number}", ledger, connect, seed)
        self._first = FIRST_NEW_ID + number * WRITER_IDS
        self._dim = dim
        self._stamp = 0
        #: The number of rows that were looked at, and of those written again under the same name.
        self.looked = self.repeated = 0

    def call(self, client: Client) -> None:
        ids = self._first + self.draw.choice(WRITER_IDS, size=8, replace=False)
        what = str(self.draw.choice(["upsert", "update", "delete", "look"], p=[0.5, 0.15, 0.1, 0.25]))
        if what == "look":
            self._look(client, ids)
        else:
            self._write(client, what, ids)
        time.sleep(WRITE_PAUSE_S * (0.5 + self.draw.random()))

    def _write(self, client: Client, what: str, ids: np.ndarray) -> None:
        self._stamp += 1
        before, name = self.ledger.serving, secrets.token_hex(8)
        vectors = self.draw.standard_normal((len(ids), self._dim)).astype(np.float32)
        columns = {"stamp": [self._stamp] * len(ids), "bucket": [int(one) % 10 for one in ids]}
        if what == "update":
            # Only of rows that are there for certain: an update of one that is not does nothing.
            ids = np.array([one for one in ids if self.ledger.is_there(before[0], int(one))], np.int64)
            columns = {"stamp": [self._stamp] * len(ids)}
            if not len(ids):
                return
        end, tries = time.monotonic() + WRITE_LIMIT_S, 0
        while True:
            at_s = self.ledger.now()
            try:
                if what == "upsert":
                    client.upsert(vectors, ids, columns, request=name)
                elif what == "update":
                    client.update(ids, columns, request=name)
                else:
                    client.delete(ids.tolist())
            except Exception as error:
                self.ledger.note(at_s, "write", what, outcome_of(error))
                tries += 1
                if time.monotonic() > end:
                    self.ledger.note(at_s, "write", what, "never written")
                    # Parts of it may be there.
                    self.ledger.wrote((None, -1), dict.fromkeys(map(int, ids)))
                    return
                time.sleep(0.2)
            else:
                self.ledger.note(at_s, "write", what, "")
                break
        self.repeated += tries > 0
        stamp = None if what == "delete" else self._stamp
        self.ledger.wrote(before, dict.fromkeys(map(int, ids), stamp))

    def _look(self, client: Client, ids: np.ndarray) -> None:
        """Whether what was acknowledged is there, while nothing happens."""
        build, publications = self.ledger.serving
        now = self.ledger.now()
        if build is None or not self.ledger.is_calm():
            return
        rows, unknown = self.ledger.rows[build], self.ledger.unknown[build]
        settled = [
            int(one)
            for one in ids
            if int(one) in rows
            and int(one) not in unknown
            and self.ledger.written[int(one)] < now - SETTLED_S
        ]
        if not settled:
            return
        at_s = self.ledger.now()
        try:
            found = stamps_of(client.get(settled, columns=["stamp"], unknown="skip"))
        except Exception as error:
            self.ledger.note(at_s, "read", "look", outcome_of(error))
            return
        if not self.ledger.is_calm() or self.ledger.serving != (build, publications):
            return
        wrong = [one for one in settled if found.get(one) != rows[one]]
        self.looked += len(settled)
        self.ledger.note(
            at_s, "read", "look", f"wrong: {len(wrong)} rows are not as written" if wrong else ""
        )
