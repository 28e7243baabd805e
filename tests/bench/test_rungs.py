"""The simulation of plans reads an index as the library does, and its walks find what their codes allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import velo
from bench.harness.datasets import Dataset, nearest
from bench.rungs import codes, placed, walks
from velo.testing import synthetic_vectors


def test_placement_and_links_are_those_of_the_index_and_a_walk_finds_the_nearest(tmp_path: Path) -> None:
    rows = synthetic_vectors(4000, 32, seed=6, intrinsic_dim=10)
    queries = synthetic_vectors(20, 32, seed=6, start=4000, intrinsic_dim=10)
    options: Any = {"memory_bits": 2, "record_bits": 6, "page_links": False, "calibrate": False}
    velo.build(tmp_path / "i", rows, threads=1, **options).close()
    truth = nearest(rows, queries, 10, "l2")
    dataset = Dataset("made", tmp_path, "l2", rows, queries, truth)
    told = placed.read(tmp_path / "i", dataset)
    with velo.open(tmp_path / "i", threads=1) as index:
        info = index.info()
    assert np.array_equal(np.sort(told.rows), np.arange(4000))
    assert np.array_equal(told.vectors, rows[told.rows])
    assert told.page_count == (tmp_path / "i" / "pages.bin").stat().st_size // 4096 - 1
    assert (told.links >= 0).sum(axis=1).max() <= info["links_built"]
    linked = np.maximum(told.links[:, :1], 0)[:, 0]
    near = ((told.vectors - told.vectors[linked]) ** 2).sum(axis=1).mean()
    far = ((told.vectors - told.vectors[::-1]) ** 2).sum(axis=1).mean()
    assert near < far / 2

    vertex_of = np.argsort(told.rows)
    short = codes.grid(told.vectors, 2, 1)
    exact = codes.Codes(told.vectors, np.zeros(4000, np.float32), np.zeros(4000, np.float32), 0.0)
    links = walks.stretch_links(told, 5, 32)
    assert max(map(len, links)) <= 32
    found = []
    for query, true in zip(queries, truth, strict=True):
        own, distances = short.estimates(query[None])[0], exact.estimates(query[None])[0]
        walk = walks.by_vertices(links, own, walks.entry_points(told), 100, told, 5)
        read = walks.burst(told, short, own, distances, walk.until(100), 1.0)
        found.append(walks.recall(told, read.pages, vertex_of[true]))
        assert len(read.pages) == sum(read.rounds) < told.page_count
    assert np.mean(found) > 0.93
