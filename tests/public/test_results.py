"""Results unpack, count and turn into Arrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from velo.results import RangeResult, SearchResult


def result_of(ids: np.ndarray, counts: list[int], metadata: object = None) -> SearchResult:
    distances = np.where(ids == -1, np.inf, 1.0).astype(np.float32)  # type: ignore[comparison-overlap]
    stats = {"reads": np.array([3] * len(counts), np.uint32)}
    return SearchResult(ids, distances, np.array(counts, np.uint32), stats, metadata)  # type: ignore[arg-type]


def test_it_unpacks() -> None:
    ids, distances = result_of(np.array([[1, 2, -1]]), [2])
    assert ids.tolist() == [[1, 2, -1]]
    assert distances[0, 2] == np.inf


def test_only_real_hits_reach_arrow() -> None:
    result = result_of(np.array([[5, 7, -1], [-1, -1, -1], [9, 8, 7]]), [2, 0, 3])
    table = result.to_arrow()
    assert table.column("query").to_pylist() == [0, 0, 2, 2, 2]
    assert table.column("rank").to_pylist() == [0, 1, 0, 1, 2]
    assert table.column("id").to_pylist() == [5, 7, 9, 8, 7]


def test_metadata_stands_beside_the_hits() -> None:
    segments = [pa.table({"title": ["a", "b"], "id": [1, 2]}), pa.table({"title": ["c"], "id": [3]})]
    table = result_of(np.array([[5, 7], [9, -1]]), [2, 1], segments).to_arrow()
    assert table.column("title").to_pylist() == ["a", "b", "c"]
    assert table.column("metadata.id").to_pylist() == [1, 2, 3]


def test_a_single_query_and_string_ids() -> None:
    result = result_of(np.array(["x", "y", None], object), [2], pa.table({"title": ["a", "b"]}))
    table = result.to_arrow()
    assert table.column("id").to_pylist() == ["x", "y"]
    assert table.column("title").to_pylist() == ["a", "b"]
    assert len(result) == 3
    assert "reads per query=3.0" in repr(result)


def test_terminals_and_notebooks_show_the_hits() -> None:
    metadata = pa.table({"title": ["<b>", *"cdefgh"]})
    result = result_of(np.arange(100, 107), [7], metadata)
    lines = repr(result).splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("SearchResult(shape=(7,)")
    assert "id 104" in lines[5]
    assert "2 more" in lines[6]
    shown = result._repr_html_()
    assert "&lt;b&gt;" in shown
    assert shown.count("<tr>") == 8
    many = result_of(np.arange(50).reshape(2, 25), [25, 25])
    assert "30 more" in many._repr_html_()
    assert "<td>0</td>" in many._repr_html_()


def test_frames_of_pandas_and_polars() -> None:
    result = result_of(np.array([[5, 7, -1], [9, -1, -1]]), [2, 1])
    assert result.to_pandas()["id"].tolist() == [5, 7, 9]
    assert result.to_polars()["id"].to_list() == [5, 7, 9]
    assert result.to_polars().columns == ["query", "rank", "id", "distance"]
    found = RangeResult(
        np.array([0, 1]),
        np.array([0.5], np.float32),
        np.array([3]),
        np.array([False]),
        {"reads": np.array([1])},
    )
    assert found.to_pandas()["id"].tolist() == [3]
    assert "RangeResult(queries=1, hits=1)" in repr(found)
    assert "<td>3</td>" in found._repr_html_()
