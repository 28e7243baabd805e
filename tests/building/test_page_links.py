"""Indexes whose pages hold no links: more records a page, the same answers, and links must be in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import errors
from velo.testing import brute_force, synthetic_vectors

ROWS, DIM, K = 4000, 64, 10


@pytest.fixture(scope="module")
def vectors() -> Any:
    return synthetic_vectors(ROWS + 100, DIM, seed=12)


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory, vectors: Any) -> Path:
    path = tmp_path_factory.mktemp("page_links") / "without"
    velo.build(path, vectors[:ROWS], search_memory="60%", threads=1).close()
    return path


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory, vectors: Any) -> Path:
    path = tmp_path_factory.mktemp("page_links") / "beside"
    velo.build(path, vectors[:ROWS], search_memory="60%", page_links=True, threads=1).close()
    return path


def test_pages_hold_more_records_and_searches_read_less(vectors: Any, without: Path, beside: Path) -> None:
    queries = vectors[ROWS:]
    truth = brute_force(vectors[:ROWS], queries, K).ids
    seen = {}
    for path in (without, beside):
        with velo.open(path, tuning=velo.OpenTuning(cache_share=0.0)) as index:
            info = index.info()
            result = index.search(queries, K, list_size=64)
        found = (
            np.mean([len(set(a) & set(b)) for a, b in zip(np.asarray(result.ids), truth, strict=True)]) / K
        )
        seen[path] = (info, found, float(result.stats["reads"].mean()))
    (info, found, reads), (info_beside, found_beside, reads_beside) = seen[without], seen[beside]
    assert not info["page_links"]
    assert info_beside["page_links"]
    assert info["records_per_page"] > 1.3 * info_beside["records_per_page"]
    assert info["disk_bytes"]["pages.bin"] < 0.77 * info_beside["disk_bytes"]["pages.bin"]
    assert found > 0.95
    assert abs(found - found_beside) < 0.01
    assert reads < reads_beside


def test_every_list_and_page_is_sound(without: Path) -> None:
    velo.verify(without)


def test_links_cannot_stay_on_disk(without: Path) -> None:
    with pytest.raises(errors.UnsupportedError, match="without links in its pages") as refused:
        velo.open(without, plan="links_on_disk")
    assert refused.value.argument == "plan"


def test_a_budget_without_room_for_links_names_one_that_has(without: Path) -> None:
    with velo.open(without) as index:
        memory = index.info()["memory_bytes"]
    scant = memory["codes"] + memory["pages"] + 1000
    with pytest.raises(errors.BudgetTooSmallError, match="links in memory need") as refused:
        velo.open(without, memory=scant)
    needed = refused.value.needed_bytes
    assert needed is not None
    assert scant < needed <= sum(memory.values())
    with velo.open(without, memory=needed) as index:
        assert index.info()["plan"] == "links_in_memory"
    assert any(row.plan is None and row.needed_bytes for row in velo.plans(without, memory=scant))


def test_without_links_anywhere_there_is_nothing_to_build(tmp_path: Path, vectors: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="nothing could be searched"):
        velo.build(tmp_path / "x", vectors[:200], page_links=False, links_kept=0)
    assert not (tmp_path / "x").exists()


def test_a_recall_is_calibrated_for_links_in_memory(without: Path, vectors: Any) -> None:
    with velo.open(without) as index:
        expected = index.search(vectors[ROWS:], K, recall=0.95).expected
    assert expected.recall >= 0.95


def test_filters_and_stored_vectors_do_as_ever(tmp_path: Path, vectors: Any) -> None:
    base = vectors[:1000]
    table = {"third": np.arange(1000) % 3}
    with velo.build(
        tmp_path / "x", base, metadata=table, page_links=False, store_vectors=True, metric="cosine"
    ) as index:
        result = index.search(base[:50], 5, filter=velo.col("third") == 1)
        assert (np.asarray(result.ids) % 3 == 1).all()
        assert np.allclose(index.get_vectors([7, 3]), base[[7, 3]])


def test_codes_without_lower_bits_leave_pages_little_to_hold(tmp_path: Path, vectors: Any) -> None:
    with velo.build(
        tmp_path / "x", vectors[:ROWS], page_links=False, memory_bits=6, record_bits=0, threads=1
    ) as index:
        assert index.info()["records_per_page"] > 200
        result = index.search(vectors[ROWS:], K, list_size=64)
    truth = brute_force(vectors[:ROWS], vectors[ROWS:], K).ids
    found = np.mean([len(set(a) & set(b)) for a, b in zip(np.asarray(result.ids), truth, strict=True)]) / K
    assert found > 0.75
