"""An index without rows has no id, of whatever kind it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests.live.rows import DIM, SCHEMA, table, vectors_of
from velo import errors


def emptied(folder: Path, ids: Any, *, reopened: bool) -> velo.Index:
    """An index that had rows of these ids, and has none any more."""
    index = velo.create(folder, dim=DIM, metadata=SCHEMA, threads=1)
    index.insert(vectors_of(3), ids=ids, metadata=table(range(3)))
    index.flush()
    index.delete(filter=velo.col("n") >= 0)
    index.optimize()
    assert index.n == 0
    if not reopened:
        return index
    index.close()
    return velo.open(folder, writable=True, threads=1)


def check(index: velo.Index, ids: Any) -> None:
    count = len(ids)
    assert index.contains(ids).tolist() == [False] * count
    if count:
        with pytest.raises(errors.UnknownIdError, match=str(ids[0])):
            index.get(ids)
        with pytest.raises(errors.UnknownIdError):
            index.get_vectors(ids)
    assert index.count(velo.ids(ids)) == 0
    assert index.count({"$ids": list(ids), "n": 1}) == 0
    assert index.search(vectors_of(1)[0], 3, filter=velo.ids(ids)).counts.tolist() == [0]
    assert index.range_search(vectors_of(1)[0], 9.0, filter=velo.ids(ids)).ids.tolist() == []
    done = index.update(ids, {"n": 5})
    assert (done.rows, done.missing) == (0, count)
    done = index.delete(ids)
    assert (done.rows, done.missing) == (0, count)
    assert index.delete(filter=velo.ids(ids)).rows == 0
    assert len(index) == 0


@pytest.mark.parametrize("ids", [["a", "zz"], [1, 7], np.array([3]), []], ids=str)
def test_an_index_without_a_row_yet(tmp_path: Path, ids: Any) -> None:
    with velo.create(tmp_path / "a.velo", dim=DIM, metadata=SCHEMA, threads=1) as index:
        check(index, ids)
        index.insert(vectors_of(1), ids=["b"], metadata=table([1]))  # any kind may still come
        assert index.contains(["a", "b"]).tolist() == [False, True]


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("given", [["a", "b", "c"], [1, 2, 3], None], ids=str)
def test_an_emptied_index(tmp_path: Path, given: Any, reopened: bool) -> None:
    own, other = (["a", "zz"], [1, 7]) if given == ["a", "b", "c"] else ([1, 7], ["a", "zz"])
    with emptied(tmp_path / "a.velo", given, reopened=reopened) as index:
        check(index, own)
        check(index, [])
        for call in (index.contains, index.get, index.delete, lambda ids: index.update(ids, {"n": 5})):
            with pytest.raises(errors.InvalidArgumentError, match="the ids of this index are"):
                call(other)


def test_a_reader_of_no_rows(tmp_path: Path) -> None:
    velo.create(tmp_path / "a.velo", dim=DIM).close()
    with velo.open(tmp_path / "a.velo") as index:
        assert index.contains(["a", "b"]).tolist() == [False, False]
        assert index.count(["a"]) == 0


def test_a_type_by_numpys_own_name(tmp_path: Path) -> None:
    for name, dtype in (("a", np.uint8), ("b", np.dtype("float16"))):
        with velo.create(tmp_path / name, dim=2, dtype=dtype, durability="process") as index:
            assert index.info()["dtype"] == np.dtype(dtype).name
    with pytest.raises(errors.InvalidArgumentError, match="not 'int64'"):
        velo.create(tmp_path / "c", dim=2, dtype=np.int64)
