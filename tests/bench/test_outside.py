"""The adapters in ``bench/outside`` under stand-ins of the projects that they are for."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.harness.runs import ROOT
from velo.testing import synthetic_vectors

OUTSIDE = ROOT / "bench" / "outside"
VECTORS = synthetic_vectors(3000, 16, seed=5, intrinsic_dim=8)
QUERIES = synthetic_vectors(20, 16, seed=5, start=3000, intrinsic_dim=8)
NEAREST = np.argsort(((VECTORS[None] - QUERIES[:, None]) ** 2).sum(axis=2), axis=1)[:, :10]


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """A module of a project, with its parents."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        if path not in sys.modules:
            package = ModuleType(path)
            package.__path__ = []  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, path, package)
    vars(sys.modules[name]).update(members)


def load(monkeypatch: pytest.MonkeyPatch, name: str, file: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, OUTSIDE / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def recall(found: Any, expected: np.ndarray = NEAREST) -> float:
    hits = [len(set(one) & set(true)) for one, true in zip(np.asarray(found), expected.tolist(), strict=True)]
    return sum(hits) / expected.size


def test_ann_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "ann_benchmarks.algorithms.base.module", BaseANN=object)
    adapter = load(monkeypatch, "ann_adapter", "ann_benchmarks/module.py").Velo("euclidean", "40%")
    adapter.fit(VECTORS)
    adapter.set_query_arguments(96)
    assert str(adapter.name) == "velo (40%, list_size 96)"
    adapter.batch_query(QUERIES, 10)
    assert recall(adapter.get_batch_results()) > 0.9
    assert recall([np.ravel(adapter.query(query, 10)) for query in QUERIES]) > 0.9
    adapter.done()


def test_big_ann_filter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    words = SimpleNamespace(indptr=np.arange(3001), indices=(np.arange(3000) % 3).astype(np.int32))
    dataset = SimpleNamespace(
        search_type=lambda: "knn_filtered", get_dataset=lambda: VECTORS, get_dataset_metadata=lambda: words
    )
    stand_in(monkeypatch, "benchmark.datasets", DATASETS={"made": lambda: dataset})
    stand_in(monkeypatch, "neurips23.filter.base", BaseFilterANN=object)
    adapter = load(monkeypatch, "filter_adapter", "big_ann/filter/velo.py").Velo(
        "euclidean", {"memory": "40%"}
    )
    adapter.fit("made")
    adapter.set_query_arguments({"recall": 0.95})
    adapter.query(QUERIES, 10)
    assert recall(adapter.res) > 0.9
    asked = SimpleNamespace(indptr=np.arange(21), indices=np.ones(20, np.int32))
    adapter.filtered_query(QUERIES, asked, 10)
    assert (adapter.res % 3 == 1).all()
    assert adapter.load_index("made")
    assert "manifest.json" in adapter.index_files_to_store("made")[2]
    adapter.done()


def test_big_ann_streaming(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    stand_in(monkeypatch, "neurips23.streaming.base", BaseStreamingANN=object)
    made = load(monkeypatch, "streaming_adapter", "big_ann/streaming/velo.py").Velo
    adapter = made("euclidean", {"memory": "40%"})
    adapter.setup("float32", 3000, 16)
    adapter.insert(VECTORS, np.arange(3000))
    adapter.set_query_arguments({"recall": 0.95})
    adapter.query(QUERIES, 10)
    assert recall(adapter.res) > 0.9
    adapter.delete(NEAREST[:, 0])
    adapter.query(QUERIES, 10)
    assert not np.isin(NEAREST[:, 0], adapter.res).any()
    adapter.replace(QUERIES, np.arange(20) + 3000)
    adapter.query(QUERIES, 1)
    assert adapter.res[:, 0].tolist() == list(range(3000, 3020))
    adapter.done()


def test_vectordbbench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    metrics = SimpleNamespace(L2="L2", IP="IP", DP="DP", COSINE="COSINE")
    kinds = SimpleNamespace(NonFilter=0, NumGE=1, StrEqual=2)
    clients = "vectordb_bench.backend.clients"
    base = {"DBCaseConfig": object, "DBConfig": object, "MetricType": metrics, "VectorDB": object}
    stand_in(monkeypatch, f"{clients}.api", **base)
    stand_in(monkeypatch, "vectordb_bench.backend.filter", Filter=object, FilterOp=kinds)
    stand_in(monkeypatch, f"{clients}.velo.config", VeloIndexConfig=object)
    client = load(monkeypatch, f"{clients}.velo.velo", "vectordbbench/velo.py").Velo
    case = SimpleNamespace(
        metric="l2",
        index_param=lambda: {"memory": "16MiB", "threads": 1},
        search_param=lambda: {"recall": 0.95, "list_size": None},
    )
    how = {"dim": 16, "db_config": {"path": str(tmp_path / "velo")}, "db_case_config": case}
    writer = client(**how, drop_old=True, with_scalar_labels=True)
    with writer.init():
        labels = [str(row % 3) for row in range(3000)]
        assert writer.insert_embeddings(VECTORS.tolist(), list(range(3000)), labels) == (3000, None)
        assert writer.insert_embeddings([[1.0]], [3000], ["0"])[0] == 0
        writer.optimize()
    for asked, rows in (
        (SimpleNamespace(type=0), np.arange(3000)),
        (SimpleNamespace(type=1, int_value=1500), np.arange(1500, 3000)),
        (SimpleNamespace(type=2, label_value="1"), np.arange(1, 3000, 3)),
    ):
        reader = client(**how)
        reader.prepare_filter(asked)
        with reader.init():
            found = [reader.search_embedding(query.tolist(), 10) for query in QUERIES]
        distances = ((VECTORS[rows][None] - QUERIES[:, None]) ** 2).sum(axis=2)
        assert recall(found, rows[np.argsort(distances, axis=1)[:, :10]]) > 0.9
    with pytest.raises(FileExistsError, match="it is not removed"):
        client(**(how | {"db_config": {"path": str(OUTSIDE)}}), drop_old=True)
