"""What an index keeps once none of its rows is left: columns, kind of ids, which numbers it gave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import velo
from tests.fuzz.mend import manifest_bytes
from tests.live.rows import table, vectors_of
from velo import errors


def build(path: Path, count: int = 60, **how: Any) -> None:
    velo.build(
        path,
        vectors_of(count),
        metadata=table(range(count)),
        store_vectors=True,
        calibrate=False,
        threads=1,
        **how,
    ).close()


def empty(path: Path) -> velo.Index:
    """All rows are deleted and merged away, and the index is open to write again."""
    with velo.open(path, writable=True) as index:
        index.delete(index.rows(limit=1000)["id"].to_pylist())
        index.optimize()
        assert index.info()["live"]["parts"] == []
    return velo.open(path, writable=True)


@pytest.mark.parametrize("kind", ["row", "numbers", "strings"])
def test_an_emptied_index_keeps_its_columns_and_its_kind_of_ids(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.velo"
    ids = {
        "row": None,
        "numbers": list(range(7, 67)),
        "strings": [f"s{row}" for row in range(60)],
    }[kind]
    build(path, ids=ids)
    with empty(path) as index:
        assert json.loads((path / "live.json").read_text())["ids"] == kind
        other: Any = [1] if kind == "strings" else ["s"]
        with pytest.raises(errors.InvalidArgumentError, match="ids of this index are"):
            index.upsert(vectors_of(1), ids=other, metadata=table([1]))
        done = index.insert(vectors_of(3), ids=None if ids is None else ids[:3], metadata=table([4, 5, 6]))
        assert done.durable
    with velo.open(path, writable=True) as index:
        assert index.rows(columns=["n"])["n"].to_pylist() == [4, 5, 6]
        index.optimize()
    with velo.open(path) as index:
        assert sorted(index.rows(columns=["n"])["n"].to_pylist()) == [4, 5, 6]


def test_numbers_are_given_once_whatever_was_deleted_and_merged(tmp_path: Path) -> None:
    path = tmp_path / "a.velo"
    build(path, count=80)
    with velo.open(path, writable=True) as index:
        index.delete(list(range(50, 80)))
        index.optimize()  # before the first row comes
    with velo.open(path, writable=True) as index:
        with pytest.raises(errors.UnknownIdError):
            index.upsert(vectors_of(1), ids=[80], metadata=table([1]))
        with pytest.raises(errors.InvalidArgumentError, match="numbers its rows itself"):
            index.insert(vectors_of(1), ids=[1000], metadata=table([1]))
        assert index.insert(vectors_of(2), metadata=table([1, 2])).first_id == 80
    with empty(path) as index:
        assert index.insert(vectors_of(1), metadata=table([1])).first_id == 82
    with empty(path) as index:
        assert index.insert(vectors_of(1), metadata=table([1])).first_id == 83


def test_a_shards_numbers_go_on_behind_its_last_row(tmp_path: Path) -> None:
    velo.build_collection(
        tmp_path / "c", vectors_of(80), shards=2, store_vectors=True, calibrate=False, threads=1
    )
    path = tmp_path / "c" / "shard-00001"
    with velo.open(path, writable=True) as index:
        index.delete(list(range(60, 80)))
        index.optimize()
    with velo.open(path, writable=True) as index:
        assert index.insert(vectors_of(1)).first_id == 80
    with empty(path) as index:
        assert index.insert(vectors_of(1)).first_id == 81


def test_a_root_that_says_neither_columns_nor_kind_opens_as_before(tmp_path: Path) -> None:
    """As the first velo with live data wrote it for an index that was built and has deleted rows."""
    path = tmp_path / "a.velo"
    build(path)
    with velo.open(path, writable=True) as index:
        index.delete([3])
    forget(path / "live.json", "ids", "schema", next_row=60)
    with velo.open(path, writable=True) as index:
        assert index.insert(vectors_of(1), metadata=table([9])).first_id == 60
        index.flush()
    root = json.loads((path / "live.json").read_text())
    assert root["ids"] == "row"
    assert root["next_row"] == 61
    assert root["schema"]


def forget(path: Path, *names: str, **others: Any) -> None:
    """Write a root without these members."""
    root = json.loads(path.read_text())
    for name in ("checksum", *names):
        root.pop(name, None)
    path.write_bytes(manifest_bytes(json.dumps(root | others, indent=2)))
