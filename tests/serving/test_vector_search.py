"""``VectorSearch`` as Ray Data calls it, without Ray."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.serving.conftest import LIST_SIZE, local_answer
from velo.errors import DimensionMismatchError, DtypeError, InvalidArgumentError, NotAnIndexError
from velo_serving import VectorSearch
from velo_serving.protocol.types import SearchRequest


def test_batches_of_every_shape_get_the_same_neighbors(
    sharded_path: Path, sharded_queries: np.ndarray
) -> None:
    expected = local_answer(sharded_path, SearchRequest(sharded_queries, 4, list_size=LIST_SIZE)).hits
    search = VectorSearch(sharded_path, k=4, list_size=LIST_SIZE, threads=1)
    try:
        objects = np.empty(len(sharded_queries), dtype=object)
        objects[:] = list(sharded_queries)
        for column in (sharded_queries, objects, sharded_queries.astype(np.float64)):
            batch = {"query": np.arange(len(column)), "vector": column}
            found = search(batch)
            assert list(found) == ["query", "vector", "ids", "distances"]
            assert np.array_equal(found["ids"], expected.ids)
            assert np.array_equal(found["distances"], expected.distances)
        table = search(pa.table({"vector": sharded_queries.tolist()}))
        assert table.column("ids").to_pylist() == expected.ids.tolist()
        nothing = search({"vector": np.empty((0, 128), dtype=np.float32)})
        assert nothing["ids"].shape == (0, 4)
    finally:
        search.close()


def test_a_filter_holds_for_all(sharded_path: Path, sharded_queries: np.ndarray) -> None:
    search = VectorSearch(
        sharded_path, k=4, list_size=LIST_SIZE, column="v", filter={"uniform10": 3}, threads=1
    )
    expected = local_answer(
        sharded_path, SearchRequest(sharded_queries, 4, ({"uniform10": 3},), list_size=LIST_SIZE)
    ).hits
    assert np.array_equal(search({"v": sharded_queries})["ids"], expected.ids)
    search.close()


def test_wrong_batches_are_named(sharded_path: Path, tmp_path: Path) -> None:
    search = VectorSearch(sharded_path, threads=1)
    with pytest.raises(InvalidArgumentError, match="no column 'vector', only other"):
        search({"other": np.zeros((1, 128))})
    with pytest.raises(DimensionMismatchError, match="127"):
        search({"vector": np.zeros((1, 127))})
    with pytest.raises(DimensionMismatchError, match=r"\[2, 128\]"):
        search(pa.table({"vector": [[0.0] * 128, [0.0] * 2]}))
    with pytest.raises(DtypeError):
        search([1, 2])
    search.close()
    with pytest.raises(InvalidArgumentError, match="k must"):
        VectorSearch(sharded_path, k=0)
    with pytest.raises(NotAnIndexError):
        VectorSearch(tmp_path)
