"""``velo import`` of what other libraries wrote: every row with its id, vector and payload."""

from __future__ import annotations

import shutil
import struct
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import faiss
import lancedb
import numpy as np
import pyarrow as pa
import pytest
import usearch.index
from lancedb.index import IvfFlat
from qdrant_client import QdrantClient, models

import velo
from tests.cli.test_cli import document, run

ROWS, DIM = 250, 4
VECTORS = np.random.default_rng(7).normal(size=(ROWS, DIM)).astype(np.float32)
LABELS = 5 * np.arange(ROWS) + 1

#: What hnswlib 0.8.0 saved of these vectors and labels: space "ip", M=4, every tenth one marked as deleted.
HNSWLIB = Path(__file__).parent / "hnswlib-0.8.0.bin"


def check(path: Path, ids: Any, vectors: Any, tolerance: float = 0.0) -> velo.Index:
    """The rows of an index are these, and it finds them."""
    index = velo.open(path)
    assert len(index) == len(ids)
    assert velo.verify(path) > 0
    np.testing.assert_allclose(index.get_vectors(ids), vectors, atol=tolerance)
    for row in (0, len(ids) // 2):
        exact = index.search(vectors[row], k=1, exact=True)
        distances = {"l2": ((vectors - vectors[row]) ** 2).sum(1), "ip": -vectors @ vectors[row]}
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(vectors[row])
        distances["cosine"] = 1 - vectors @ vectors[row] / lengths
        assert exact.ids[0] == ids[int(np.argmin(distances[index.metric]))]
    return index


def test_hnswlib(tmp_path: Path) -> None:
    told = document("import", "hnswlib", HNSWLIB, tmp_path / "i", "--metric", "ip")
    kept = np.arange(ROWS) % 10 != 0
    assert told == {
        "path": str(tmp_path / "i"),
        "rows": int(kept.sum()),
        "dim": DIM,
        "metric": "ip",
        "columns": [],
        "notes": [],
    }
    with check(tmp_path / "i", LABELS[kept], VECTORS[kept]) as index:
        assert not index.contains(LABELS[~kept]).any()
    assert [one.name for one in tmp_path.iterdir()] == ["i"]


@pytest.mark.parametrize("kind", ["Flat", "IDMap,Flat", "IDMap2,HNSW16,Flat", "IVF4,Flat", "SQ8"])
@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_faiss(tmp_path: Path, kind: str, metric: str) -> None:
    index = faiss.index_factory(DIM, kind, faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT)
    index.train(VECTORS)
    ids = LABELS if kind.startswith("IDMap") else np.arange(ROWS)
    if kind.startswith("IDMap"):
        index.add_with_ids(VECTORS, LABELS)
    else:
        index.add(VECTORS)
    faiss.write_index(index, str(tmp_path / "f.faiss"))
    told = document("import", "faiss", tmp_path / "f.faiss", tmp_path / "i")
    assert told["metric"] == metric
    assert bool(told["notes"]) == (kind == "SQ8")
    check(tmp_path / "i", ids, VECTORS, 0.02 if kind == "SQ8" else 0.0).close()


def test_faiss_of_vectors_that_are_meant_by_cosine(tmp_path: Path) -> None:
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    index = faiss.IndexFlatIP(DIM)
    index.add(unit)
    faiss.write_index(index, str(tmp_path / "f.faiss"))
    told = document("import", "faiss", tmp_path / "f.faiss", tmp_path / "i", "--metric", "cosine")
    assert told["metric"] == "cosine"
    check(tmp_path / "i", np.arange(ROWS), unit).close()


@pytest.mark.parametrize(("theirs", "ours"), [("cos", "cosine"), ("l2sq", "l2"), ("ip", "ip")])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_usearch(tmp_path: Path, theirs: str, ours: str, dtype: str) -> None:
    index = usearch.index.Index(ndim=DIM, metric=theirs, dtype=dtype)
    index.add(LABELS, VECTORS)
    index.remove(int(LABELS[3]))
    index.save(str(tmp_path / "u.usearch"))
    told = document("import", "usearch", tmp_path / "u.usearch", tmp_path / "i")
    assert told["metric"] == ours
    assert told["notes"] == ([] if dtype == "f32" else ["vectors are rounded to f16"])
    kept = np.arange(ROWS) != 3
    check(tmp_path / "i", LABELS[kept], VECTORS[kept], 0.0 if dtype == "f32" else 3e-3).close()


def qdrant(path: Path) -> QdrantClient:
    """A client of the folder. One whose lock an earlier client has just let go may say that it is held."""
    until = time.monotonic() + 20
    while True:
        try:
            return QdrantClient(path=str(path))
        except RuntimeError as error:
            if "already accessed" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.1)


def qdrant_at(path: Path, ids: list[Any], payloads: list[Any], **more: Any) -> None:
    client = qdrant(path)
    config = more.get("config", models.VectorParams(size=DIM, distance=models.Distance.EUCLID))
    client.create_collection("notes", vectors_config=config)
    vectors: list[Any] = VECTORS[: len(ids)].tolist()
    if isinstance(config, dict):
        vectors = [dict.fromkeys(config, one) for one in vectors]
    points = [
        models.PointStruct(id=one, vector=vector, payload=payload)
        for one, vector, payload in zip(ids, vectors, payloads, strict=True)
    ]
    client.upsert("notes", points)
    client.close()


def test_qdrant(tmp_path: Path) -> None:
    payloads = [
        {
            "year": 2000 + row,
            "score": row if row % 2 else row / 2,
            "tags": ["a"] * (row % 3),
            "mixed": row if row % 2 else str(row),
            "deep": {"x": row},
            **({"rare": "yes"} if row == 249 else {}),
            "nothing": None,
        }
        for row in range(ROWS)
    ]
    qdrant_at(tmp_path / "q", list(range(ROWS)), payloads)
    told = document("import", "qdrant", tmp_path / "q", tmp_path / "i")
    assert told["metric"] == "l2"
    assert told["columns"] == ["deep", "mixed", "rare", "score", "tags", "year"]
    assert told["notes"] == ["values of several kinds are kept as JSON: deep, mixed"]
    with check(tmp_path / "i", np.arange(ROWS), VECTORS) as index:
        assert index.count("year >= 2200") == 50
        assert index.count("array_length(tags) = 2") == 83
        row = index.get([249]).to_pylist()[0]
        assert row == {
            "id": 249,
            "deep": '{"x": 249}',
            "mixed": "249",
            "rare": "yes",
            "score": 249.0,
            "tags": [],
            "year": 2249,
        }
        assert index.get([8])["mixed"].to_pylist() == ['"8"']
        assert index.get([8])["rare"].to_pylist() == [None]


def test_qdrant_with_uuids_named_vectors_and_several_collections(tmp_path: Path) -> None:
    ids = sorted(str(uuid.UUID(int=row + 1)) for row in range(30))
    config = {
        "image": models.VectorParams(size=DIM, distance=models.Distance.COSINE),
        "text": models.VectorParams(size=DIM, distance=models.Distance.DOT),
    }
    qdrant_at(tmp_path / "q", ids, [{}] * 30, config=config)
    client = qdrant(tmp_path / "q")
    client.create_collection(
        "other", vectors_config=models.VectorParams(size=3, distance=models.Distance.MANHATTAN)
    )
    client.close()

    def refused(*words: str) -> str:
        done = run("import", "qdrant", tmp_path / "q", tmp_path / "i", *words)
        assert done.returncode == 1
        assert not (tmp_path / "i").exists()
        return str(done.stderr)

    assert "there are: notes, other" in refused()
    assert "there are: image, text" in refused("--collection", "notes")
    assert "Manhattan" in refused("--collection", "other")
    told = document(
        "import", "qdrant", tmp_path / "q", tmp_path / "i", "--collection", "notes", "--vector", "text"
    )
    assert told["metric"] == "ip"
    check(tmp_path / "i", ids, VECTORS[:30]).close()


def lance_vectors(vectors: Any, kind: Any) -> Any:
    return pa.array(vectors.tolist(), pa.list_(kind, vectors.shape[1]))


def test_lancedb_row_for_row(tmp_path: Path) -> None:
    columns = {
        "name": [f"n{row}" for row in range(ROWS)],
        "vector": lance_vectors(VECTORS, pa.float32()),
        "year": pa.array(range(2000, 2000 + ROWS), pa.int16()),
        "score": [None if row % 7 == 0 else row / 4 for row in range(ROWS)],
        "tags": [["a"] * (row % 3) for row in range(ROWS)],
        "deep": [{"x": row, "y": str(row)} for row in range(ROWS)],
        "at": pa.array(range(ROWS), pa.timestamp("us", "UTC")),
        "raw": [bytes([row]) for row in range(ROWS)],
        "picture": pa.array([b"..."] * ROWS, pa.large_binary()),
    }
    blob = {"lance-encoding:blob": "true"}
    table = pa.table(columns)
    at = table.schema.get_field_index("picture")
    table = table.cast(table.schema.set(at, pa.field("picture", pa.large_binary(), metadata=blob)))
    theirs = lancedb.connect(tmp_path / "db").create_table("notes", table.slice(0, 200))
    for start in range(200, ROWS, 10):  # each append lies by itself
        theirs.add(table.slice(start, 10))
    theirs.delete("year % 10 = 3 or year >= 2240")
    theirs.update(where="name = 'n20'", values={"score": -1.0})
    kept = [row for row in range(240) if row % 10 != 3]
    rows = table.take(kept).drop_columns("picture").to_pylist()
    rows[kept.index(20)]["score"] = -1.0

    path = tmp_path / "i"
    told = document("import", "lancedb", tmp_path / "db", path, "--metric", "l2", "--ids-column", "name")
    others = [one for one in table.column_names if one not in ("name", "vector", "picture")]
    assert told["rows"] == len(kept)
    assert told["columns"] == others
    assert told["notes"] == ["columns of blobs are left out: picture"]
    names = [f"n{row}" for row in kept]
    with check(path, names, VECTORS[kept]) as index:
        assert not index.contains(["n3", "n243"]).any()
        assert index.schema.field("year").type == pa.int16()
        found = index.get(names)
        assert found.drop_columns("id").to_pylist() == [{one: row[one] for one in others} for row in rows]
        assert index.count("year >= 2100") == 126
        assert index.count("score = -1") == 1


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_lancedb_without_ids_and_with_vectors_alone(tmp_path: Path, kind: Any) -> None:
    vectors = VECTORS.astype(np.float16) if kind == pa.float16() else VECTORS
    table = pa.table({"v": lance_vectors(vectors, kind)})
    theirs = lancedb.connect(tmp_path / "db").create_table("notes", table)
    theirs.delete("_rowid = 5")
    told = document("import", "lancedb", tmp_path / "db" / "notes.lance", tmp_path / "i", "--metric", "ip")
    assert told["columns"] == told["notes"] == []
    kept = np.arange(ROWS) != 5
    check(tmp_path / "i", np.arange(ROWS - 1), vectors[kept].astype(np.float32)).close()


def test_lancedb_with_several_tables_several_vectors_and_an_index(tmp_path: Path) -> None:
    database = lancedb.connect(tmp_path / "db")
    columns = {
        "id": np.arange(ROWS)[::-1] * 3,
        "image": lance_vectors(VECTORS, pa.float32()),
        "text": lance_vectors(VECTORS[:, :3], pa.float32()),
        "gap": [None if row == 7 else row for row in range(ROWS)],
    }
    theirs = database.create_table("notes", pa.table(columns))
    theirs.create_index("image", config=IvfFlat(distance_type="cosine", num_partitions=1))
    theirs.create_index("text", config=IvfFlat(distance_type="dot", num_partitions=1))
    database.create_table("plain", pa.table({"a": [1, 2]}))
    holes = pa.array([VECTORS[0].tolist(), None], pa.list_(pa.float32(), DIM))
    database.create_table("holes", pa.table({"v": holes}))

    def refused(*words: Any, source: str = "db") -> str:
        done = run("import", "lancedb", tmp_path / source, tmp_path / "i", *words)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "i").exists()
        return str(done.stderr)

    assert "say which table; there are: holes, notes, plain" in refused()
    assert "there are: notes" in refused("--collection", "plain", source="db/notes.lance")
    notes = ("--collection", "notes")
    assert "there are: image, text" in refused(*notes)
    assert "there are: none" in refused("--collection", "plain")
    assert "compares by ip, not by l2" in refused(*notes, "--vector", "text", "--metric", "l2")
    assert "give it with metric" in refused("--collection", "holes")
    assert "a row has no v" in refused("--collection", "holes", "--metric", "l2")
    image = (*notes, "--vector", "image")
    assert "no column 'key'" in refused(*image, "--ids-column", "key")
    assert "integers or strings" in refused(*image, "--ids-column", "text")
    assert "a row has no gap" in refused(*image, "--ids-column", "gap")

    told = document("import", "lancedb", tmp_path / "db", tmp_path / "i", *image, "--ids-column", "id")
    assert told["metric"] == "cosine"
    assert told["columns"] == ["text", "gap"]
    with check(tmp_path / "i", columns["id"], VECTORS) as index:
        kept = index.get(columns["id"].tolist())
        assert kept["text"].to_pylist() == columns["text"].to_pylist()
        assert kept["gap"].to_pylist() == columns["gap"]
    document("import", "lancedb", tmp_path / "db", tmp_path / "j", *notes, "--vector", "text")
    with check(tmp_path / "j", np.arange(ROWS), VECTORS[:, :3]) as index:
        assert index.metric == "ip"
        assert index.get([0])["metadata.id"].to_pylist() == [3 * (ROWS - 1)]


def test_a_refused_import_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "rubbish").write_bytes(np.random.default_rng(0).bytes(5000))
    (tmp_path / "cut.bin").write_bytes(HNSWLIB.read_bytes()[:5000])
    (tmp_path / "short.bin").write_bytes(HNSWLIB.read_bytes()[:50])
    header = bytearray(HNSWLIB.read_bytes())
    struct.pack_into("<Q", header, 16, 2**60)
    (tmp_path / "many.bin").write_bytes(header)
    (tmp_path / "there").mkdir()
    (tmp_path / "empty.lance").mkdir()
    before = sorted(tmp_path.iterdir())
    for words, said in (
        (("annoy", tmp_path / "rubbish", tmp_path / "i"), "'annoy' is not known"),
        (("hnswlib", HNSWLIB, tmp_path / "i"), "give it with metric"),
        (("hnswlib", HNSWLIB, tmp_path / "i", "--metric", "dot"), "metric is one of"),
        (("hnswlib", HNSWLIB, tmp_path / "there", "--metric", "ip"), "already exists"),
        (("hnswlib", tmp_path / "nothing", tmp_path / "i", "--metric", "ip"), "does not exist"),
        (("hnswlib", tmp_path / "rubbish", tmp_path / "i", "--metric", "ip"), "not an index of hnswlib"),
        (("hnswlib", tmp_path / "cut.bin", tmp_path / "i", "--metric", "ip"), "truncated"),
        (("hnswlib", tmp_path / "many.bin", tmp_path / "i", "--metric", "ip"), "truncated"),
        (("hnswlib", tmp_path / "short.bin", tmp_path / "i", "--metric", "ip"), "too short"),
        (("faiss", tmp_path / "rubbish", tmp_path / "i"), "faiss cannot read it"),
        (("faiss", tmp_path / "there", tmp_path / "i"), "is not a file"),
        (("usearch", tmp_path / "rubbish", tmp_path / "i"), "usearch"),
        (("qdrant", tmp_path / "there", tmp_path / "i"), "neither the address"),
        (("lancedb", tmp_path / "there", tmp_path / "i"), "neither a table"),
        (("lancedb", tmp_path / "rubbish", tmp_path / "i"), "neither a table"),
        (("lancedb", tmp_path / "nothing", tmp_path / "i"), "neither a table"),
        (("lancedb", tmp_path / "empty.lance", tmp_path / "i"), "cannot open empty"),
    ):
        done = run("import", *words)
        assert done.returncode == 1, words
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
        assert sorted(tmp_path.iterdir()) == before, words


@pytest.mark.parametrize(
    ("library", "module"),
    [
        ("faiss", "faiss"),
        ("usearch", "usearch.index"),
        ("lancedb", "lancedb"),
        ("qdrant", "qdrant_client"),
    ],
)
def test_a_library_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "file").write_bytes(b"x")
    done = run("import", library, tmp_path / "file", tmp_path / "i")
    assert done.returncode == 1
    assert "pip install" in done.stderr


def test_an_import_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    copies = bytearray(HNSWLIB.read_bytes())
    label_at = struct.unpack_from("<Q", copies, 32)[0]
    record = struct.unpack_from("<Q", copies, 24)[0]
    struct.pack_into("<Q", copies, 96 + 5 * record + label_at, int(LABELS[6]))  # a label twice
    (tmp_path / "twice.bin").write_bytes(copies)
    done = run("import", "hnswlib", tmp_path / "twice.bin", tmp_path / "i", "--metric", "ip")
    assert done.returncode == 1
    assert str(LABELS[6]) in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["twice.bin"]
    shutil.copytree(tmp_path, tmp_path / "i.importing")  # what a killed import left is taken away
    document("import", "hnswlib", HNSWLIB, tmp_path / "i", "--metric", "ip")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["i", "twice.bin"]
