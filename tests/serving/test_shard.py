"""A shard over an exact index: grouping, blame, health."""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.serving.fakes import ExactIndex
from velo.errors import CorruptIndexError, NotAnIndexError, ReadOnlyError, SearchTimeoutError, VeloError
from velo_serving.catalog.spec import ShardSpec
from velo_serving.protocol.errors import QueueFullError, RemoteError, ShardNotHereError, ShardUnavailableError
from velo_serving.protocol.hits import Costs, concat_hits, rows_of_hits
from velo_serving.protocol.types import Failure, Hits, SearchRequest, ShardReply
from velo_serving.shard.shard import LIGHT_FIRST_S, PART_FILTERED, PART_HITS, PART_QUERIES, PART_S, Shard

VECTORS = np.random.default_rng(7).standard_normal((50, 4)).astype(np.float32)


def opened(folder: Path) -> tuple[Shard, ExactIndex]:
    index = ExactIndex(VECTORS)
    shard = Shard(ShardSpec("a", str(folder)), lambda spec: index)
    shard.open()
    return shard, index


def ask(*rows: int, k: int = 3, **options: Any) -> SearchRequest:
    return SearchRequest(VECTORS[list(rows)], k, **options)


def test_a_shard_on_a_full_device_serves_reads(tmp_path: Path) -> None:
    path = tmp_path / "shop.velo"
    velo.build(path, VECTORS, store_vectors=True, calibrate=False, threads=1).close()
    with velo.open(path, writable=True, threads=1) as index:
        index.insert(VECTORS[:2])
    shard = Shard(ShardSpec("0", str(path), threads=1, writable=True))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        assert (shard.open().n, shard.health().details.get("writable")) == (len(VECTORS) + 2, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert ids(answer(shard, ask(3, k=1))) == [[3]]
    with pytest.raises(ReadOnlyError):
        asyncio.run(shard.write("flush", {}))
    shard.close()


def answer(shard: Shard, request: SearchRequest, timeout_s: float | None = None) -> ShardReply:
    return asyncio.run(shard.search(request, timeout_s))


def ids(reply: ShardReply) -> list[list[int]]:
    assert isinstance(reply, Hits)
    rows: list[list[int]] = reply.ids.tolist()
    return rows


OPENS_A_SHARD = """
import sys
from velo_serving.catalog.spec import ShardSpec
from velo_serving.shard.shard import Shard

Shard(ShardSpec("a", sys.argv[1], threads=1)).open()
print("pandas" in sys.modules)
"""
MAKES_A_GATEWAY = """
import sys
from velo_serving.gateway import create_app
from velo_serving.routing.backend import Backend

create_app(Backend([], keeper=object()))
print("pandas" in sys.modules)
"""


@pytest.mark.parametrize("program", [OPENS_A_SHARD, MAKES_A_GATEWAY])
def test_pandas_is_imported_before_the_first_request(sample_path: Path, program: str) -> None:
    pytest.importorskip("pandas")
    told = subprocess.run(
        [sys.executable, "-c", program, str(sample_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert told.stdout.strip() == "True"


def test_many_queries_are_split_and_their_results_joined(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)
    rows = [row % 50 for row in range(PART_QUERIES * 2 + 7)]
    filters = tuple({"parity": row % 2} for row in rows)
    for options in ({}, {"filters": ({"parity": 1},)}, {"filters": filters, "return_metadata": ("parity",)}):
        index.calls.clear()
        reply = answer(shard, ask(*rows, **options))
        size = PART_FILTERED if options else PART_QUERIES
        assert [call["queries"] for call in index.calls] == [size] * (len(rows) // size) + [7]
        assert isinstance(reply, Hits)
        assert reply.reads == 3 * len(rows)
        for row in (0, 63, 64, 127, 128, len(rows) - 1):
            one = answer(
                shard,
                ask(
                    rows[row],
                    filters=options.get("filters") and (options["filters"][row % len(options["filters"])],),
                    return_metadata=options.get("return_metadata"),
                ),
            )
            assert ids(reply)[row] == ids(one)[0]
            if reply.metadata is not None:
                assert reply.metadata[row]["parity"].to_pylist() == [one % 2 for one in ids(reply)[row]]


@pytest.mark.parametrize(("k", "size"), [(10, PART_QUERIES), (100, 10), (PART_HITS, 1), (2000, 1)])
def test_parts_bring_so_many_hits(tmp_path: Path, k: int, size: int) -> None:
    shard, index = opened(tmp_path)
    rows = list(range(12))
    reply = answer(shard, ask(*rows, k=k))
    assert [call["queries"] for call in index.calls] == (
        [12] if size >= 12 else [size] * (12 // size) + ([12 % size] if 12 % size else [])
    )
    assert [row[0] for row in ids(reply)] == rows


def test_results_of_different_widths_are_joined() -> None:
    parts = [
        Hits(np.array([[1, 2]]), np.array([[0.1, 0.2]], np.float32), np.array([2]), limited=np.array([True])),
        Hits(np.array([[3]]), np.array([[0.3]], np.float32), np.array([1]), limited=np.array([False])),
    ]
    whole = concat_hits(parts)
    assert whole.ids.tolist() == [[1, 2], [3, -1]]
    assert whole.distances[1].tolist() == [pytest.approx(0.3), np.inf]
    assert whole.limited is not None
    assert whole.limited.tolist() == [True, False]


def test_a_request_with_many_queries_lets_others_run_between_its_parts(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)

    async def run() -> None:
        large = asyncio.create_task(shard.search(ask(*([1] * (PART_QUERIES * 20)))))
        await asyncio.sleep(0)
        await shard.search(ask(2))
        assert len(index.calls) < 10
        large.cancel()
        with pytest.raises(asyncio.CancelledError):
            await large
        calls = len(index.calls)
        await asyncio.sleep(0.01)
        assert len(index.calls) == calls, "a request that was canceled goes on in parts"

    asyncio.run(run())


class Slow(ExactIndex):
    """Takes a time for each query, and notes when calls began and ended; light ones wait for an event."""

    def __init__(self, each_s: float) -> None:
        super().__init__(VECTORS)
        self.each_s = each_s
        self.times: list[tuple[float, float, bool]] = []
        self.gate = asyncio.Event()

    async def search_async(self, queries: Any, k: int = 10, **options: Any) -> Any:
        began, heavy = time.monotonic(), bool(options.get("exact"))
        await (asyncio.sleep(self.each_s * len(queries)) if heavy else self.gate.wait())
        found = await super().search_async(queries, k, **options)
        self.times.append((began, time.monotonic(), heavy))
        return found


def test_heavy_requests_take_short_turns_between_light_ones(tmp_path: Path) -> None:
    index = Slow(PART_S / 4)
    shard = Shard(ShardSpec("a", str(tmp_path)), lambda spec: index)
    shard.open()

    async def run() -> None:
        light = asyncio.create_task(shard.search(ask(2)))
        heavy = [asyncio.create_task(shard.search(ask(*range(20), exact=True))) for _ in range(3)]
        began = time.monotonic()
        assert all(isinstance(reply, Hits) for reply in await asyncio.gather(*heavy))
        assert not light.done()
        index.gate.set()
        await light
        turns = [(start, end) for start, end, is_heavy in index.times if is_heavy]
        # One at a time, each for about as long as light requests may wait; and none waits for ever.
        assert len(index.calls) == 1 + len(turns) > 3 * (20 // 8)
        assert max(call["queries"] for call in index.calls) < 20
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(sorted(turns)))
        assert turns[0][0] - began > 0.9 * LIGHT_FIRST_S

    asyncio.run(run())
    shard.close()


def test_canceled_light_queries_hold_up_no_heavy_one(tmp_path: Path, sample_path: Path) -> None:
    shard = Shard(ShardSpec("0", str(sample_path), threads=1))
    shard.open()
    dim = shard.health().dim

    async def run(cancel: bool) -> None:
        ended: list[int] = []
        request = SearchRequest(np.ones((64, dim), np.float32), 10)
        asked = shard.search_each(request, 5.0, lambda rows, reply, costs: ended.extend(rows))
        assert shard._turns.at_work == 64
        for row in range(64 if cancel else 0):
            asked.cancel(row)
        while shard._turns.at_work:
            await asyncio.sleep(0.001)
        assert len(ended) == (0 if cancel else 64)

    asyncio.run(run(True))
    asyncio.run(run(False))
    shard.close()


def test_a_trial_ends_when_any_search_does(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)

    async def run() -> None:
        gate = asyncio.Event()
        plain = index.search_async

        async def hold(queries: Any, k: int = 10, **options: Any) -> Any:
            if bool((queries == 1).all()):
                await gate.wait()
            return await plain(queries, k, **options)

        async def trials() -> None:
            for _ in range(50):  # what else works in this process lets a trial pass
                await shard.trial(0.03)

        await shard.trial(1.0)
        index.search_async = hold  # type: ignore[method-assign]
        with pytest.raises(SearchTimeoutError, match="no search of shard a ended"):
            await trials()
        trial = asyncio.create_task(shard.trial(5.0))
        await asyncio.sleep(0.02)
        assert not trial.done()
        await shard.search(ask(1))
        assert await asyncio.wait_for(trial, 1)
        # A thread that is at work is no wedged disk.
        stop = threading.Event()
        worker = threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(stop.is_set, True)])
        worker.start()
        assert await shard.trial(0.2) is False
        stop.set()
        worker.join()
        gate.set()
        # A damaged page is reported to searches that need it.
        index.fail = lambda call: CorruptIndexError("page 9 is damaged")
        await shard.trial(1.0)
        index.fail = lambda call: SearchTimeoutError("the disk is gone")
        with pytest.raises(SearchTimeoutError):
            await shard.trial(1.0)

    asyncio.run(run())
    shard.close()
    with pytest.raises(ShardUnavailableError):
        asyncio.run(shard.trial(1.0))


def test_compiling_a_filter_delays_no_other_request(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)
    plain = index.search_async
    light_answered = threading.Event()

    async def compiles(queries: Any, k: int = 10, **options: Any) -> Any:
        if options["filter"] is not None:
            assert light_answered.wait(60)
        return await plain(queries, k, **options)

    index.search_async = compiles  # type: ignore[method-assign]

    async def run() -> None:
        heavy = asyncio.create_task(shard.search(ask(1, filters=({"parity": 1},))))
        await asyncio.sleep(0)
        await shard.search(ask(2))
        light_answered.set()
        assert isinstance(await heavy, Hits)

    asyncio.run(run())
    shard.close()


def test_a_filter_each_travels_with_its_query(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)
    reply = answer(shard, ask(4, 5, filters=({"parity": 0}, None)))
    assert index.calls[0]["filter"] == [{"parity": 0}, None]
    assert all(one % 2 == 0 for one in ids(reply)[0])
    assert ids(reply)[1] == ids(answer(shard, ask(5)))[0]
    answer(shard, ask(1, 2, filters=({"parity": 1},)))
    assert index.calls[-2]["filter"] is None
    assert index.calls[-1]["filter"] == {"parity": 1}


def test_a_wrong_filter_is_named(tmp_path: Path) -> None:
    shard, _ = opened(tmp_path)
    failure = answer(shard, ask(2, 3, filters=(None, {"colour": 1})))
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.fault, failure.query) == ("UnknownColumnError", "caller", 1)


def test_a_damaged_page_is_a_fault_of_the_shard(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)
    damaged = CorruptIndexError("page 9 is damaged", file="pages.bin", page=9)
    index.fail = lambda call: damaged
    failure = answer(shard, ask(3, 4))
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.fault, failure.file, failure.page) == (
        "CorruptIndexError",
        "shard",
        "pages.bin",
        9,
    )


def test_a_deadline_inside_the_index_is_no_fault_of_the_shard(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)
    index.fail = lambda call: SearchTimeoutError("too slow")
    failure = answer(shard, ask(1))
    assert isinstance(failure, Failure)
    assert failure.fault == "deadline"


def test_deadlines_are_rounded_up(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)
    for given, taken in ((0.31, 0.4), (0.001, 0.1), (None, None)):
        answer(shard, ask(1), given)
        assert index.calls[-1]["timeout_s"] == (None if taken is None else pytest.approx(taken))


def test_metadata_comes_as_tables(tmp_path: Path) -> None:
    shard, _ = opened(tmp_path)
    reply = answer(shard, ask(3, return_metadata=("parity",)))
    assert isinstance(reply, Hits)
    assert reply.metadata == [pa.table({"parity": [one % 2 for one in ids(reply)[0]]})]


def test_health_tells_what_is_served(tmp_path: Path) -> None:
    shard, _ = opened(tmp_path)
    health = shard.health()
    assert (health.n, health.dim, health.metric, health.memory_bytes) == (50, 4, "l2", 1024)
    assert health.device == "exact"
    assert health.failure is None


def test_a_shard_that_is_not_on_this_node_says_so(tmp_path: Path) -> None:
    missing = tmp_path / "elsewhere"
    shard = Shard(ShardSpec("a", str(missing)), lambda spec: ExactIndex(VECTORS))
    with pytest.raises(ShardNotHereError, match=f"there is no folder {missing}"):
        shard.open()
    assert isinstance(ShardNotHereError(), NotAnIndexError)
    health = shard.health()
    assert health.failure is not None
    assert isinstance(health.failure.to_error(), ShardNotHereError)
    with pytest.raises(ShardUnavailableError):
        answer(shard, ask(1))
    missing.mkdir()  # the disk is mounted at last
    assert shard.health().n == 50
    assert isinstance(answer(shard, ask(1)), Hits)


def test_a_closed_shard_is_unavailable_and_stays_closed(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)
    shard.close()
    assert index.closed
    with pytest.raises(ShardUnavailableError):
        answer(shard, ask(1))
    failure = shard.health().failure
    assert failure is not None
    assert failure.kind == "ShardUnavailableError"


@pytest.mark.parametrize(
    ("error", "kind", "fault"),
    [
        (CorruptIndexError("bad", file="pages.bin", page=3), CorruptIndexError, "shard"),
        (QueueFullError("full"), QueueFullError, "shard"),
        (KeyError("x"), RemoteError, "shard"),
    ],
)
def test_failures_cross_processes_and_become_errors_again(
    error: Exception, kind: type[VeloError], fault: str
) -> None:
    failure = pickle.loads(pickle.dumps(Failure.of(error)))
    assert failure == Failure.of(error)
    assert failure.fault == fault
    again = failure.to_error()
    assert type(again) is kind
    if isinstance(error, VeloError):
        assert (again.message, again.file, again.page) == (error.message, error.file, error.page)


def test_a_shard_that_does_not_see_what_others_write_is_not_well(tmp_path: Path) -> None:
    class Following(ExactIndex):
        failing = True

        def __len__(self) -> int:
            if self.failing:
                raise CorruptIndexError("the log is damaged")
            return len(self.vectors)

    index = Following(VECTORS)
    shard = Shard(ShardSpec("a", str(tmp_path)), lambda spec: index)
    failure = shard.health().failure
    assert failure is not None
    assert "the log is damaged" in failure.message
    index.failing = False
    assert shard.health().failure is None
    shard.close()


def test_a_shard_that_another_server_moved_is_not_well(tmp_path: Path) -> None:
    path = tmp_path / "a.velo"
    velo.create(path, dim=4).close()
    shard = Shard(ShardSpec("0", str(path), writable=True, threads=1))
    assert shard.health().failure is None
    path.rename(tmp_path / "a.velo.moved")
    path.symlink_to(tmp_path / "elsewhere")
    failure = shard.health().failure
    assert failure is not None
    assert "moved by another server" in failure.message
    shard.close()


def test_queries_that_came_together_end_by_themselves_as_they_do_alone(tmp_path: Path) -> None:
    velo.build(tmp_path / "real.velo", VECTORS)
    shard = Shard(ShardSpec("0", str(tmp_path / "real.velo"), threads=1))
    shard.open()
    queries = VECTORS[:9].copy()
    queries[4, 1] = np.nan
    alone = [answer(shard, SearchRequest(queries[[row]], 3)) for row in range(9)]

    async def together() -> dict[int, ShardReply]:
        told: dict[int, ShardReply] = {}
        done = asyncio.Event()

        def ended(rows: Sequence[int], reply: ShardReply, costs: Costs) -> None:
            replies = rows_of_hits(reply, costs) if isinstance(reply, Hits) else [reply] * len(rows)
            told.update(zip(rows, replies, strict=True))
            if len(told) == 8:
                done.set()

        asked = shard.search_each(SearchRequest(queries, 3), 1.0, ended)
        asked.cancel(8)
        await asyncio.wait_for(done.wait(), 10)
        return told

    told = asyncio.run(together())
    assert sorted(told) == list(range(8))
    assert told[4] == alone[4]  # it says row 0: it was a request of one query
    for row in (0, 1, 2, 3, 5, 6, 7):
        one, same = told[row], alone[row]
        assert isinstance(one, Hits)
        assert isinstance(same, Hits)
        assert one.ids.tolist() == same.ids.tolist()
        assert one.distances.tolist() == same.distances.tolist()
        assert one.reads + one.shared_reads + one.cache_hits > 0
    shard.close()
    with pytest.raises(ShardUnavailableError):
        asyncio.run(together())
