"""Searches that are asked in one call and end one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import errors


class Told:
    """Everything that was reported, by row."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.calls = 0
        self.answers: dict[int, tuple[list[Any], list[float], int] | velo.VeloError] = {}
        self.done = asyncio.Event()

    def ended(self, rows: Sequence[int], told: velo.SearchResult | velo.VeloError) -> None:
        self.calls += 1
        for place, row in enumerate(rows):
            assert row not in self.answers
            self.answers[row] = (
                told
                if isinstance(told, velo.VeloError)
                else (
                    told.ids[place].tolist(),
                    told.distances[place].tolist(),
                    int(told.stats["reads"][place]),
                )
            )
        if len(self.answers) >= self.count:
            self.done.set()


async def ask(index: velo.Index, queries: np.ndarray, k: int, **options: Any) -> Told:
    told = Told(len(queries))
    assert index.search_each(queries, k, ended=told.ended, **options) is not None
    await asyncio.wait_for(told.done.wait(), 60)
    return told


@pytest.mark.parametrize("exact", [None, True])
def test_each_answer_is_that_of_a_single_search(sample: Any, sample_path: Path, exact: bool | None) -> None:
    # The library shares reads between queries under way, but what is found does not depend on that.
    with velo.open(sample_path, threads=1) as index:
        want = index.search(sample.queries, 10, list_size=60, exact=exact)
        told = asyncio.run(ask(index, sample.queries, 10, list_size=60, exact=exact))
    for row in range(len(sample.queries)):
        ids, distances, _ = told.answers[row]  # type: ignore[misc]
        assert ids == want.ids[row].tolist()
        assert distances == want.distances[row].tolist()


def test_they_end_one_by_one(sample: Any, sample_path: Path) -> None:
    with velo.open(sample_path, threads=1) as index:
        told = asyncio.run(ask(index, np.tile(sample.queries, (5, 1)), 10, list_size=200))
    assert told.calls > 1


def test_canceled_queries_give_their_place_to_others(sample: Any, sample_path: Path) -> None:
    many = np.tile(sample.queries, (20, 1))

    async def main(index: velo.Index) -> None:
        told = Told(10)
        each = index.search_each(many, 10, ended=told.ended, list_size=2000)
        assert each is not None
        for row in range(10, len(many)):
            each.cancel(row)
            each.cancel(row)
        await asyncio.wait_for(told.done.wait(), 60)
        assert sorted(told.answers) == list(range(10))
        each.cancel(3)  # it has ended
        assert (await index.search_async(sample.queries[0], 3, timeout_s=60)).counts.tolist() == [3]

    with velo.open(sample_path, threads=1) as index:
        asyncio.run(main(index))


def test_errors_arrive_at_their_own_row(sample: Any, sample_path: Path) -> None:
    queries = sample.queries[:6].astype(np.float32)
    queries[2, 3] = np.nan

    async def main(index: velo.Index) -> None:
        told = await ask(index, queries, 5)
        assert [row for row, one in told.answers.items() if isinstance(one, errors.NotFiniteError)] == [2]
        late = await ask(
            index, np.tile(sample.queries, (20, 1)).astype(np.float32), 50, list_size=2000, timeout_s=0.001
        )
        assert any(isinstance(one, errors.SearchTimeoutError) for one in late.answers.values())
        with pytest.raises(errors.InvalidArgumentError):
            index.search_each(queries, 0, ended=told.ended)
        with pytest.raises(errors.DimensionMismatchError):
            index.search_each(queries[:, :4], 5, ended=told.ended)

    with velo.open(sample_path, threads=1) as index:
        asyncio.run(main(index))


def test_more_than_the_queue_holds_wait_for_their_turn(sample: Any, sample_path: Path) -> None:
    """70,000 tickets: the library takes 65,536, the others wait in line, and one of them leaves."""
    many = np.tile(sample.queries[0].astype(np.float32), (70_000, 1))

    async def main(index: velo.Index) -> Told:
        told = Told(len(many) - 1)
        each = index.search_each(many, 1, ended=told.ended, list_size=1)
        assert each is not None
        each.cancel(69_999)
        await asyncio.wait_for(told.done.wait(), 120)
        return told

    with velo.open(sample_path, threads=1) as index:
        told = asyncio.run(main(index))
    assert len(told.answers) == 69_999
    assert not any(isinstance(one, velo.VeloError) for one in told.answers.values())


@pytest.mark.parametrize("closer", ["loop", "thread"])
def test_closing_ends_what_runs(closer: str, sample: Any, sample_path: Path) -> None:
    index = velo.open(sample_path, threads=1)
    many = np.tile(sample.queries, (10, 1))

    async def main() -> None:
        told = Told(len(many))
        index.search_each(many, 50, ended=told.ended, list_size=2000)
        await asyncio.sleep(0.005)
        if closer == "loop":
            index.close()
        else:
            await asyncio.to_thread(index.close)
        await asyncio.wait_for(told.done.wait(), 60)
        assert any(isinstance(one, errors.ClosedError) for one in told.answers.values())
        with pytest.raises(errors.ClosedError):
            index.search_each(many, 5, ended=told.ended)

    asyncio.run(main())


def test_rows_that_are_dead_are_not_found_and_several_segments_say_so(tmp_path: Path) -> None:
    vectors = np.random.default_rng(3).standard_normal((500, 8)).astype(np.float32)
    velo.build(tmp_path / "live.velo", vectors)
    with velo.open(tmp_path / "live.velo", writable=True, threads=1) as index:
        index.delete([7])
        told = asyncio.run(ask(index, vectors[[7, 8]], 3))
        for row, one in enumerate((7, 8)):
            want = index.search(vectors[[one]], 3)
            assert told.answers[row][0] == want.ids[0].tolist()  # type: ignore[index]
        assert 7 not in told.answers[0][0]  # type: ignore[index]
        index.insert(vectors[:3] + 1.0)

        async def main() -> None:
            assert index.search_each(vectors[:2], 3, ended=lambda rows, found: None) is None

        asyncio.run(main())
