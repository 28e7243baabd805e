"""Graphs that go on from that of a former index: what they find, what they cost, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import errors
from velo.building.build import WarmStart, build_shard
from velo.formats.files import as_source
from velo.options import BuildOptions
from velo.testing import synthetic_vectors
from velo.types import AnyArray

ROWS, DIM, NEW = 2_000, 32, 200
#: A build of these rows takes more in one piece; in partitions there is room for a former index beside it.
APART = 250_000
GONE = np.iinfo(np.uint32).max


def vertices_of(index: velo.Index, rows: AnyArray) -> AnyArray:
    """The row of each vertex."""
    order = np.empty(index.n, np.int64)
    order[index._seen().ids.vertices(np.arange(index.n))] = rows
    return order


def warm_start_of(path: Path, gone: AnyArray) -> tuple[WarmStart, AnyArray]:
    """Where rows of an index stand once some of them are gone, and which rows are left."""
    left = np.setdiff1d(np.arange(ROWS), gone)
    place = np.full(ROWS, GONE, np.uint32)
    place[left] = np.arange(len(left))
    with velo.open(path) as index:
        rows = place[vertices_of(index, np.arange(ROWS))]
        return WarmStart(path, lambda: rows), left


def recall(index: velo.Index, queries: AnyArray, base: AnyArray, metric: str) -> float:
    products = queries @ base.T
    distances = -products if metric == "ip" else (base**2).sum(axis=1) - 2 * products
    truth = np.sort(distances, axis=1)[:, 9]
    found = index.search(queries, 10, list_size=40).ids
    return float(np.mean(np.take_along_axis(distances, found, axis=1) <= truth[:, None]))


@pytest.mark.parametrize(
    ("metric", "page_links", "links_kept", "build_memory"),
    [
        ("l2", True, 24, None),
        ("ip", False, 24, None),
        ("l2", False, 24, APART),
        ("ip", True, 24, APART),
        ("l2", False, 8, None),
        *(
            pytest.param(
                *case,
                marks=pytest.mark.long(
                    guarded_by="tests/building/test_warm_start.py::test_a_warm_start_keeps_the_recall"
                ),
            )
            for case in (
                ("l2", False, 24, None),
                ("ip", True, 24, None),
                ("l2", True, 24, APART),
                ("ip", False, 24, APART),
            )
        ),
    ],
)
def test_a_warm_start_keeps_the_recall(
    tmp_path: Path, metric: Any, page_links: bool, links_kept: int, build_memory: int | None
) -> None:
    rows = synthetic_vectors(ROWS + NEW + 200, DIM, seed=11)
    options = BuildOptions(
        metric=metric, degree=24, links_kept=links_kept, page_links=page_links, threads=1, calibrate=False
    )
    build_shard(tmp_path / "former", as_source(rows[:ROWS]), options)
    gone = np.random.default_rng(1).choice(ROWS, NEW, replace=False)
    warm_start, left = warm_start_of(tmp_path / "former", gone)
    base = np.concatenate([rows[:ROWS][left], rows[ROWS : ROWS + NEW]])
    build_shard(tmp_path / "on", as_source(base), options, warm_start=warm_start, build_memory=build_memory)
    build_shard(tmp_path / "fresh", as_source(base), options, build_memory=build_memory)
    queries = rows[ROWS + NEW :]
    with velo.open(tmp_path / "on") as on, velo.open(tmp_path / "fresh") as fresh:
        assert recall(on, queries, base, metric) >= recall(fresh, queries, base, metric) - 0.02
    velo.verify(tmp_path / "on")


@pytest.mark.parametrize("build_memory", [None, APART])
def test_warm_starts_are_reproducible_with_one_thread(tmp_path: Path, build_memory: int | None) -> None:
    rows = synthetic_vectors(ROWS, DIM, seed=12)
    options = BuildOptions(degree=16, links_kept=16, threads=1, calibrate=False)
    build_shard(tmp_path / "former", as_source(rows), options)
    warm_start, left = warm_start_of(tmp_path / "former", np.arange(0, ROWS, 7))
    for name, begun in {"a": warm_start, "b": warm_start, "anew": None}.items():
        build_shard(
            tmp_path / name, as_source(rows[left]), options, warm_start=begun, build_memory=build_memory
        )
    for file in ("codes.bin", "links.bin", "pages.bin"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert (tmp_path / "a" / "links.bin").read_bytes() != (tmp_path / "anew" / "links.bin").read_bytes()


def test_an_unusable_former_index_is_refused(tmp_path: Path) -> None:
    rows = synthetic_vectors(ROWS, DIM, seed=13)
    options = BuildOptions(degree=16, links_kept=16, threads=1, calibrate=False)
    warm_start = tmp_path / "former"
    build_shard(warm_start, as_source(rows), options)
    own = np.arange(ROWS, dtype=np.uint32)
    twice, beyond = own.copy(), own.copy()
    twice[5], beyond[7] = 6, ROWS

    def refused(error: type[Exception], said: str, path: Path, places: AnyArray, **changes: Any) -> None:
        other = BuildOptions(**{"degree": 16, "links_kept": 16, "threads": 1, "calibrate": False} | changes)
        with pytest.raises(error, match=said):
            build_shard(tmp_path / "on", as_source(rows), other, warm_start=WarmStart(path, lambda: places))
        assert not (tmp_path / "on").exists()

    refused(errors.InvalidArgumentError, "vertex 6 of the former index", warm_start, twice)
    refused(errors.InvalidArgumentError, "vertex 7 of the former index", warm_start, beyond)
    refused(errors.InvalidArgumentError, "no former index of this one", warm_start, own[:-1])
    refused(errors.InvalidArgumentError, "no former index of this one", warm_start, own, metric="ip")
    refused(
        errors.InvalidArgumentError, "no former index of this one", warm_start, own, degree=12, links_kept=12
    )
    refused(errors.NotAnIndexError, "is no index", tmp_path / "nothing", own)
    pages = warm_start / "pages.bin"
    damaged = bytearray(pages.read_bytes())
    damaged[3 * 4096 + 100] ^= 1
    pages.write_bytes(damaged)
    for build_memory in (None, APART):
        with pytest.raises(errors.CorruptIndexError) as caught:
            build_shard(
                tmp_path / "on",
                as_source(rows),
                options,
                warm_start=WarmStart(warm_start, lambda: own),
                build_memory=build_memory,
            )
        assert (caught.value.file, caught.value.page) == ("pages.bin", 2)


def test_a_warm_start_without_memory_builds_a_new_graph(tmp_path: Path) -> None:
    rows = synthetic_vectors(ROWS, DIM, seed=14)
    options = BuildOptions(degree=16, links_kept=16, threads=1, calibrate=False)
    build_shard(tmp_path / "former", as_source(rows), options)
    warm_start, left = warm_start_of(tmp_path / "former", np.arange(0, ROWS, 3))
    least = 20 * len(left) + 400_000
    build_shard(tmp_path / "on", as_source(rows[left]), options, warm_start=warm_start, build_memory=least)
    velo.verify(tmp_path / "on")
