"""Segments that are small beside another one: built with less effort, until they are merged into it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo.compaction import compactor
from velo.folder.manifest import Manifest, read_manifest
from velo.testing import brute_force, recall_at_k, synthetic_vectors

N, YOUNG, DIM = 6_000, 1_100, 24
OPTIONS: dict[str, Any] = {"threads": 1, "durability": "process"}


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return synthetic_vectors(N + YOUNG, DIM, seed=6)


@pytest.fixture
def path(tmp_path: Path, vectors: np.ndarray) -> Path:
    velo.build(tmp_path / "i", vectors[:N], store_vectors=True, threads=1).close()
    return tmp_path / "i"


def manifests(index: velo.Index) -> list[Manifest]:
    return [read_manifest(Path(index.path) / part["path"]) for part in index.info()["live"]["parts"]]


def list_size_of(index: velo.Index, part: int) -> int:
    folder = Path(index.path) / index.info()["live"]["parts"][part]["path"]
    return int(json.loads((folder / "manifest.json").read_text())["build_list_size"])


def test_a_small_segment_is_interim_until_it_is_merged(path: Path, vectors: np.ndarray) -> None:
    """It takes the calibration of the largest as it is, and finds as much."""
    with velo.open(path, writable=True, **OPTIONS) as index:
        index.insert(vectors[N:])
        index.flush()
        base, young = manifests(index)
        assert (base.is_interim, young.is_interim) == (False, True)
        assert list_size_of(index, 1) < list_size_of(index, 0)
        assert young.calibration == base.calibration
        queries = vectors[::11] + np.float32(0.01)
        truth = brute_force(vectors, queries, 10)
        found = index.search(queries, 10, recall=0.95)
        assert recall_at_k(found.ids, truth.ids) >= 0.94
        index.optimize()
        (merged,) = manifests(index)
        assert not merged.is_interim
        assert list_size_of(index, 0) == 100
        assert merged.calibration is not None
        assert merged.calibration["turns"] == 1
        assert recall_at_k(index.search(queries, 10, recall=0.95).ids, truth.ids) >= 0.94
        assert (index.get_vectors([3, N + 3]) == vectors[[3, N + 3]]).all()


def test_a_segment_of_similar_size_is_not_interim(path: Path, vectors: np.ndarray) -> None:
    with velo.open(path, writable=True, **OPTIONS) as index:
        index.delete(np.arange(1_000, N))
        index.optimize()
        index.insert(vectors[N:])
        index.flush()
        assert [one.is_interim for one in manifests(index)] == [False, False]


@pytest.mark.parametrize("in_background", [False, True])
def test_an_interim_segment_left_alone_is_built_again(
    path: Path, vectors: np.ndarray, in_background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all rows of the segment beside it were deleted."""
    monkeypatch.setattr(compactor, "_CALM", 0.0)
    monkeypatch.setattr(compactor, "_LATER_S", 1e6)  # nothing begins unasked
    with velo.open(path, writable=True, **OPTIONS) as index:
        index.insert(vectors[N:])
        index.flush()
        index.delete(np.arange(N))
        own = index._folders[0].compactor
        assert own is not None
        if in_background:
            own._segments_worker.wait(own._segments_worker.ask())
        else:
            index.optimize()
        (left,) = manifests(index)
        assert not left.is_interim
        assert left.calibration is not None
        assert left.calibration["rows"] == YOUNG
        assert len(index) == YOUNG
        index.optimize()
        assert manifests(index) == [left], "nothing is left to do"
