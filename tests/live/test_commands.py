"""``velo insert``, ``upsert``, ``flush`` and ``optimize``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typer.testing import CliRunner

import velo
from velo.cli.app import app


def test_rows_come_by_command(tmp_path: Path) -> None:
    vectors = np.random.default_rng(8).normal(size=(90, 6)).astype(np.float32)
    path, metadata = tmp_path / "a.velo", tmp_path / "columns.parquet"
    velo.create(path, dim=6, metadata=pa.schema([("n", pa.int64())]), threads=1).close()
    np.save(tmp_path / "rows.npy", vectors)
    np.save(tmp_path / "again.npy", vectors[:2])
    pq.write_table(pa.table({"n": list(range(90))}), metadata)
    (tmp_path / "ids.txt").write_text("\n".join(f"id-{row}" for row in range(90)))

    def told(*arguments: str) -> dict[str, object]:
        found = CliRunner().invoke(app, [*arguments, "--json"])
        assert found.exit_code == 0, found.output
        answer: dict[str, object] = json.loads(found.output)
        return answer

    ids = f"@{tmp_path / 'ids.txt'}"
    first = told("insert", str(path), str(tmp_path / "rows.npy"), "--ids", ids, "--metadata", str(metadata))
    assert (first["written"], first["rows"]) == (90, 90)
    assert told("flush", str(path))["rows"] == 90
    pq.write_table(pa.table({"n": [500, 501]}), metadata)
    second = told(
        "upsert", str(path), str(tmp_path / "again.npy"), "--ids", "id-5,new", "--metadata", str(metadata)
    )
    assert (second["written"], second["replaced"], second["rows"]) == (2, 1, 91)
    segments = told("optimize", str(path))["parts"]
    assert isinstance(segments, list)
    assert [segment["n"] for segment in segments] == [91]
    with velo.open(path, threads=1) as index:
        assert index.get(["new", "id-7"])["n"].to_pylist() == [501, 7]
    twice = CliRunner().invoke(
        app,
        ["insert", str(path), str(tmp_path / "again.npy"), "--ids", "new,other", "--metadata", str(metadata)],
    )
    assert twice.exit_code != 0
    assert isinstance(twice.exception, SystemExit)
