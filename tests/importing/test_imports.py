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
import numpy as np
import pytest
import usearch.index
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
    assert told["notes"] == ([] if dtype == "f32" else ["vectors are what f16 has of them"])
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


def test_what_is_refused_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "rubbish").write_bytes(np.random.default_rng(0).bytes(5000))
    (tmp_path / "cut.bin").write_bytes(HNSWLIB.read_bytes()[:5000])
    (tmp_path / "short.bin").write_bytes(HNSWLIB.read_bytes()[:50])
    header = bytearray(HNSWLIB.read_bytes())
    struct.pack_into("<Q", header, 16, 2**60)
    (tmp_path / "many.bin").write_bytes(header)
    (tmp_path / "there").mkdir()
    before = sorted(tmp_path.iterdir())
    for words, said in (
        (("annoy", tmp_path / "rubbish", tmp_path / "i"), "'annoy' is not known"),
        (("hnswlib", HNSWLIB, tmp_path / "i"), "say it with metric"),
        (("hnswlib", HNSWLIB, tmp_path / "i", "--metric", "dot"), "metric is one of"),
        (("hnswlib", HNSWLIB, tmp_path / "there", "--metric", "ip"), "is there already"),
        (("hnswlib", tmp_path / "nothing", tmp_path / "i", "--metric", "ip"), "does not exist"),
        (("hnswlib", tmp_path / "rubbish", tmp_path / "i", "--metric", "ip"), "no index of hnswlib"),
        (("hnswlib", tmp_path / "cut.bin", tmp_path / "i", "--metric", "ip"), "truncated"),
        (("hnswlib", tmp_path / "many.bin", tmp_path / "i", "--metric", "ip"), "truncated"),
        (("hnswlib", tmp_path / "short.bin", tmp_path / "i", "--metric", "ip"), "too short"),
        (("faiss", tmp_path / "rubbish", tmp_path / "i"), "faiss cannot read it"),
        (("faiss", tmp_path / "there", tmp_path / "i"), "is no file"),
        (("usearch", tmp_path / "rubbish", tmp_path / "i"), "usearch"),
        (("qdrant", tmp_path / "there", tmp_path / "i"), "neither the address"),
    ):
        done = run("import", *words)
        assert done.returncode == 1, words
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
        assert sorted(tmp_path.iterdir()) == before, words


@pytest.mark.parametrize(
    ("library", "module"), [("faiss", "faiss"), ("usearch", "usearch.index"), ("qdrant", "qdrant_client")]
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
