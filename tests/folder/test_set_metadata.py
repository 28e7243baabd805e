"""Metadata of a finished index, exchanged and extended: by row, by id, atomically; refused if wrong."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
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
from velo.testing import synthetic_vectors

ROWS, DIM = 1500, 24


def labels(rows: int = ROWS, start: int = 0) -> Any:
    numbers = np.arange(start, start + rows)
    return pa.table(
        {"number": numbers, "parity": pa.array(["even" if number % 2 == 0 else "odd" for number in numbers])}
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("built") / "i"
    velo.build(
        path,
        synthetic_vectors(ROWS, DIM),
        ids=[f"v{number}" for number in range(ROWS)],
        metadata=labels(),
        degree=16,
        links_kept=8,
    ).close()
    return path


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "i"))


def numbers_of(index: velo.Index, column: str = "number") -> dict[str, Any]:
    """What the index says of each id; a graph with few links may not lead to all of them."""
    every = velo.SearchTuning(filter_plan="scan")
    query = synthetic_vectors(1, DIM)[0]
    result = index.search(query, k=ROWS, list_size=ROWS, return_metadata=[column], tuning=every)
    assert result.metadata is not None
    return dict(zip(result.ids.tolist(), result.metadata.column(column).to_pylist(), strict=False))


def test_rows_are_matched_in_the_order_of_the_build(copy: Path) -> None:
    pages = (copy / "pages.bin").read_bytes()
    with velo.open(copy) as index:
        assert numbers_of(index)["v7"] == 7
        index.set_metadata({"square": np.arange(ROWS) ** 2, "tags": [[f"t{i % 5}"] for i in range(ROWS)]})
        assert numbers_of(index, "square")["v7"] == 49
        assert index.info()["columns"] == ["square", "tags"]
        found = index.search(synthetic_vectors(1, DIM)[0], k=20, filter=velo.col("tags").contains_any(["t3"]))
        assert all(int(name[1:]) % 5 == 3 for name in found.ids)
        with pytest.raises(errors.UnknownColumnError):
            index.search(synthetic_vectors(1, DIM)[0], filter=velo.col("number") == 1)
        index.verify()
    with velo.open(copy) as again:
        assert numbers_of(again, "square")["v11"] == 121
    assert (copy / "pages.bin").read_bytes() == pages
    assert sorted(entry.name for entry in copy.iterdir() if entry.name.startswith("columns.")) == [
        "columns.2.arrow",
        "columns.2.postings",
        "columns.2.stats",
    ]


def test_rows_are_matched_by_id(copy: Path) -> None:
    shuffled = np.random.default_rng(3).permutation(ROWS)
    table = pa.table({"name": [f"v{number}" for number in shuffled], "number": shuffled * 10})
    with velo.open(copy) as index:
        index.set_metadata(table, ids_column="name")
        assert index.info()["columns"] == ["number"]
        assert numbers_of(index)["v42"] == 420


def test_columns_are_added_beside_those_that_are_there(copy: Path) -> None:
    with velo.open(copy) as index:
        index.add_columns({"half": np.arange(ROWS) / 2})
        assert index.info()["columns"] == ["number", "parity", "half"]
        both = (velo.col("half") < 50) & (velo.col("parity") == "odd")
        found = index.search(synthetic_vectors(1, DIM)[0], k=200, filter=both)
        assert sorted(int(name[1:]) for name in found.ids[: found.counts[0]]) == list(range(1, 100, 2))
        with pytest.raises(errors.InvalidArgumentError, match="'half' already"):
            index.add_columns({"half": np.arange(ROWS)})
        index.add_columns({"half": np.arange(ROWS) // 2}, overwrite=True)
        assert numbers_of(index, "half")["v9"] == 4
        assert numbers_of(index)["v9"] == 9


def test_an_index_without_metadata_gets_some(tmp_path: Path) -> None:
    with velo.build(tmp_path / "i", synthetic_vectors(300, DIM), degree=16, links_kept=8) as index:
        with pytest.raises(errors.UnknownColumnError):
            index.search(synthetic_vectors(1, DIM)[0], filter=velo.col("number") == 1)
        index.set_metadata(labels(300))
        found = index.search(synthetic_vectors(1, DIM)[0], k=5, filter=velo.col("number") == 17)
        assert found.ids[: found.counts[0]].tolist() == [17]
    with velo.open(tmp_path / "i") as again:
        assert again.info()["columns"] == ["number", "parity"]


@pytest.mark.parametrize(
    ("table", "ids_column", "kind", "message"),
    [
        (labels(ROWS - 1), None, errors.InvalidArgumentError, f"has {ROWS - 1} rows"),
        (labels(ROWS + 1), None, errors.InvalidArgumentError, f"has {ROWS + 1} rows"),
        (pa.table({"id": ["x"] * ROWS, "a": [1] * ROWS}), "id", errors.UnknownIdError, "'x'"),
        (pa.table({"id": ["v1"] * ROWS, "a": [1] * ROWS}), "id", errors.DuplicateIdError, "'v1'"),
        (pa.table({"id": list(range(ROWS)), "a": [1] * ROWS}), "id", errors.InvalidArgumentError, "strings"),
        (pa.table({"id": [None] * ROWS, "a": [1] * ROWS}), "id", errors.InvalidArgumentError, "no id"),
        (labels(), "nowhere", errors.UnknownColumnError, "nowhere"),
        (pa.table({"id": [f"v{i}" for i in range(ROWS)]}), "id", errors.InvalidArgumentError, "no columns"),
        (7, None, errors.InvalidArgumentError, "not a int"),
        ({"a": [[1]] * (ROWS - 1) + ["x"]}, None, errors.InvalidArgumentError, "as a table"),
        (Path("/nowhere.parquet"), None, errors.InvalidArgumentError, "cannot be read"),
    ],
)
def test_a_wrong_table_is_refused_and_changes_nothing(
    copy: Path, table: Any, ids_column: str | None, kind: type[Exception], message: str
) -> None:
    before = {entry.name: entry.read_bytes() for entry in copy.iterdir()}
    with velo.open(copy) as index:
        with pytest.raises(kind, match=message):
            index.set_metadata(table, ids_column=ids_column)
        assert numbers_of(index)["v7"] == 7
    assert {entry.name: entry.read_bytes() for entry in copy.iterdir()} == before


def test_searches_that_run_meanwhile_see_one_metadata_or_the_other(copy: Path) -> None:
    wrong: list[Any] = []
    with velo.open(copy, threads=2) as index:
        stop = threading.Event()

        def ask() -> None:
            queries = synthetic_vectors(4, DIM, seed=1)
            while not stop.is_set():
                result = index.search(
                    queries, k=10, filter=velo.col("number") >= 100, return_metadata=["number"]
                )
                assert result.metadata is not None
                for ids, rows in zip(result.ids, result.metadata, strict=True):
                    values = rows.column("number").to_pylist()
                    plain = [int(name[1:]) for name in ids]
                    if values != plain and values != [number + 10_000 for number in plain]:
                        wrong.append((plain, values))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for turn in range(8):
            index.set_metadata(labels(start=0 if turn % 2 else 10_000))
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong


def test_another_open_index_keeps_what_it_had(copy: Path) -> None:
    with velo.open(copy) as one, velo.open(copy) as other:
        one.set_metadata({"new": np.arange(ROWS)})
        assert numbers_of(other)["v7"] == 7
        found = other.search(synthetic_vectors(1, DIM)[0], k=3, filter=velo.col("number") == 12)
        assert found.ids[0] == "v12"
        assert numbers_of(one, "new")["v7"] == 7


def test_only_one_change_at_a_time(copy: Path) -> None:
    import fcntl
    import os

    handle = os.open(copy, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with velo.open(copy) as index, pytest.raises(errors.BusyError):
            index.set_metadata(labels())
    finally:
        os.close(handle)


@pytest.mark.parametrize("place", ["columns.arrow", "columns.stats", "columns.postings", "commit"])
def test_a_killed_change_leaves_the_old_metadata(copy: Path, place: str, tmp_path: Path) -> None:
    pq.write_table(labels(start=5000), tmp_path / "t.parquet")
    code = f"""
import os, signal, sys
import velo, velo.folder.exchange as room, velo.folder.metadata as files
path, table = sys.argv[1:]
index = velo.open(path)
def die(*arguments, **more):
    os.kill(os.getpid(), signal.SIGKILL)
if {place!r} == "commit":
    room._recommit = die
else:
    replace = os.replace
    def killed(source, target):
        replace(source, target)
        if str(target).endswith({place!r}.removeprefix("columns")):
            die()
    files.os.replace = killed
index.set_metadata(table)
"""
    run = subprocess.run([sys.executable, "-c", code, str(copy), str(tmp_path / "t.parquet")], check=False)
    assert run.returncode == -signal.SIGKILL
    with velo.open(copy) as index:
        assert numbers_of(index)["v7"] == 7
        index.verify()
        index.set_metadata(labels(start=100))
        assert numbers_of(index)["v7"] == 107
    left = {entry.name for entry in copy.iterdir() if entry.name.startswith("columns.")}
    assert left == {"columns.2.arrow", "columns.2.postings", "columns.2.stats"}


def test_an_index_from_before_postings_opens_and_filters(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    assert "columns.postings" in {entry["name"] for entry in manifest["files"]}
    from velo import _native

    names = ["columns.arrow", "columns.stats"]
    kept = [_native.ffi.new("char[]", name.encode()) for name in names]
    pointers = _native.ffi.new("char *[]", kept)
    user = json.dumps(manifest["user"]).encode()
    _native.check(_native.lib.velo_index_recommit(bytes(copy), b"columns.", pointers, 2, user))
    (copy / "columns.postings").unlink()
    with velo.open(copy) as index:
        found = index.search(synthetic_vectors(1, DIM)[0], k=3, filter=velo.col("number") == 12)
        assert found.ids[: found.counts[0]].tolist() == ["v12"]
        index.verify()


def test_the_command_line(copy: Path, tmp_path: Path) -> None:
    pq.write_table(labels(start=300), tmp_path / "t.parquet")
    run = CliRunner().invoke(app, ["metadata", "set", str(copy), str(tmp_path / "t.parquet"), "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.output)["columns"] == ["number", "parity"]
    pq.write_table(pa.table({"extra": ["a", "b", "a"] * (ROWS // 3)}), tmp_path / "e.parquet")
    run = CliRunner().invoke(app, ["metadata", "set", str(copy), str(tmp_path / "e.parquet"), "--add"])
    assert run.exit_code == 0, run.output
    assert "3 columns" in run.output
    run = CliRunner().invoke(app, ["metadata", "show", str(copy), "--json"])
    shown = json.loads(run.output)
    assert shown["rows"] == ROWS
    assert shown["generation"] == 3
    extra = shown["columns"][2]
    assert extra["name"] == "extra"
    assert extra["top"] == [["a", 1000], ["b", 500]]
    number = shown["columns"][0]
    assert (number["min"], number["max"], number["distinct"]) == (300, 300 + ROWS - 1, ROWS)
    assert len(number["quantiles"]) == 11
    assert number["quantiles"] == sorted(number["quantiles"])
    run = CliRunner().invoke(app, ["metadata", "show", str(copy)])
    assert "extra" in run.output
    assert "a (1,000)" in run.output
    run = CliRunner().invoke(app, ["metadata", "set", str(copy), str(tmp_path / "e.parquet"), "--add"])
    assert run.exit_code != 0
    run = CliRunner().invoke(app, ["metadata", "set", str(tmp_path), str(tmp_path / "e.parquet")])
    assert run.exit_code != 0


def test_the_command_line_over_a_collection(tmp_path: Path) -> None:
    velo.build_collection(tmp_path / "c", synthetic_vectors(600, DIM), shards=2, degree=16, links_kept=8)
    pq.write_table(labels(600), tmp_path / "t.parquet")
    run = CliRunner().invoke(app, ["metadata", "set", str(tmp_path / "c"), str(tmp_path / "t.parquet")])
    assert run.exit_code == 0, run.output
    with velo.open(tmp_path / "c" / "shard-00001") as index:
        found = index.search(synthetic_vectors(1, DIM)[0], k=3, filter=velo.col("number") == 450)
        assert found.ids[: found.counts[0]].tolist() == [450]
