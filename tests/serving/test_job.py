"""Searches of a job without a gateway: over shards of this process, as a cluster's over its actors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from velo.errors import UnsupportedError
from velo_serving.protocol.hits import concat_hits
from velo_serving.protocol.types import Hits, SearchRequest
from velo_serving.routing import job as job_module
from velo_serving.routing.job import JOB_LIMITS, JobSearches, queries_a_request
from velo_serving.routing.local_backend import open_local_backend

ROWS, DIM, SHARDS = 300, 16, 3


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """A few random vectors."""
    return np.random.default_rng(29).standard_normal((ROWS, DIM)).astype(np.float32)


@pytest.fixture(scope="module")
def built(vectors: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Three shards with vectors, and an index without."""
    folder = tmp_path_factory.mktemp("jobs")
    table = pa.table({"color": [f"c{row % 5}" for row in range(ROWS)]})
    options: dict[str, Any] = {"store_vectors": True, "threads": 1}
    velo.build_collection(folder / "things.velo", vectors, shards=SHARDS, metadata=table, **options)
    velo.build(folder / "codes.velo", vectors[:20], threads=1, store_vectors=False).close()
    return folder / "things.velo", folder / "codes.velo"


def searches_in(path: Path) -> Iterator[JobSearches]:
    """The searches of a job; its shards close with it."""
    backend = open_local_backend(path, threads=1, limits=JOB_LIMITS)
    job = JobSearches("things", backend.collection)
    yield job
    job.end_searches()
    asyncio.run(backend.close())


@pytest.fixture(scope="module")
def job(built: tuple[Path, Path]) -> Iterator[JobSearches]:
    """Over the shards with vectors."""
    yield from searches_in(built[0])


@pytest.fixture(scope="module")
def job_without(built: tuple[Path, Path]) -> Iterator[JobSearches]:
    """Over the index without."""
    yield from searches_in(built[1])


@pytest.fixture(params=["one request", "a query each"])
def requests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a job brings goes in one request, or in many whose answers are put together."""
    if request.param == "a query each":
        monkeypatch.setattr(job_module, "_VECTORS_BYTES_A_REQUEST", 1)


@pytest.mark.usefixtures("requests")
def test_vectors_of_hits_are_the_stored_ones(job: JobSearches, vectors: np.ndarray) -> None:
    found = job.search(vectors[:4], 70, return_vectors=True)
    assert found.vectors is not None
    assert found.vectors.shape == (4, 70, DIM)
    assert len({int(one) // 100 for one in found.ids[0]}) == SHARDS, "hits of one shard show little"
    assert np.array_equal(found.vectors, vectors[found.ids])
    few = job.search(vectors[:2], 90, filter={"color": "c1"}, return_vectors=True)
    assert few.vectors is not None
    assert np.array_equal(few.vectors[:, :60], vectors[few.ids[:, :60]])
    assert np.isnan(few.vectors[:, 60:]).all()
    assert job.search(vectors[:2], 3).vectors is None


@pytest.mark.usefixtures("requests")
def test_vectors_of_groups(job: JobSearches, vectors: np.ndarray) -> None:
    found = job.search(vectors[:3], 4, group_by="color", group_size=6, return_vectors=True)
    assert isinstance(found, velo.GroupedResult)
    assert found.vectors is not None
    assert found.vectors.shape == (3, 4, 6, DIM)
    assert (found.ids >= 0).all()
    assert np.array_equal(found.vectors, vectors[found.ids])


@pytest.mark.usefixtures("requests")
def test_vectors_within_a_radius(job: JobSearches, vectors: np.ndarray) -> None:
    found = job.range_search(vectors[:5], 18.0, limit=40, return_vectors=True)
    assert len(set(np.diff(found.lims).tolist())) > 1, "rows of one width need no padding"
    assert found.vectors is not None
    assert found.vectors.shape == (len(found.ids), DIM)
    assert np.array_equal(found.vectors, vectors[found.ids])


def test_vectors_of_answers_of_different_widths_become_one() -> None:
    parts = [
        Hits(
            np.arange(width)[None, :],
            np.zeros((1, width), np.float32),
            np.array([width]),
            vectors=np.full((1, width, 2), width, np.float32),
        )
        for width in (3, 1)
    ]
    whole = concat_hits(parts).vectors
    assert whole is not None
    assert whole[:, 0].tolist() == [[3, 3], [1, 1]]
    assert (whole[0] == 3).all()
    assert np.isnan(whole[1, 1:]).all()


def test_a_job_of_no_queries(job: JobSearches) -> None:
    found = job.search(np.empty((0, DIM), np.float32), 3, return_vectors=True)
    assert found.vectors is not None
    assert found.vectors.shape == (0, 3, DIM)


def test_a_build_without_vectors_says_so(job_without: JobSearches, vectors: np.ndarray) -> None:
    with pytest.raises(UnsupportedError, match="store_vectors"):
        job_without.search(vectors[:2], 3, return_vectors=True)
    assert job_without.search(vectors[:2], 3).counts.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("options", "queries"),
    [
        ({"k": 10_000}, 512),
        ({"k": 10, "return_vectors": True}, 512),
        ({"k": 100, "return_vectors": True}, 81),
        ({"k": 10, "group_by": "a", "group_size": 10, "return_vectors": True}, 81),
        ({"k": 10_000, "return_vectors": True}, 1),
    ],
)
def test_bytes_of_vectors_that_a_request_brings_are_bounded(options: dict[str, Any], queries: int) -> None:
    request = SearchRequest(np.empty((1000, 1024), np.float32), **options)
    assert queries_a_request(request, 1024) == queries
