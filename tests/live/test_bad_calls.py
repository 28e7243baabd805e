"""Calls that are given something else: what they say, and that nothing is written."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import velo
from tests.live.rows import DIM, table, vectors_of
from velo import errors

NO_IDS: list[Any] = [
    [True],
    [1, True],
    [3, np.bool_(True)],
    np.array([True]),
    [1, "2"],
    [2.0],
    [None],
    [[1]],
    5.5,
    True,
    object(),
    b"a",
    [b"a"],
    {1: 2},
    ["2"],
    "2",
]


@pytest.mark.parametrize("given", NO_IDS, ids=repr)
def test_values_that_are_no_ids_are_refused_by_every_call(index: velo.Index, given: Any) -> None:
    index.insert(vectors_of(3), ids=[1, 2, 3], metadata=table(range(3)))
    calls: list[Any] = [
        lambda: index.insert(vectors_of(1), ids=given, metadata=table([1])),
        lambda: index.upsert(vectors_of(1), ids=given, metadata=table([1])),
        lambda: index.update(given, {"n": 5}),
        lambda: index.delete(given),
        lambda: index.get(given),
        lambda: index.contains(given),
    ]
    for call in calls:
        with pytest.raises(errors.InvalidArgumentError) as raised:
            call()
        assert raised.value.argument == "ids"
    assert len(index) == 3
    assert sorted(index.rows()["n"].to_pylist()) == [0, 1, 2]


def test_calls_that_lack_something(index: velo.Index) -> None:
    index.insert(vectors_of(1), ids=[1], metadata=table([1]))
    for call in (
        lambda: index.update(None, {"n": 5}),
        lambda: index.update([1], None),
        lambda: index.delete(one for one in [1]),
        lambda: index.update((one for one in [1]), {"n": 5}),
    ):
        with pytest.raises(errors.InvalidArgumentError):
            call()
    for name in ("\ud800", "", 5, b"a", [], "x" * 257):
        with pytest.raises(errors.InvalidArgumentError, match="request is a name"):
            index.upsert(vectors_of(1), ids=[1], metadata=table([2]), request=name)  # type: ignore[arg-type]
    assert index.rows()["n"].to_pylist() == [1]


def test_hints_of_writes(index: velo.Index) -> None:
    given: dict[str, Any] = {"vectors": vectors_of(1)}
    with pytest.raises(
        TypeError, match=r"update\(\) has no option 'vectors'.*upsert\(vectors, ids, metadata\)"
    ):
        index.update([1], {"n": 5}, **given)
    given = {"where": {}}
    with pytest.raises(TypeError, match=r"delete\(\) has no option 'where'; velo's word is filter"):
        index.delete(**given)


@pytest.mark.parametrize("durability", [[], None, 5, "never"], ids=repr)
def test_durability(tmp_path: Path, durability: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="durability must be one of"):
        velo.create(tmp_path / "a.velo", dim=DIM, durability=durability)
    assert not (tmp_path / "a.velo").exists()
    velo.create(tmp_path / "a.velo", dim=DIM).close()
    for writable in (True, False):
        with pytest.raises(errors.InvalidArgumentError, match="durability must be one of"):
            velo.open(tmp_path / "a.velo", writable=writable, durability=durability)


def test_a_uuid_is_its_text(index: velo.Index) -> None:
    names = [uuid.uuid5(uuid.NAMESPACE_URL, str(row)) for row in range(5)]
    index.insert(vectors_of(3), ids=names[:3], metadata=table(range(3)))
    index.upsert(vectors_of(1), ids=names[3], metadata=table([3]))
    index.insert(vectors_of(1), ids=pa.array([names[4].bytes], pa.uuid()), metadata=table([4]))
    assert set(index.rows()["id"].to_pylist()) == {str(name) for name in names}
    assert index.get(names[1:3])["n"].to_pylist() == [1, 2]
    assert index.update(names[1], {"n": 7}).rows == 1
    assert index.count(velo.ids(names[:2])) == 2
    assert index.contains([str(names[0]), uuid.uuid4()]).tolist() == [True, False]
    assert index.delete(names[0]).rows == 1
    assert index.delete(names).rows == 4


def test_an_index_shows_the_rows_that_live(index: velo.Index) -> None:
    index.insert(vectors_of(5), ids=range(5), metadata=table(range(5)))
    index.upsert(vectors_of(3), ids=range(3), metadata=table(range(3)))
    index.delete([4])
    assert "n=4," in repr(index)
    index.close()
    assert "closed" in repr(index)


def test_frames_of_polars_with_ids_that_are_texts(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"id": ["a", "b", "c"], "vector": vectors_of(3), "n": [1, 2, 3], "name": ["x", "y", None]},
        schema_overrides={"vector": pl.Array(pl.Float32, DIM)},
    )
    with velo.build(tmp_path / "a.velo", frame, ids_column="id", metadata=True, calibrate=False) as built:
        assert built.get(["b"]).to_pylist() == [{"id": "b", "n": 2, "name": "y"}]
    more = frame.with_columns(id=pl.Series(["d", "e", "f"]))
    with velo.open(tmp_path / "a.velo", writable=True) as index:
        index.insert(vectors_of(3), ids=more["id"], metadata=more.select("n", "name"))
        index.update(more["id"], more.select("n"))
        assert index.count({"name": "x"}) == 2
        assert index.contains(more["id"]).all()
