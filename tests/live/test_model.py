"""An index under random verbs against a dict and plain arithmetic."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import velo
from tests.live.other_process import other_process
from tests.long import count
from tests.rungs import LINKS, budget_of
from velo import errors

N, DIM = 160, 8
VECTORS = np.random.default_rng(11).normal(size=(N, DIM)).astype(np.float32)
IDS = np.random.default_rng(12).permutation(10 * N)[:N].astype(np.int64)
NUMBERS = np.arange(N) % 8

_built: Path | None = None


@cache
def memory_of(links: int | None) -> int | None:
    """The budget in which the index keeps a number of links; none without one."""
    return None if links is None else budget_of(built(), links)


def built() -> Path:
    """The index that every run begins with a copy of."""
    global _built
    if _built is None:
        _built = Path(tempfile.mkdtemp(prefix="velo-model-")) / "model.velo"
        velo.build(
            _built,
            VECTORS,
            ids=IDS,
            metadata=pa.table({"number": NUMBERS}),
            threads=1,
            calibrate=False,
            store_vectors=True,
        ).close()
    return _built


#: On which rung an index is opened; None: without a budget.
rungs = st.sampled_from([None, *LINKS])
some_ids = st.lists(st.one_of(st.sampled_from(IDS.tolist()), st.integers(-5, 10 * N)), max_size=25)


class Machine(RuleBasedStateMachine):
    """Writers of two processes, a reader that sees what it refreshes, and what they must say."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="velo-model-"))
        self.live = set(IDS.tolist())
        self.seen = set(self.live)
        self.sequence = 0
        #: They take turns.
        self.writer: Any = None
        self.other: Any = None
        #: How the process of each opens an index.
        self.opens: tuple[Callable[..., Any], Callable[..., Any]] = velo.open, other_process().open
        self.reader: Any = None

    @initialize(durability=st.sampled_from(["sync", "interval", "process"]), links=rungs)
    def start(self, durability: Any, links: int | None) -> None:
        shutil.copytree(built(), self.folder / "model.velo")
        self.open_writer(links, durability)
        self.take_turns()
        self.open_writer(links, durability)
        self.open_reader(links)

    def open_writer(self, links: int | None, durability: str) -> None:
        how: dict[str, Any] = {"writable": True, "durability": durability}
        self.writer = self.opens[0](self.folder / "model.velo", memory=memory_of(links), threads=1, **how)

    def open_reader(self, links: int | None) -> None:
        path = self.folder / "model.velo"
        self.reader = velo.open(path, memory=memory_of(links), threads=1, follow=False)

    def teardown(self) -> None:
        for index in (self.writer, self.other, self.reader):
            if index is not None:
                index.close()
        shutil.rmtree(self.folder)

    def written(self, done: velo.Written, gone: set[int], missing: int) -> None:
        self.sequence += bool(gone)
        assert (done.rows, done.missing, done.sequence) == (len(gone), missing, self.sequence)
        self.live -= gone

    @rule()
    def take_turns(self) -> None:
        self.writer, self.other = self.other, self.writer
        self.opens = self.opens[::-1]

    @rule(ids=some_ids)
    def delete(self, ids: list[int]) -> None:
        gone = set(ids) & self.live
        self.written(self.writer.delete(ids), gone, len(set(ids)) - len(gone))

    @rule(number=st.integers(0, 9), ids=some_ids)
    def delete_by_filter(self, number: int, ids: list[int]) -> None:
        condition = velo.col("number") == number
        matching = {int(IDS[row]) for row in range(N) if NUMBERS[row] == number} & self.live
        assert self.writer.count(condition) == len(matching)
        gone = matching & set(ids)
        mask = (number == NUMBERS) & np.isin(IDS, ids)
        try:
            done = self.writer.delete(filter=mask)
        except errors.FilterError as error:  # a merge in the background gave the rows other numbers
            if "rows came since" not in str(error):
                raise
            done = self.writer.delete(sorted(gone))
        self.written(done, gone, 0)

    @rule(number=st.integers(0, 40))
    def delete_by_condition(self, number: int) -> None:
        gone = {int(IDS[row]) for row in range(N) if NUMBERS[row] == number} & self.live
        self.written(self.writer.delete(filter=velo.col("number") == number), gone, 0)

    @rule(durability=st.sampled_from(["sync", "interval", "process"]), links=rungs)
    def reopen(self, durability: Any, links: int | None) -> None:
        self.writer.close()
        self.open_writer(links, durability)

    @rule()
    def flush(self) -> None:
        self.writer.flush()

    @rule()
    def refresh(self) -> None:
        assert self.reader.refresh() == (self.seen != self.live)
        self.seen = set(self.live)

    @rule(links=rungs)
    def reopen_reader(self, links: int | None) -> None:
        self.reader.close()
        self.open_reader(links)
        self.seen = set(self.live)

    @rule()
    def verify(self) -> None:
        assert velo.verify(self.folder / "model.velo") > 0

    @rule(row=st.integers(0, N - 1))
    def vectors(self, row: int) -> None:
        if int(IDS[row]) in self.live:
            assert self.writer.get_vectors([IDS[row]]).tolist() == VECTORS[[row]].tolist()
            return
        try:
            self.writer.get_vectors([IDS[row]])
        except errors.UnknownIdError:
            return
        raise AssertionError("a deleted row has a vector")

    @rule(row=st.integers(0, N - 1), number=st.integers(0, 9), least=st.booleans())
    def search_with_a_filter(self, row: int, number: int, least: bool) -> None:
        condition = velo.col("number") >= number if least else velo.col("number") == number
        passing = number <= NUMBERS if least else number == NUMBERS
        self.check(self.writer, self.live & set(IDS[passing].tolist()), VECTORS[row], filter=condition)
        self.check(self.reader, self.seen & set(IDS[passing].tolist()), VECTORS[row], filter=condition)

    @rule(row=st.integers(0, N - 1), among=some_ids)
    def search_among(self, row: int, among: list[int]) -> None:
        self.check(self.writer, self.live & set(among), VECTORS[row], filter=np.array(among, np.int64))

    @precondition(lambda self: self.writer is not None)
    @invariant()
    def agree(self) -> None:
        assert len(self.writer) == len(self.other) == len(self.live)
        assert len(self.reader) == len(self.seen)
        self.check(self.writer, self.live, VECTORS[3])
        self.check(self.other, self.live, VECTORS[3])
        self.check(self.reader, self.seen, VECTORS[3])

    @staticmethod
    def check(index: Any, expected: set[int], query: np.ndarray, **how: Any) -> None:
        found = index.search(query, N, list_size=512, **how)
        count = int(found.counts[0])
        assert set(found.ids[:count].tolist()) == expected
        assert (found.ids[count:] == -1).all()
        if count:  # the nearest, by plain arithmetic, as far as codes tell distances apart
            rows = np.flatnonzero(np.isin(IDS, found.ids[:count]))
            exact = ((VECTORS[rows] - query) ** 2).sum(axis=1)
            first = ((VECTORS[found.ids[0] == IDS][0] - query) ** 2).sum()
            assert first <= exact.min() + 0.05 * exact.max()


Machine.TestCase.settings = settings(
    max_examples=count(12, 40, "VELO_TEST_EXAMPLES"),
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestModel = Machine.TestCase
