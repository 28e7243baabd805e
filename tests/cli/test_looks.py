"""Commands that make an index without rows, look at rows, and take them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import velo
from tests.cli.test_cli import document, run

DIM, ROWS = 5, 40
VECTORS = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)


def table_of(start: int = 0, stop: int = ROWS) -> Any:
    rows = range(start, stop)
    return pa.table(
        {
            "key": [f"k{row:02d}" for row in rows],
            "emb": pa.array(VECTORS[start:stop].tolist(), pa.list_(pa.float32())),
            "year": pa.array([None if row % 9 == 0 else 2000 + row for row in rows], pa.int32()),
            "tags": pa.array([["a"] * (row % 3) for row in rows], pa.list_(pa.string())),
        }
    )


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """An index that the commands made of a folder of two files."""
    (tmp_path / "set").mkdir()
    pq.write_table(table_of(0, 15), tmp_path / "set" / "a.parquet")
    pq.write_table(table_of(15), tmp_path / "set" / "b.parquet")
    index = tmp_path / "i.velo"
    told = document(
        *("create", index, "--dim", DIM, "--metric", "cosine"),
        *("--column", "year:int32", "--column", "tags:list<string>"),
    )
    assert told == {
        "path": str(index),
        "dim": DIM,
        "metric": "cosine",
        "dtype": "float32",
        "columns": ["year", "tags"],
    }
    done = document("insert", index, tmp_path / "set", "--ids-column", "key", "--keep-columns")
    assert done["written"] == done["rows"] == ROWS
    return index


def test_rows_of_ids_and_of_filters(made: Path) -> None:
    found = document("get", made, "k20,nobody,k03", "--columns", "year")["rows"]
    assert found == [{"id": "k20", "year": 2020}, {"id": "k03", "year": 2003}]
    found = document("get", made, "k20", "--columns", "year", "--vectors")["rows"]
    assert found[0]["vector"] == pytest.approx(VECTORS[20].tolist())
    page = document("rows", made, "--filter", "year >= 2020", "--limit", 3)["rows"]
    assert [one["id"] for one in page] == ["k20", "k21", "k22"]
    page = document("rows", made, "--filter", '{"year": {"$gte": 2020}}', "--after", "k22", "--limit", 1)[
        "rows"
    ]
    assert page == [{"id": "k23", "year": 2023, "tags": ["a", "a"]}]
    assert document("count", made)["rows"] == ROWS
    assert document("count", made, "--filter", "year IS NULL")["rows"] == 5
    assert run("count", made, "--filter", "year >= 2030").stdout.strip() == "9"
    shown = run("rows", made, "--limit", 2).stdout
    assert "k00" in shown
    assert "['a']" in shown
    assert "k02" not in shown


def test_export_and_build_again(made: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    velo_index = velo.open(made, writable=True)
    velo_index.delete(["k07"])
    velo_index.flush()
    velo_index.upsert(VECTORS[:1], ids=["k41"], metadata={"year": [1], "tags": [["z"]]})
    velo_index.close()
    told = document("export", made, target)
    assert told["rows"] == ROWS
    assert told["columns"] == ["id", "year", "tags", "vector"]
    assert pq.read_schema(target).field("vector").type == pa.list_(pa.float32(), DIM)
    with (
        velo.build(
            tmp_path / "again", target, ids_column="id", metadata=True, metric="cosine", store_vectors=True
        ) as again,
        velo.open(made) as index,
    ):
        assert again.rows(limit=99).to_pylist() == index.rows(limit=99).to_pylist()
        ids = index.rows(limit=99)["id"]
        np.testing.assert_array_equal(again.get_vectors(ids), index.get_vectors(ids))
    assert run("export", made, target).returncode == 1
    segment = document(
        "export", made, target, "--overwrite", "--filter", "year > 2030", "--no-vectors", "--columns", "year"
    )
    assert segment["columns"] == ["id", "year"]
    assert pq.read_table(target)["year"].to_pylist() == [2031, *range(2032, 2036), 2037, 2038, 2039]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["again", "i.velo", "out.parquet", "set"]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float16", "float32"])
def test_export_of_numbered_rows_in_many_pages(tmp_path: Path, dtype: str) -> None:
    vectors = np.random.default_rng(1).integers(0, 100, (25_000, 3)).astype(dtype)
    with velo.create(tmp_path / "i", dim=3, dtype=dtype) as index:
        index.insert(vectors)
        index.delete([5, 24_999])
    assert (
        document("export", tmp_path / "i", tmp_path / "o.parquet", "--vector-column", "v")["rows"] == 24_998
    )
    found = pq.read_table(tmp_path / "o.parquet")
    kept = np.delete(np.arange(25_000), [5, 24_999])
    assert found["id"].to_pylist() == kept.tolist()
    np.testing.assert_array_equal(np.stack(found["v"].to_numpy()), vectors[kept])


def test_export_of_an_index_without_rows(tmp_path: Path) -> None:
    document("create", tmp_path / "i", "--dim", 3)
    assert document("export", tmp_path / "i", tmp_path / "o.parquet")["rows"] == 0
    assert pq.read_table(tmp_path / "o.parquet").num_rows == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("create", "{new}", "--dim", 3, "--column", "year"), "NAME:TYPE"),
        (("create", "{new}", "--dim", 3, "--column", "year:number"), "'number' is not a type"),
        (("create", "{new}", "--dim", 0), "dim"),
        (("create", "{made}", "--dim", 3), "not empty"),
        (("get", "{made}", "k01", "--columns", "nobody"), "no column 'nobody'"),
        (("rows", "{made}", "--filter", "nobody = 1"), "there is no column 'nobody'"),
        (("rows", "{made}", "--limit", 0), "limit"),
        (("count", "{made}", "--filter", "{"), "not JSON"),
        (("export", "{made}", "{new}/o.parquet"), "cannot be written"),
        (("export", "{made}", "{new}", "--vector-column", "year"), "a column 'year' already"),
        (("export", "{new}", "{made}.parquet"), "does not exist"),
        (
            ("insert", "{made}", "{set}", "--keep-columns", "--metadata", "{set}/a.parquet"),
            "do not go together",
        ),
        (("insert", "{made}", "{set}", "--ids-column", "key", "--ids", "a"), "do not go together"),
        (("insert", "{made}", "{set}", "--ids-column", "nobody", "--keep-columns"), "no column 'nobody'"),
        (("insert", "{made}", "{set}", "--ids-column", "key", "--keep-columns"), "is there already"),
    ],
)
def test_what_is_refused(made: Path, tmp_path: Path, words: tuple[Any, ...], said: str) -> None:
    before = [one for one in sorted(tmp_path.rglob("*")) if made not in one.parents]
    names = {"new": str(tmp_path / "new"), "made": str(made), "set": str(tmp_path / "set")}
    done = run(*(_filled(one, names) for one in words))
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert [one for one in sorted(tmp_path.rglob("*")) if made not in one.parents] == before
    with velo.open(made) as index:
        assert len(index) == ROWS


def _filled(word: Any, names: dict[str, str]) -> Any:
    for name, path in names.items():
        word = word.replace(f"{{{name}}}", path) if isinstance(word, str) else word
    return word
