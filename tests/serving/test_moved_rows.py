"""Writes with a name over shards in this process, while rows of theirs change their shard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from velo_serving.backend import Backend
from velo_serving.collection_writes import Verb, WriteRequest, Wrote, homes, write
from velo_serving.errors import PartialWriteError, ShardUnavailableError
from velo_serving.local_backend import open_local_backend
from velo_serving.router import Router
from velo_serving.types import Failure

DIM, ROWS, SHARDS = 8, 90, 3
#: The home of all rows that the tests write.
HOME = 1


def ids_of(rows: list[int], numbers: bool) -> Any:
    return np.array(rows, np.int64) if numbers else pa.array([f"r{row}" for row in rows], pa.large_string())


def at_home(rows: range, numbers: bool) -> int:
    """One of these rows whose home is the shard in the middle."""
    return next(row for row in rows if homes(ids_of([row], numbers), SHARDS)[0] == HOME)


def build(folder: Path, numbers: bool) -> Path:
    ids = ids_of(list(range(ROWS)), numbers)
    vectors = np.random.default_rng(1).standard_normal((ROWS, DIM)).astype(np.float32)
    return velo.build_collection(
        folder, vectors, shards=SHARDS, ids=ids, store_vectors=True, calibrate=False, threads=1
    )


class Calls:
    """Writes to a collection, and what is done before one of them reaches its shards."""

    def __init__(self, backend: Backend, numbers: bool) -> None:
        self.router: Router = backend.collection().router
        self.numbers = numbers
        self._write = self.router.write
        self.router.write = self._told  # type: ignore[method-assign]
        self.before: Callable[[], Awaitable[None]] | None = None
        self.away: set[int] = set()

    async def _told(
        self, what: str, arguments: Mapping[int, Mapping[str, Any]], timeout_s: float | None = None
    ) -> dict[int, dict[str, Any] | Failure]:
        before, self.before = self.before, None
        if before is not None:
            await before()
        failed = {
            place: Failure.of(ShardUnavailableError(f"shard {place} went away"))
            for place in self.away & set(arguments)
        }
        rest = {place: one for place, one in arguments.items() if place not in failed}
        return {**await self._write(what, rest, timeout_s), **failed}

    async def do(self, verb: Verb, rows: list[int], name: str | None = None, value: float = 1.0) -> Wrote:
        vectors = np.full((len(rows), DIM), value, np.float32) if verb in ("insert", "upsert") else None
        return await write(
            self.router, WriteRequest(verb, vectors, ids_of(rows, self.numbers), request_id=name)
        )

    async def delete(self, row: int) -> None:
        assert (await self.do("delete", [row])).rows == 1

    async def found(self, row: int) -> dict[str, float]:
        """The shards that have a row, and the number that its vector is made of."""
        name = row if self.numbers else f"r{row}"
        replies = await self.router.look_up("vectors", {"ids": [name]})
        return {
            shard: float(np.frombuffer(reply["vectors"], "<f4")[0])
            for shard, reply in replies
            if not isinstance(reply, Failure) and reply["ids"]
        }


def run(folder: Path, numbers: bool, work: Callable[[Calls, int, int], Awaitable[None]]) -> None:
    """Serve a collection and write a row built into shard 2, and a new one: both have shard 1 as home."""

    async def served() -> None:
        backend = open_local_backend(build(folder, numbers), writable=True, durability="process", threads=1)
        await backend.start()
        try:
            await work(
                Calls(backend, numbers),
                at_home(range(60, ROWS), numbers),
                at_home(range(1000, 2000), numbers),
            )
        finally:
            await backend.close()

    asyncio.run(served())


@pytest.mark.parametrize("numbers", [True, False])
def test_a_row_that_moves_after_the_look_is_written(tmp_path: Path, numbers: bool) -> None:
    async def work(calls: Calls, stray: int, fresh: int) -> None:
        calls.before = lambda: calls.delete(stray)
        done = await calls.do("upsert", [stray, fresh], "order-17")
        assert (done.rows, done.repeated) == (2, False)
        assert (await calls.found(stray), await calls.found(fresh)) == ({"1": 1.0}, {"1": 1.0})

    run(tmp_path / "moved.velo", numbers, work)


@pytest.mark.parametrize("numbers", [True, False])
def test_a_row_that_moves_before_the_retry_is_written(tmp_path: Path, numbers: bool) -> None:
    async def work(calls: Calls, stray: int, fresh: int) -> None:
        calls.away = {2}
        with pytest.raises(PartialWriteError, match="same request_id"):
            await calls.do("upsert", [stray, fresh], "order-17")
        calls.away = set()
        await calls.delete(stray)
        done = await calls.do("upsert", [stray, fresh], "order-17")
        assert (done.rows, done.repeated) == (2, False)
        assert (await calls.found(stray), await calls.found(fresh)) == ({"1": 1.0}, {"1": 1.0})
        again = await calls.do("upsert", [stray, fresh], "order-17", value=5.0)
        assert (again.rows, again.repeated) == (2, True)
        assert (await calls.found(stray), await calls.found(fresh)) == ({"1": 1.0}, {"1": 1.0})

    run(tmp_path / "moved.velo", numbers, work)


@pytest.mark.parametrize("verb", ["insert", "upsert"])
def test_a_shard_that_wrote_does_not_write_again_after_a_partial_failure(tmp_path: Path, verb: Verb) -> None:
    async def work(calls: Calls, stray: int, fresh: int) -> None:
        away = next(row for row in range(1000, 2000) if homes(ids_of([row], False), SHARDS)[0] == 0)
        rows = [away, fresh] if verb == "insert" else [stray, away, fresh]
        calls.away = {0}
        with pytest.raises(PartialWriteError):
            await calls.do(verb, rows, "order-17")
        calls.away = set()
        assert (await calls.do("upsert", [fresh], value=9.0)).rows == 1  # somebody else, meanwhile
        done = await calls.do(verb, rows, "order-17")
        assert (done.rows, done.repeated) == (len(rows), False)
        assert (await calls.found(away), await calls.found(fresh)) == ({"0": 1.0}, {"1": 9.0})
        assert (await calls.do(verb, rows, "order-17")).repeated
        assert (await calls.found(away), await calls.found(fresh)) == ({"0": 1.0}, {"1": 9.0})

    run(tmp_path / "retried.velo", False, work)
