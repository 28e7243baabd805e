"""A table with a column of every type that filters know, in an order of its own, and its store."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from velo.filters.compiler import FilterCompiler
from velo.folder.metadata import MetadataStore, given_metadata, write_metadata

WORDS = ["ab", "abc", "b", "ba", "bé", "c", "cat", "d", "", "ab\U0001f600", "z", "zz"]


class World(NamedTuple):
    """One table, and where its rows went."""

    table: Any
    rows: Any
    store: MetadataStore
    compiler: FilterCompiler

    def passing(self, condition: Any) -> Any:
        """Whether each row of the input passes, by the library: row by row, and from the postings."""
        compiled = self.compiler.compile(condition)
        by_vertex = compiled.matches()
        assert compiled.count() == int(by_vertex.sum())
        if compiled.is_exact():
            assert compiled.estimate() * len(by_vertex) == pytest.approx(compiled.count())
        shuffled = np.random.default_rng(len(by_vertex)).permutation(len(by_vertex)).astype(np.uint32)
        np.testing.assert_array_equal(
            compiled.check(shuffled), by_vertex[shuffled], f"{condition} one by one"
        )
        assert compiled.count_matches() == int(by_vertex.sum())
        compiled.resolve()
        resolved = compiled.matches()
        np.testing.assert_array_equal(resolved, by_vertex, f"{condition} from postings")
        by_row = np.empty(len(self.rows), bool)
        by_row[self.rows] = by_vertex
        return by_row


def some_table(row_count: int, seed: int) -> Any:
    """Small domains, so that conditions meet values; nulls, NaN, infinities and empty lists among them."""
    draw = random.Random(seed)

    def column(value: Any, nulls: float = 0.1) -> list[Any]:
        return [None if draw.random() < nulls else value() for _ in range(row_count)]

    def number(kind: Any) -> Any:
        special = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0]
        return column(
            lambda: kind(draw.choice(special) if draw.random() < 0.2 else draw.randint(-40, 40) / 10)
        )

    def words() -> list[Any]:
        return [draw.choice(WORDS[:8]) for _ in range(draw.randint(0, 4))]

    start = dt.datetime(2020, 1, 1)
    hours = lambda: dt.timedelta(hours=draw.randint(-50, 50))  # noqa: E731
    columns = {
        "flag": pa.array(column(lambda: draw.random() < 0.5)),
        "f16": pa.array(number(np.float16), pa.float16()),
        "f32": pa.array(number(np.float32), pa.float32()),
        "f64": pa.array(number(float), pa.float64()),
        "full": pa.array(column(lambda: draw.randint(0, 9), 0), pa.int16()),
        "word": pa.array(column(lambda: draw.choice(WORDS))),
        "large_word": pa.array(column(lambda: draw.choice(WORDS)), pa.large_string()),
        "brand": pa.array(column(lambda: draw.choice(WORDS))).dictionary_encode(),
        "when": pa.array(column(lambda: start + hours()), pa.timestamp("ms")),
        "zoned": pa.array(column(lambda: start + hours()), pa.timestamp("us", "Europe/Berlin")),
        "day": pa.array(column(lambda: (start + hours()).date()), pa.date32()),
        "day64": pa.array(column(lambda: (start + hours()).date()), pa.date64()),
        "span": pa.array(column(hours), pa.duration("s")),
        "clock": pa.array(column(lambda: dt.time(draw.randint(0, 23))), pa.time32("ms")),
        "tags": pa.array(column(words), pa.list_(pa.string())),
        "holes": pa.array(column(lambda: [*words(), None]), pa.large_list(pa.string())),
        "coded": pa.array(column(words), pa.list_(pa.dictionary(pa.int16(), pa.string()))),
        "numbers": pa.array(column(lambda: [draw.randint(-5, 5) for _ in range(draw.randint(0, 4))])),
        "sparse": pa.array(column(lambda: [draw.choice([None, 1, 2, 3])] * 2), pa.list_(pa.int8())),
        "nothing": pa.nulls(row_count),
        "price": pa.array(column(lambda: draw.randint(0, 9)), pa.decimal128(6, 2)),
        "shape": pa.array(column(lambda: {"x": draw.randint(0, 9)}), pa.struct([("x", pa.int32())])),
        "raw": pa.array(column(lambda: bytes([draw.randint(0, 255)])), pa.binary()),
    }
    for kind in (
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.uint8(),
        pa.uint16(),
        pa.uint32(),
        pa.uint64(),
    ):
        low = -10 if str(kind).startswith("i") else 0
        columns[str(kind)] = pa.array(column(lambda low=low: draw.randint(low, 10)), kind)
    return pa.table(columns)


def world_of(table: Any, folder: Path, seed: int = 1) -> World:
    rows = np.random.default_rng(seed).permutation(table.num_rows).astype(np.uint32)
    write_metadata(folder, given_metadata(table, table.num_rows), rows)
    store = MetadataStore(folder / "columns.arrow", table.num_rows)
    identity = np.argsort(rows)
    compiler = FilterCompiler(
        table.num_rows,
        store,
        rows=lambda: rows,
        vertices_of=lambda ids: np.array(
            [identity[i] if 0 <= i < len(rows) else -1 for i in np.asarray(ids)], int
        ),
    )
    return World(table, rows, store, compiler)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """500 rows of everything."""
    return world_of(some_table(500, seed=7), tmp_path_factory.mktemp("metadata"))


@pytest.fixture
def make_world(tmp_path: Path) -> Callable[[Any], World]:
    """Store a table of one's own."""
    return lambda table: world_of(table, tmp_path)


@pytest.fixture
def make_table() -> Callable[[int, int], Any]:
    """Rows and seed to a table of every type."""
    return some_table
