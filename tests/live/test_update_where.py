"""Columns change of all rows that pass a filter."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.live.rows import DIM, table, vectors_of
from velo import errors
from velo.segments.data import LiveData

_N = velo.col("n")


@pytest.mark.parametrize("kind", ["numbered", "numbers", "strings"])
def test_all_rows_that_pass_change_and_the_rest_of_each_stays(index: velo.Index, kind: str) -> None:
    vectors = vectors_of(300)
    names: Any = {
        "numbered": list(range(300)),
        "numbers": [7 * row - 40 for row in range(300)],
        "strings": [f"row {row}" for row in range(300)],
    }[kind]
    for start, stop in ((0, 200), (200, 300)):  # a segment, then the delta
        given = None if kind == "numbered" else names[start:stop]
        index.insert(vectors[start:stop], given, table(range(start, stop)))
        if stop == 200:
            index.flush()
    index.delete([names[5], names[250]])
    numbers = {name: row for row, name in enumerate(names) if row not in (5, 250)}
    living = list(numbers)
    for turn, value in enumerate((-1, -2, None)):
        chosen = [name for name in living if (numbers[name] or 0) % 9 == turn]
        done = index.update(filter=velo.ids(chosen) & (_N >= -5), metadata={"n": value})
        assert (done.rows, done.missing, done.repeated, done.durable) == (len(chosen), 0, False, True)
        numbers |= dict.fromkeys(chosen, value)
        assert len(index) == 298
        found = index.get(living)
        assert found["n"].to_pylist() == list(numbers.values())
        assert found["name"].to_pylist() == [f"x{names.index(name) % 5}" for name in living]
        assert (index.get_vectors(living) == vectors[[names.index(name) for name in living]]).all()
        index.flush() if turn == 0 else index.optimize()
    done = index.update(filter="n < 0", metadata={"n": [0], "name": "attic"})
    assert done.rows == index.count({"name": "attic"}) == sum((one or 0) < 0 for one in numbers.values())
    path = index.path
    index.close()
    with velo.open(path, threads=1) as again:
        assert again.count({"name": "attic", "n": 0}) == done.rows


def test_a_built_index_takes_updates_by_filter(tmp_path: Path) -> None:
    path = tmp_path / "a.velo"
    rows = table(range(500))
    velo.build(path, vectors_of(500), metadata=rows, store_vectors=True, threads=1, calibrate=False).close()
    with velo.open(path, writable=True, threads=1) as index:
        mask = np.arange(500) % 100 == 3
        assert index.update(filter=mask, metadata={"n": 1_000}).rows == 5
        assert index.rows(_N == 1_000)["id"].to_pylist() == [3, 103, 203, 303, 403]
        with pytest.raises(errors.FilterError, match="mask"):
            index.update(filter=mask, metadata={"n": 1})
        assert index.update(filter=_N == 1_000, metadata={"n": 3}).rows == 5


def test_a_list_is_one_value_of_a_column_of_lists(tmp_path: Path) -> None:
    schema = pa.schema({"tags": pa.list_(pa.string()), "n": pa.int64()})
    with velo.create(tmp_path / "a.velo", dim=DIM, metadata=schema, threads=1) as index:
        index.insert(vectors_of(4), metadata={"tags": [["a"]] * 4, "n": range(4)})
        index.update(filter=_N >= 2, metadata={"tags": [["b", "c"]]})
        assert index.get(range(4))["tags"].to_pylist() == [["a"], ["a"], ["b", "c"], ["b", "c"]]


def test_bad_calls_change_nothing(index: velo.Index, tmp_path: Path) -> None:
    index.insert(vectors_of(20), list(range(20)), table(range(20)))
    invalid = errors.InvalidArgumentError
    cases: list[tuple[type[errors.VeloError], str | None, dict[str, Any]]] = [
        (invalid, "ids", {"metadata": {"n": 1}}),
        (invalid, "ids", {"ids": [1], "filter": _N > 3, "metadata": {"n": 1}}),
        (invalid, "metadata", {"filter": _N > 3}),
        (invalid, "metadata", {"filter": _N > 3, "metadata": {}}),
        (invalid, "metadata", {"filter": _N > 3, "metadata": {"n": list(range(16))}}),
        (invalid, "metadata", {"filter": _N > 3, "metadata": {"n": "text"}}),
        (errors.UnknownColumnError, "metadata", {"filter": _N > 3, "metadata": {"other": 1}}),
        (errors.UnknownColumnError, "filter", {"filter": velo.col("other") > 3, "metadata": {"n": 1}}),
        (errors.FilterError, "filter", {"filter": "n >", "metadata": {"n": 1}}),
    ]
    sequence = index.info()["live"]["sequence"]
    for kind, argument, how in cases:
        with pytest.raises(kind) as raised:
            index.update(**how)
        assert raised.value.argument == argument, how
    nothing = index.update(filter=_N > 100, metadata={"n": 1})
    assert (nothing.rows, nothing.missing, nothing.sequence) == (0, 0, sequence)
    assert index.rows()["n"].to_pylist() == list(range(20))
    path = tmp_path / "plain.velo"
    velo.build(path, vectors_of(50), metadata=table(range(50)), threads=1, calibrate=False).close()
    with velo.open(path, writable=True, threads=1) as stores_none:
        assert stores_none.update(filter=_N > 3, metadata={"n": 5}).rows == 46
        assert stores_none.update(filter=_N > 100, metadata={"n": 5}).rows == 0


@pytest.mark.parametrize("rows", [2_500, 3_000])
def test_more_rows_than_memory_has_room_for(tmp_path: Path, rows: int) -> None:
    """Of 3,000 the vectors alone have no room: they are not read."""
    vectors = np.random.default_rng(1).normal(size=(rows, 96)).astype(np.float32)
    numbers = {"n": np.arange(rows)}
    how: dict[str, Any] = {"store_vectors": True, "calibrate": False, "degree": 8, "threads": 1}
    velo.build(tmp_path / "a", vectors, metadata=numbers, **how).close()
    with velo.open(tmp_path / "a", writable=True, memory="1MiB", threads=1) as index:
        assert index.update(filter=_N < 2, metadata={"n": 5}, request="once").rows == 2
        assert index.update(filter=_N >= 0, metadata={"n": 7}, request="once").repeated
        sequence = index.info()["live"]["sequence"]
        with pytest.raises(errors.BudgetTooSmallError, match=f"{rows:,} rows take .*: give fewer") as raised:
            index.update(filter=_N >= 0, metadata={"n": 7})
        assert raised.value.argument == "filter"
        assert (raised.value.needed_bytes or 0) > 1 << 20
        assert index.info()["live"]["sequence"] == sequence
        assert index.count(_N == 7) == 1


def test_a_request_is_done_once_though_its_rows_pass_no_more(index: velo.Index) -> None:
    index.insert(vectors_of(20), metadata=table(range(20)))
    how: dict[str, Any] = {"filter": _N >= 15, "metadata": {"n": 0}, "request": "tidy"}
    first = index.update(**how)
    index.insert(vectors_of(3), metadata=table([15, 16, 17]))
    path = index.path
    index.close()
    with velo.open(path, writable=True, threads=1) as again:
        once_more = again.update(**how)
        assert (once_more.repeated, once_more.rows, once_more.sequence) == (True, 5, first.sequence)
        assert again.count(_N >= 15) == 3


@pytest.mark.parametrize("durability", ["sync", "process"])
def test_rows_that_others_change_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Any
) -> None:
    """Where another call changes some between the look at them and the write, all are looked at again."""
    schema = pa.schema({"n": pa.int64(), "section": pa.string()})
    between: list[Callable[[], object]] = []
    update = LiveData.update

    def late(self: LiveData, *given: Any) -> Any:
        if between:
            between.pop()()
        return update(self, *given)

    with velo.create(tmp_path / "a", dim=DIM, metadata=schema, threads=1, durability=durability) as index:
        index.insert(vectors_of(10), range(10), {"n": range(10), "section": "hall"})
        monkeypatch.setattr(LiveData, "update", late)
        others: list[tuple[Callable[[], object], list[int]]] = [
            (lambda: index.delete([9]), [5, 6, 7, 8]),
            (lambda: index.upsert(vectors_of(1), [8], {"n": 0, "section": "new"}), [5, 6, 7]),
            (lambda: index.update([5, 3], {"n": [6, 6]}), [3, 5, 6, 7]),
            (index.flush, [3, 5, 6, 7]),
        ]
        for turn, (other, ids) in enumerate(others):
            between.append(other)
            section = f"attic {turn}"
            assert index.update(filter=_N >= 5, metadata={"section": section}).rows == len(ids)
            assert index.rows({"section": section})["id"].to_pylist() == ids
        assert index.get([8]).to_pylist() == [{"id": 8, "n": 0, "section": "new"}]


def test_no_update_is_lost_among_writers(tmp_path: Path) -> None:
    """Some go by filter, others by id, each over a column of its own, while segments are made."""
    schema = pa.schema({"half": pa.int64(), **{f"of{one}": pa.int64() for one in range(3)}})
    with velo.create(tmp_path / "a", dim=DIM, metadata=schema, threads=1, durability="process") as index:
        index.insert(vectors_of(12), range(12), {"half": [0, 1] * 6, **{f"of{one}": 0 for one in range(3)}})

        def work(one: int) -> None:
            for turn in range(1, 26):
                if one == 2:
                    index.update(range(12), {"of2": turn})
                else:
                    index.update(filter={"half": one}, metadata={f"of{one}": turn})
                if turn % 8 == one:
                    index.flush()

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, range(3)))
        rows = index.get(range(12))
        assert rows["of0"].to_pylist() == [25, 0] * 6
        assert rows["of1"].to_pylist() == [0, 25] * 6
        assert rows["of2"].to_pylist() == [25] * 12
