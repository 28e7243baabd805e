"""Asynchronous searches: many at once, several loops, cancelling, closing while they run."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import errors


def test_awaited_and_blocking_searches_give_the_same_answers(sample: Any, sample_index: velo.Index) -> None:
    async def main() -> None:
        batch = await sample_index.search_async(sample.queries, 10, return_metadata=["price"])
        expected = sample_index.search(sample.queries, 10, return_metadata=["price"])
        assert (batch.ids == expected.ids).mean() > 0.99
        assert batch.metadata[0].column_names == ["price"]
        one = await sample_index.search_async(sample.queries[0], 4, filter={"uniform10": 3})
        assert one.ids.shape == (4,)
        none = await sample_index.search_async(sample.queries[:0], 4)
        assert none.ids.shape == (0, 4)

    asyncio.run(main())


def test_thousands_at_once(sample: Any, sample_index: velo.Index) -> None:
    async def main() -> list[Any]:
        tasks = (sample_index.search_async(sample.queries[number % 200], 5) for number in range(1_000))
        return await asyncio.gather(*tasks)

    results = asyncio.run(main())
    for number, result in enumerate(results):
        assert result.ids.shape == (5,)
        assert np.array_equal(np.sort(result.distances), result.distances)
        if number >= 200:
            same = results[number % 200]
            assert result.ids[0] == same.ids[0]


@pytest.mark.long(guarded_by="tests/search/test_each.py::test_more_than_the_queue_holds_wait_for_their_turn")
def test_more_than_the_queue_holds_wait_for_their_turn(sample: Any, sample_index: velo.Index) -> None:
    """70,000 tickets: the library takes 65,536, the others wait in line."""

    async def main() -> int:
        query = sample.queries[0].astype(np.float32)
        tasks = [
            asyncio.ensure_future(sample_index.search_async(query, 1, list_size=1)) for _ in range(70_000)
        ]
        return sum(int(result.counts[0]) for result in await asyncio.gather(*tasks))

    assert asyncio.run(main()) == 70_000


def test_the_loop_is_never_blocked(sample: Any, sample_index: velo.Index) -> None:
    async def main() -> None:
        search = asyncio.ensure_future(
            sample_index.search_async(np.tile(sample.queries, (20, 1)), 50, list_size=400)
        )
        turns = 0
        while not search.done():
            await asyncio.sleep(0.001)
            turns += 1
        await search
        assert turns > 20

    asyncio.run(main())


def test_several_loops_in_several_threads(sample: Any, sample_index: velo.Index) -> None:
    expected = sample_index.search(sample.queries, 3).ids[:, 0]
    wrong: list[Any] = []

    async def main(offset: int) -> None:
        numbers = [(offset + step) % 200 for step in range(300)]
        results = await asyncio.gather(
            *(sample_index.search_async(sample.queries[one], 3) for one in numbers)
        )
        wrong.extend(
            one for one, result in zip(numbers, results, strict=True) if result.ids[0] != expected[one]
        )

    threads = [threading.Thread(target=lambda at=at: asyncio.run(main(at * 50))) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert len(wrong) <= 4


def test_one_loop_after_another(sample: Any, sample_index: velo.Index) -> None:
    for number in range(20):
        result = asyncio.run(sample_index.search_async(sample.queries[number], 3))
        assert result.counts.tolist() == [3]


def test_a_canceled_task_leaves_the_rest_alone(sample: Any, sample_index: velo.Index) -> None:
    async def main() -> None:
        many = np.tile(sample.queries, (3, 1))
        tasks = [asyncio.ensure_future(sample_index.search_async(many, 20, list_size=200)) for _ in range(6)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["CancelledError", "SearchResult"] * 3
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(sample_index.search_async(many, 20, list_size=1000), 0.001)
        assert (await sample_index.search_async(sample.queries[0], 3)).counts.tolist() == [3]

    asyncio.run(main())


def test_a_canceled_search_gives_its_place_to_others(sample: Any, sample_index: velo.Index) -> None:
    # Minutes of work for a worker, so that a search behind it is answered only if it has gone.
    long = np.tile(sample.queries, (500, 1))

    async def main() -> None:
        started = time.perf_counter()
        task = asyncio.ensure_future(sample_index.search_async(long, 10, list_size=4000))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        result = await sample_index.search_async(sample.queries[0], 3, timeout_s=60)
        assert result.counts.tolist() == [3]
        assert time.perf_counter() - started < 60

    asyncio.run(main())


def test_errors_arrive_at_their_own_search(sample: Any, sample_index: velo.Index) -> None:
    async def main() -> None:
        bad = sample.queries[0].astype(np.float32)
        bad[3] = np.nan
        results = await asyncio.gather(
            sample_index.search_async(sample.queries[0], 3),
            sample_index.search_async(bad, 3),
            sample_index.search_async(np.tile(sample.queries, (20, 1)), 50, list_size=2000, timeout_s=0.001),
            sample_index.search_async(sample.queries[0], 0),
            sample_index.search_async(sample.queries[0], 3, filter={"colour": 1}),
            sample_index.search_async(sample.queries[1], 3),
            return_exceptions=True,
        )
        kinds = [type(result) for result in results]
        assert kinds == [
            velo.SearchResult,
            errors.NotFiniteError,
            errors.SearchTimeoutError,
            errors.InvalidArgumentError,
            errors.UnknownColumnError,
            velo.SearchResult,
        ]

    asyncio.run(main())


@pytest.mark.parametrize("closer", ["loop", "thread"])
def test_closing_ends_what_runs(closer: str, sample: Any, sample_path: Path) -> None:
    index = velo.open(sample_path, threads=1)

    async def main() -> None:
        many = np.tile(sample.queries, (50, 1))
        tasks = [asyncio.ensure_future(index.search_async(many, 50, list_size=1000)) for _ in range(8)]
        await asyncio.sleep(0.01)
        if closer == "loop":
            index.close()
        else:
            await asyncio.to_thread(index.close)
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        assert all(isinstance(result, errors.ClosedError | velo.SearchResult) for result in results)
        assert any(isinstance(result, errors.ClosedError) for result in results)
        with pytest.raises(errors.ClosedError):
            await index.search_async(sample.queries[0])
        await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_loop_that_ends_before_its_searches(sample: Any, sample_path: Path) -> None:
    with velo.open(sample_path, threads=1) as index:

        async def leave() -> None:
            many = np.tile(sample.queries, (4, 1))
            search = asyncio.ensure_future(index.search_async(many, 50, list_size=1000))
            await asyncio.sleep(0.005)
            search.cancel()

        for _ in range(3):
            asyncio.run(leave())
        result = asyncio.run(index.search_async(sample.queries[0], 3))
        assert result.counts.tolist() == [3]
