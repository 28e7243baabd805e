"""Memory that codes and links leave over holds pages: fewer reads, the same answers."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests import child
from velo.types import AnyArray

ROWS, DIM, K = 6_000, 32, 10


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AnyArray]:
    random = np.random.default_rng(9)
    centers = 2 * random.normal(size=(60, DIM))
    rows = centers[random.integers(60, size=ROWS + 200)] + random.normal(size=(ROWS + 200, DIM))
    vectors = rows.astype(np.float32)
    path = tmp_path_factory.mktemp("pages") / "a.velo"
    columns = {"n": np.arange(ROWS) % 7}
    velo.build(path, vectors[:ROWS], metadata=columns, store_vectors=True, threads=1).close()
    return path, vectors[ROWS:]


def needed(path: Path) -> int:
    """Bytes of codes, links and page directory."""
    with velo.open(path, threads=1, tuning=velo.OpenTuning(cache_share=0.0)) as index:
        return int(index.info()["memory_within_budget_bytes"])


@pytest.mark.parametrize("share", [0.3, 0.6, 2.0])
@pytest.mark.parametrize("filter_", [None, {"n": 3}])
def test_answers_are_those_of_an_index_without_it(
    made: tuple[Path, AnyArray], share: float, filter_: dict[str, int] | None
) -> None:
    path, queries = made
    pages_bytes = (path / "pages.bin").stat().st_size
    memory = needed(path) + int(share * pages_bytes)
    without = velo.OpenTuning(cache_share=0.0)
    with (
        velo.open(path, memory=memory, threads=1, tuning=without) as plain,
        velo.open(path, memory=memory, threads=1) as cached,
    ):
        expected = plain.search(queries, K, filter=filter_)
        assert plain.info()["memory_bytes"]["cache"] == 0
        for _ in range(3):
            found = cached.search(queries, K, filter=filter_)
            assert np.array_equal(found.ids, expected.ids)
            assert np.array_equal(found.distances, expected.distances)
        touched = expected.stats["reads"] + expected.stats["shared_reads"]
        together = sum(found.stats[name] for name in ("reads", "shared_reads", "cache_hits"))
        assert np.array_equal(together, touched)
        assert found.stats["cache_hits"].sum() > min(share, 1) / 2 * touched.sum()
        if share > 1:
            assert found.stats["reads"].sum() == 0
            assert found.stats["rounds"].sum() == 0
        info = cached.info()
        assert info["memory_bytes"]["cache"] > 0
        assert info["memory_within_budget_bytes"] <= memory
        expected = plain.search(queries[:20], K, exact=True)
        exact = cached.search(queries[:20], K, exact=True)
        assert np.array_equal(exact.ids, expected.ids)
        assert np.array_equal(exact.distances, expected.distances)
        every = cached.search(queries[:3], K, recall=1)
        assert np.array_equal(every.ids, plain.search(queries[:3], K, recall=1).ids)


def loaded(index: velo.Index, queries: AnyArray) -> velo.SearchResult:
    """Search until no query reads, and return the last result."""
    for _ in range(500):
        found = index.search(queries, K)
        if found.stats["reads"].sum() + found.stats["shared_reads"].sum() == 0:
            return found
        time.sleep(0.01)
    raise AssertionError("pages are still read after five seconds")


def test_pages_load_in_the_background(made: tuple[Path, AnyArray]) -> None:
    path, queries = made
    with velo.open(path, memory="400%", threads=1) as index:
        few = queries[:2]  # these alone would bring a few pages
        loaded(index, few)
        time.sleep(0.2)
        found = index.search(queries[100:], K)
        assert found.stats["reads"].sum() == 0
        assert found.stats["cache_hits"].sum() > 0
        assert found.stats["rounds"].sum() == 0


def test_stored_vectors_load_once_all_pages_fit(made: tuple[Path, AnyArray]) -> None:
    path, queries = made
    vectors_bytes = (path / "vectors.bin").stat().st_size
    cached = []
    for share in (0.5, 2.0):
        memory = needed(path) + int(1.5 * (path / "pages.bin").stat().st_size + share * vectors_bytes)
        with velo.open(path, memory=memory, threads=1) as index:
            cached.append(index.info()["memory_bytes"]["cache"])
            for _ in range(500):
                found = index.search(queries, K, exact=True)
                if share < 1 or found.stats["reads"].sum() + found.stats["shared_reads"].sum() == 0:
                    break
                time.sleep(0.01)
            assert found.stats["cache_hits"].sum() > 0
            if share > 1:
                assert found.stats["reads"].sum() == 0
                alone = index.search(queries[0], K, exact=True)
                assert np.array_equal(alone.ids, found.ids[0])
                assert np.array_equal(alone.distances, found.distances[0])
    assert cached[1] > cached[0] + 0.2 * vectors_bytes


@pytest.mark.parametrize("filter_", [None, {"n": 3}])
def test_a_single_query_finds_what_a_batch_finds(
    made: tuple[Path, AnyArray], filter_: dict[str, int] | None
) -> None:
    path, queries = made
    with velo.open(path, memory="400%", threads=2) as index:
        loaded(index, queries)
        together = index.search(queries[:40], K, filter=filter_)
        for place, query in enumerate(queries[:40]):
            alone = index.search(query, K, filter=filter_)
            assert np.array_equal(alone.ids, together.ids[place])
            assert np.array_equal(alone.distances, together.distances[place])
            assert alone.stats["cache_hits"] == together.stats["cache_hits"][place]
        with pytest.raises(velo.SearchTimeoutError):
            index.search(queries[0], K, timeout_s=1e-9)


def test_callers_at_the_same_time_find_the_same(made: tuple[Path, AnyArray]) -> None:
    path, queries = made
    with velo.open(path, memory="400%", threads=2) as index:
        expected = loaded(index, queries).ids
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda query: index.search(query, K).ids, queries))
        assert np.array_equal(np.stack(found), expected)


def test_an_index_closes_while_its_pages_load(made: tuple[Path, AnyArray]) -> None:
    path, queries = made
    for wait_s in (0, 0.0005, 0.002, 0.01):
        with velo.open(path, memory="400%", threads=1) as index:
            time.sleep(wait_s)
        with pytest.raises(velo.ClosedError):
            index.search(queries[0], K)


def test_a_plan_tells_what_the_cache_takes(made: tuple[Path, AnyArray]) -> None:
    path, _ = made
    least = needed(path)
    pages_bytes = (path / "pages.bin").stat().st_size
    reads = []
    for share in (0.0, 0.5, 2.0):
        memory = least + int(share * pages_bytes)
        (one,) = [plan for plan in velo.plans(path, memory=memory) if plan.budget_bytes == memory]
        assert one.memory_bytes is not None
        assert one.reads is not None
        reads.append(one.reads)
        assert sum(one.memory_bytes.values()) <= memory
        with velo.open(path, memory=memory, threads=1) as index:
            cache = index.info()["memory_bytes"]["cache"]
        assert abs(one.memory_bytes["cache"] - cache) <= 0.05 * cache + 65536
    assert reads[0] > 1.5 * reads[1] > 0
    assert reads[2] == 0


def test_a_damaged_page_is_named_however_often_it_is_asked_for(
    made: tuple[Path, AnyArray], tmp_path: Path
) -> None:
    path, queries = made
    copy = tmp_path / "b.velo"
    copy.mkdir()
    for file in path.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    with velo.open(copy, threads=1) as index:
        page_size = index.info()["page_size"]
    pages = bytearray((copy / "pages.bin").read_bytes())
    for start in range(2 * page_size, len(pages), 3 * page_size):
        pages[start + page_size // 2] ^= 1
    (copy / "pages.bin").write_bytes(pages)
    with velo.open(copy, memory="400%", threads=1) as index:
        for _ in range(2):
            failed = 0
            for query in queries[:40]:
                try:
                    index.search(query, K)
                except velo.CorruptIndexError as error:
                    failed += error.page is not None
            assert failed > 0


_WITHIN_LIMITS = """
import json, resource, sys
import numpy as np
import velo

path, queries = sys.argv[1], np.load(sys.argv[2])
found = []
# Buffers of workers are smaller than the cache, so that a limit holds them and not it.
tuning = velo.OpenTuning(queries_in_flight=1, queue_depth=1)
with velo.open(path, threads=1, memory="400%", tuning=tuning):
    pass  # what is loaded once is loaded now
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
for more in range(0, 64 << 20, 1 << 19):
    resource.setrlimit(resource.RLIMIT_AS, (size + more, hard))
    try:
        with velo.open(path, threads=1, memory="400%", tuning=tuning) as index:
            info = index.info()
            ids = index.search(queries, 10).ids.tolist()
            found.append((info["cache_refused"], info["memory_bytes"]["cache"], ids))
    except (velo.VeloError, MemoryError, RuntimeError):
        continue
print(json.dumps(found))
"""


def test_pages_are_read_where_the_system_refuses_memory_for_the_cache(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    vectors = random.normal(size=(8_000, 768)).astype(np.float32)
    path, queries = tmp_path / "a.velo", tmp_path / "queries.npy"
    # Pages are most of what opens.
    options: Any = {"memory_bits": 1, "record_bits": 8, "page_links": False, "degree": 16}
    velo.build(path, vectors, calibrate=False, **options).close()
    np.save(queries, vectors[:3])
    told = child.run(_WITHIN_LIMITS, path, queries, check=True)
    found = json.loads(told.stdout)
    assert {refused for refused, _, _ in found} == {False, True}
    for refused, cache_bytes, ids in found:
        assert refused == (cache_bytes == 0)
        assert ids == found[-1][2]
