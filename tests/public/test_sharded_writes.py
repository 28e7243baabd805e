"""Rows come and go in a collection of shards that one process has open to write."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import velo
from velo import errors
from velo.cli.app import app
from velo.folder.shards import homes
from velo.testing import synthetic_vectors

ROWS, DIM, SHARDS = 90, 8, 3
VECTORS = synthetic_vectors(ROWS + 40, DIM, seed=6)
NEW = VECTORS[ROWS:]


def built(path: Path, ids: Any) -> Path:
    velo.build_collection(
        path,
        VECTORS[:ROWS],
        shards=SHARDS,
        ids=ids,
        metadata=pa.table({"price": list(range(ROWS))}),
        degree=16,
        store_vectors=True,
    )
    return path


@pytest.fixture(params=["int", "str"])
def named(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A collection whose ids come from its callers, and the n-th id."""
    of: Any = (lambda row: 1000 + row) if request.param == "int" else (lambda row: f"r{row:03d}")
    return built(tmp_path / "c", [of(row) for row in range(ROWS)]), of


def held(index: velo.ShardedIndex) -> dict[Any, tuple[int, int]]:
    """Price and shard of each id; no id is in two shards."""
    found: dict[Any, tuple[int, int]] = {}
    for place, shard in enumerate(index.shards):
        rows = shard.rows(limit=10_000).to_pylist()
        assert not found.keys() & {row["id"] for row in rows}
        found |= {row["id"]: (row["price"], place) for row in rows}
    assert len(found) == len(index) == index.count()
    return found


def test_rows_are_inserted_changed_and_deleted(named: Any) -> None:
    path, of = named
    known = {of(row): row for row in range(ROWS)}
    new = [of(row) for row in range(ROWS, ROWS + 40)]
    with velo.open(path, writable=True) as index, velo.open(path) as reader:
        assert isinstance(index, velo.ShardedIndex)
        done = index.insert(NEW, new, {"price": [500] * 40})
        assert (done.rows, done.durable, done.repeated) == (40, True, False)
        known |= dict.fromkeys(new, 500)
        column = np.array(new) if isinstance(new[0], int) else pa.array(new, pa.large_string())
        wanted = homes(column, SHARDS).tolist()
        assert [held(index)[one][1] for one in new] == wanted
        assert len(set(wanted)) == SHARDS
        assert index.search(NEW, 1, exact=True).ids[:, 0].tolist() == new

        # Old ids stay where they are, new ones go home; of an id that comes twice the last row counts.
        mixed = [of(5), of(70), of(500), of(500)]
        done = index.upsert(NEW[:4] + 9, mixed, {"price": [1, 2, 3, 4]})
        assert (done.rows, done.replaced) == (3, 2)
        known |= {of(5): 1, of(70): 2, of(500): 4}
        assert [held(index)[one][1] for one in mixed[:2]] == [0, 2]

        done = index.update([of(5), of(500), of(999)], {"price": [7, 8, 9]})
        assert (done.rows, done.missing) == (2, 1)
        done = index.update(filter="price = 500", metadata={"price": 501})
        assert (done.rows, done.missing) == (40, 0)
        known |= {of(5): 7, of(500): 8} | dict.fromkeys(new, 501)
        done = index.delete([of(5), of(40), of(40), of(89), of(999)])
        assert (done.rows, done.missing) == (3, 1)
        for row in (5, 40, 89):
            del known[of(row)]
        done = index.delete(filter=velo.col("price").between(10, 19))
        assert done.rows == 10
        known = {one: price for one, price in known.items() if not 10 <= price <= 19}

        def told() -> dict[Any, int]:
            return {one: price for one, (price, _) in held(index).items()}

        assert told() == known
        assert len(reader) == len(known)
        for work in (index.flush, index.optimize):
            work()
            assert told() == known
        groups = index.search(NEW[:3], 2, group_by="price", group_size=5, recall=1.0)
        assert (groups.counts == 2).all()
    with velo.open(path) as index:
        assert {row["id"]: row["price"] for row in index.rows(limit=1000).to_pylist()} == known


def test_a_refused_call_writes_nothing(named: Any) -> None:
    path, of = named
    with velo.open(path, writable=True) as index:
        before = held(index)
        new = [of(row) for row in range(200, 240)]
        for wrong, kind in (
            ((NEW, [*new[:-1], of(3)], {"price": [1] * 40}), errors.DuplicateIdError),
            ((NEW, [*new[:-1], new[0]], {"price": [1] * 40}), errors.DuplicateIdError),
            ((NEW[:, :-1], new, {"price": [1] * 40}), errors.DimensionMismatchError),
            (
                (np.where(np.arange(40)[:, None] == 39, np.nan, NEW), new, {"price": [1] * 40}),
                errors.NotFiniteError,
            ),
            ((NEW, new, {"prize": [1] * 40}), errors.UnknownColumnError),
            ((NEW, new, None), errors.InvalidArgumentError),
            ((NEW, None, {"price": [1] * 40}), errors.InvalidArgumentError),
        ):
            with pytest.raises(kind):
                index.insert(*wrong)
            assert held(index) == before
        with pytest.raises(errors.UnknownColumnError):
            index.update([of(1)], {"prize": [3]})
        with pytest.raises(errors.InvalidArgumentError):
            index.delete()
        assert held(index) == before
    with velo.open(path) as index:
        for work in (
            lambda: index.insert(NEW, new, {"price": [1] * 40}),
            lambda: index.delete([of(1)]),
            index.flush,
        ):
            with pytest.raises(errors.ReadOnlyError):
                work()


def test_a_call_with_a_name_is_done_once(named: Any) -> None:
    path, of = named
    new = [of(row) for row in range(200, 240)]
    with velo.open(path, writable=True) as index:
        assert not index.insert(NEW, new, {"price": [1] * 40}, request="a").repeated
        again = index.insert(NEW, new, {"price": [1] * 40}, request="a")
        assert (again.repeated, again.rows) == (True, 40)
        with pytest.raises(errors.DuplicateIdError):
            index.insert(NEW, new, {"price": [1] * 40}, request="b")
        for name in ("", "x" * 300, 7, "\ud800"):
            with pytest.raises(errors.InvalidArgumentError, match="request"):
                index.upsert(NEW, new, {"price": [2] * 40}, request=name)
        assert len(index) == ROWS + 40


def test_an_error_names_the_shards_that_wrote(named: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, of = named
    new = [of(row) for row in range(200, 240)]
    with velo.open(path, writable=True) as index:
        assert isinstance(index, velo.ShardedIndex)

        def fail(*_: Any, **__: Any) -> None:
            raise errors.NoSpaceError("the device is full")

        with monkeypatch.context() as patch:
            patch.setattr(index.shards[1]._writer, "insert", fail)
            with pytest.raises(errors.NoSpaceError, match=r"shard-00001: .* shard-00000, shard-00002 wrote"):
                index.insert(NEW, new, {"price": [1] * 40}, request="a")
        assert index.insert(NEW, new, {"price": [1] * 40}, request="a").rows == 40
        assert len(index) == ROWS + 40


def test_numbered_rows_are_inserted_into_the_last_shard(tmp_path: Path) -> None:
    with velo.open(built(tmp_path / "c", None), writable=True) as index:
        assert isinstance(index, velo.ShardedIndex)
        done = index.insert(NEW[:3], metadata={"price": [1, 2, 3]})
        assert done.first_id == ROWS
        assert index.get([ROWS + 2])["price"].to_pylist() == [3]
        assert index.upsert(NEW[3:5], [7, ROWS], {"price": [8, 9]}).replaced == 2
        assert [held(index)[one][1] for one in (7, ROWS)] == [0, 2]
        with pytest.raises(errors.UnknownIdError):
            index.upsert(NEW[:1], [ROWS + 100], {"price": [1]})
        with pytest.raises(errors.InvalidArgumentError, match="numbers its rows"):
            index.insert(NEW[:1], [ROWS + 100], {"price": [1]})
        # A mask goes by the rows of a build, also where one shard alone was written to.
        with pytest.raises(errors.FilterError):
            index.delete(filter=np.ones(index.n, bool))


def test_a_collection_that_is_dropped_is_closed(named: Any) -> None:
    path, of = named
    gc.disable()
    try:
        for row in range(2):
            index = velo.open(path, writable=True)
            index.insert(NEW[row : row + 1], [of(300 + row)], {"price": [1]})
            assert index.search(NEW[row], 1, exact=True).ids[0] == of(300 + row)
            assert index.explain(NEW[row], filter="price = 1").matches == 2 + row
            index.optimize()
            del index  # else the next one finds a writer
    finally:
        gc.enable()


def test_commands_write_to_a_collection(named: Any, tmp_path: Path) -> None:
    path, of = named
    np.save(tmp_path / "new.npy", NEW[:2])
    pq.write_table(pa.table({"price": [700, 701]}), tmp_path / "new.parquet")
    ids = f"{of(300)},{of(301)}"
    for command in (
        ["insert", path, tmp_path / "new.npy", "--ids", ids, "--metadata", tmp_path / "new.parquet"],
        ["delete", path, "--filter", "price < 10"],
        ["optimize", path],
        ["snapshot", path, tmp_path / "copy"],
        ["search", tmp_path / "copy", tmp_path / "new.npy", "--explain", "--json"],
    ):
        done = CliRunner().invoke(app, list(map(str, command)))
        assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [row[0] for row in told["ids"]] == [of(300), of(301)]
    assert told["explain"]["request"]["k"] == 10
    with velo.open(tmp_path / "copy") as copy:
        assert len(copy) == ROWS - 8
