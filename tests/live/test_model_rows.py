"""Rows that come, go and are folded, under random verbs, against a dict and plain arithmetic."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import velo
from tests.live.other_process import other_process
from tests.live.rows import no_room
from tests.long import count
from velo import errors

DIM, IDS = 4, 60
#: What a row may hold: each value is a vector and a number, modulo 5 unless an update changed it.
_NORMAL = np.random.default_rng(21).normal(size=(500, DIM))
VALUES = {
    "float32": _NORMAL.astype(np.float32),
    "float16": _NORMAL.astype(np.float16),
    "int8": np.rint(_NORMAL * 25).astype(np.int8),
    "uint8": np.rint(_NORMAL * 25 + 120).astype(np.uint8),
}
SCHEMA = pa.schema([("number", pa.int16()), ("value", pa.int64())])

some_ids = st.lists(st.integers(0, IDS - 1), min_size=1, max_size=12, unique=True)
values = st.integers(0, len(_NORMAL) - 1)


def distances_of(metric: str, rows: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Distances in float64."""
    rows, query = rows.astype(np.float64), query.astype(np.float64)
    products = rows @ query
    if metric == "l2":
        return np.asarray(((rows - query) ** 2).sum(axis=1))
    if metric == "ip":
        return -products
    return 1 - products / np.sqrt((rows**2).sum(axis=1) * (query**2).sum())


class Machine(RuleBasedStateMachine):
    """Writers of two processes, a reader that sees what it refreshes, and a dict from ids to values."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="velo-rows-")) / "rows.velo"
        self.live: dict[Any, tuple[int, int]] = {}
        self.seen: dict[Any, tuple[int, int]] = {}
        #: Of each column that was added what rows have in it that were there, and of each id what it has.
        self.added: dict[str, int | None] = {}
        self.marks: dict[Any, dict[str, int | None]] = {}
        self.sequence = self.seen_sequence = 0
        #: They take turns.
        self.writer: Any = None
        self.other: Any = None
        #: How the process of each opens an index.
        self.opens: tuple[Callable[..., Any], Callable[..., Any]] = velo.open, other_process().open
        self.reader: Any = None
        self.strings = False
        self.metric = "l2"
        self.values = VALUES["float32"]

    @initialize(
        durability=st.sampled_from(["sync", "interval", "process"]),
        strings=st.booleans(),
        metric=st.sampled_from(["l2", "ip", "cosine"]),
        dtype=st.sampled_from(list(VALUES)),
    )
    def start(self, durability: Any, strings: bool, metric: Any, dtype: str) -> None:
        self.strings, self.metric, self.values = strings, metric, VALUES[dtype]
        self.writer = velo.create(
            self.path, dim=DIM, metric=metric, metadata=SCHEMA, durability=durability, threads=1
        )
        self.other = self.opens[1](self.path, writable=True, durability=durability, threads=1)
        self.reader = velo.open(self.path, threads=1, follow=False)

    def teardown(self) -> None:
        for index in (self.writer, self.other, self.reader):
            if index is not None:
                index.close()
        shutil.rmtree(self.path.parent)

    def named(self, ids: list[int]) -> list[Any]:
        return [f"row {one}" for one in ids] if self.strings else ids

    @rule(verb=st.sampled_from(["insert", "upsert"]), ids=some_ids, value=values)
    def more_than_there_is_room_for(self, verb: str, ids: list[int], value: int) -> None:
        if self.opens[0] is not velo.open:  # the limit is one of this process
            self.take_turns()
        segments = len(self.writer.info()["live"]["parts"])
        before = self.sequence
        with no_room(self.writer):
            self.write(verb, ids, value)
        assert len(self.writer.info()["live"]["parts"]) == segments + (self.sequence > before)

    def write(self, verb: str, ids: list[int], value: int) -> None:
        keys = self.named(ids)
        chosen = [(value + 7 * place) % len(self.values) for place in range(len(ids))]
        table: dict[str, Any] = {"number": [one % 5 for one in chosen], "value": chosen}
        table |= {name: [one % 3 for one in chosen] for name in self.added}
        there = set(keys) & self.live.keys()
        if verb == "insert" and there:
            try:
                self.writer.insert(self.values[chosen], keys, table)
            except errors.DuplicateIdError:
                return
            raise AssertionError("an id has two rows")
        done = getattr(self.writer, verb)(self.values[chosen], keys, table)
        self.sequence += 1
        assert (done.rows, done.replaced, done.sequence) == (len(ids), len(there), self.sequence)
        self.live |= {key: (one, one % 5) for key, one in zip(keys, chosen, strict=True)}
        for key, one in zip(keys, chosen, strict=True):
            self.marks[key] = dict.fromkeys(self.added, one % 3)

    def mark(self, key: Any, name: str) -> int | None:
        """What a row has in a column that was added."""
        return self.marks[key].get(name, self.added[name])

    @precondition(lambda self: len(self.added) < 3)
    @rule(mark=st.one_of(st.none(), st.integers(0, 3)))
    def add_column(self, mark: int | None) -> None:
        name = f"mark {len(self.added)}"
        self.writer.add_columns({name: pa.int8() if mark is None else pa.scalar(mark, pa.int8())})
        self.added[name] = mark

    @precondition(lambda self: self.added)
    @rule(mark=st.integers(0, 3), number=st.integers(0, 6), either=st.booleans())
    def filter_by_added(self, mark: int, number: int, either: bool) -> None:
        name = max(self.added)
        has, lacks = velo.col(name) == mark, velo.col(name).is_null()
        other = velo.col("number") == number
        marks = [(self.mark(key, name), one == number) for key, (_, one) in self.live.items()]
        assert self.writer.count(lacks) == sum(one is None for one, _ in marks)
        assert self.writer.count(~has) == sum(one not in (None, mark) for one, _ in marks)
        join = any if either else all
        asked = has | other if either else has & other
        assert self.writer.count(asked) == sum(join((one == mark, right)) for one, right in marks)

    @rule(ids=some_ids, value=values)
    def insert(self, ids: list[int], value: int) -> None:
        self.write("insert", ids, value)

    @rule(ids=some_ids, value=values)
    def insert_new(self, ids: list[int], value: int) -> None:
        new = [one for one, key in zip(ids, self.named(ids), strict=True) if key not in self.live]
        if new:
            self.write("insert", new, value)

    @rule(ids=some_ids, value=values)
    def upsert(self, ids: list[int], value: int) -> None:
        self.write("upsert", ids, value)

    @precondition(lambda self: self.live)
    @rule(ids=some_ids, number=st.integers(0, 6))
    def update(self, ids: list[int], number: int) -> None:
        keys = self.named(ids)
        there = [key for key in keys if key in self.live]
        done = self.writer.update(keys, {"number": [number] * len(keys)})
        self.sequence += bool(there)
        assert (done.rows, done.missing, done.sequence) == (
            len(there),
            len(keys) - len(there),
            self.sequence,
        )
        for key in there:
            self.live[key] = (self.live[key][0], number)

    @rule(old=st.integers(0, 6), number=st.integers(0, 6))
    def update_by_filter(self, old: int, number: int) -> None:
        there = [key for key, (_, one) in self.live.items() if one == old]
        done = self.writer.update(filter=velo.col("number") == old, metadata={"number": number})
        self.sequence += bool(there)
        assert (done.rows, done.missing, done.sequence) == (len(there), 0, self.sequence)
        self.live |= {key: (self.live[key][0], number) for key in there}

    @rule()
    def snapshot(self) -> None:
        copy = self.path.with_name("copy.velo")
        self.reader.snapshot(copy)
        velo.verify(copy)
        with velo.open(copy, threads=1) as index:
            self.check(index, self.live, self.values[5])
        shutil.rmtree(copy)

    def gone(self, done: velo.Written, keys: set[Any]) -> None:
        self.sequence += bool(keys)
        assert (done.rows, done.sequence) == (len(keys), self.sequence)
        for key in keys:
            del self.live[key]

    @precondition(lambda self: self.live)
    @rule(ids=some_ids)
    def delete(self, ids: list[int]) -> None:
        keys = self.named(ids)
        self.gone(self.writer.delete(keys), set(keys) & self.live.keys())

    @rule(number=st.integers(0, 6))
    def delete_by_filter(self, number: int) -> None:
        keys = {key for key, (_, one) in self.live.items() if one == number}
        self.gone(self.writer.delete(filter=velo.col("number") == number), keys)

    @rule()
    def flush(self) -> None:
        self.writer.flush()

    @rule()
    def optimize(self) -> None:
        self.writer.optimize()
        info = self.writer.info()["live"]
        assert [segment["n"] for segment in info["parts"]] == ([len(self.live)] if self.live else [])

    @rule(durability=st.sampled_from(["sync", "interval", "process"]))
    def reopen(self, durability: Any) -> None:
        self.writer.close()
        self.writer = self.opens[0](self.path, writable=True, durability=durability, threads=1)

    @rule()
    def take_turns(self) -> None:
        self.writer, self.other = self.other, self.writer
        self.opens = self.opens[::-1]

    @rule()
    def refresh(self) -> None:
        changed = self.reader.refresh()
        assert changed or self.seen_sequence == self.sequence
        self.seen, self.seen_sequence = dict(self.live), self.sequence

    @rule()
    def reopen_reader(self) -> None:
        self.reader.close()
        self.reader = velo.open(self.path, threads=1, follow=False)
        self.seen, self.seen_sequence = dict(self.live), self.sequence

    @rule()
    def verify(self) -> None:
        velo.verify(self.path)

    @rule(ids=some_ids)
    def get(self, ids: list[int]) -> None:
        for key in self.named(ids):
            if key in self.live:
                value, number = self.live[key]
                assert self.writer.get_vectors([key]).tolist() == [self.values[value].tolist()]
                row = {"id": key, "number": number, "value": value}
                row |= {name: self.mark(key, name) for name in self.added}
                assert self.writer.get([key]).to_pylist() == [row]
            elif self.live:
                try:
                    self.writer.get([key])
                except errors.UnknownIdError:
                    continue
                raise AssertionError("a row that is gone was found")

    @rule(value=values, number=st.integers(0, 6), least=st.booleans())
    def search_with_a_filter(self, value: int, number: int, least: bool) -> None:
        condition = velo.col("number") >= number if least else velo.col("number") == number
        for index, state in ((self.writer, self.live), (self.reader, self.seen)):
            passing = {
                key: row for key, row in state.items() if (row[1] >= number if least else row[1] == number)
            }
            self.check(index, passing, self.values[value], filter=condition)
            assert index.count(condition) == len(passing)

    @precondition(lambda self: self.live)
    @rule(value=values, among=some_ids)
    def search_among(self, value: int, among: list[int]) -> None:
        keys = self.named(among)
        passing = {key: self.live[key] for key in keys if key in self.live}
        self.check(self.writer, passing, self.values[value], filter=pa.array(keys))

    @precondition(lambda self: self.writer is not None)
    @invariant()
    def agree(self) -> None:
        for index, state in ((self.writer, self.live), (self.other, self.live), (self.reader, self.seen)):
            assert len(index) == len(state)
            self.check(index, state, self.values[3])

    def check(self, index: Any, state: dict[Any, tuple[int, int]], query: np.ndarray, **how: Any) -> None:
        found = index.search(query, 2 * IDS, list_size=512, return_metadata=True, **how)
        count = int(found.counts[0])
        ids = found.ids[:count].tolist()
        assert len(ids) == len(set(ids))
        values_found = found.metadata["value"].to_pylist()
        numbers = found.metadata["number"].to_pylist()
        assert dict(zip(ids, zip(values_found, numbers, strict=True), strict=True)) == state
        if count:  # the nearest, by plain arithmetic, as far as codes tell distances apart
            exact = distances_of(self.metric, self.values[values_found], query)
            assert exact[0] <= exact.min() + 0.05 * np.abs(exact).max()
            assert (np.diff(found.distances[:count]) >= 0).all()


Machine.TestCase.settings = settings(
    max_examples=count(8, 20, "VELO_TEST_EXAMPLES"),
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestModel = Machine.TestCase
