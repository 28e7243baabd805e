"""Writes with a name over shards in this process, while rows of theirs change their shard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.serving.exact_gateway import play
from velo.folder.shards import homes
from velo_serving.protocol.errors import PartialWriteError, ShardUnavailableError
from velo_serving.protocol.types import Failure
from velo_serving.routing.backend import Backend
from velo_serving.routing.local_backend import open_local_backend
from velo_serving.routing.router import Router
from velo_serving.routing.writes import Verb, WriteRequest, Wrote, write

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
        folder,
        vectors,
        shards=SHARDS,
        ids=ids,
        metadata=pa.table({"year": [0] * ROWS}),
        store_vectors=True,
        calibrate=False,
        threads=1,
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
        columns = None if vectors is None else pa.table({"year": [1] * len(rows)})
        return await write(
            self.router, WriteRequest(verb, vectors, ids_of(rows, self.numbers), columns, request_id=name)
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
        assert (await calls.do("upsert", [fresh], value=9.0)).rows == 1  # another client, meanwhile
        done = await calls.do(verb, rows, "order-17")
        assert (done.rows, done.repeated) == (len(rows), False)
        assert (await calls.found(away), await calls.found(fresh)) == ({"0": 1.0}, {"1": 9.0})
        assert (await calls.do(verb, rows, "order-17")).repeated
        assert (await calls.found(away), await calls.found(fresh)) == ({"0": 1.0}, {"1": 9.0})

    run(tmp_path / "retried.velo", False, work)


@pytest.mark.parametrize("numbers", [True, False])
def test_a_shard_without_rows_has_none_of_the_ids(tmp_path: Path, numbers: bool) -> None:
    """Whatever ids are, in all verbs and look-ups over HTTP; and a row comes to it again."""
    path = build(tmp_path / "emptied.velo", numbers)
    with velo.open(path / "shard-00001", writable=True, threads=1) as index:
        index.delete(ids_of(list(range(30, 60)), numbers))
        index.optimize()
    fresh = at_home(range(1000, 2000), numbers)
    kept, gone, new = ids_of([5, 40, fresh], numbers).tolist() if numbers else ["r5", "r40", f"r{fresh}"]

    async def scene(client: httpx.AsyncClient) -> None:
        async def ask(what: str, **body: Any) -> Any:
            answer = await client.post(f"/v1/collections/emptied/{what}", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

        done = await ask("update", ids=[kept, gone], metadata={"year": [7, 7]})
        assert (done["rows"], done["missing"]) == (1, 1)
        found = (await ask("get", ids=[kept, gone], unknown="skip"))["rows"]
        assert found == [{"id": kept, "year": 7}]
        assert (await ask("count"))["count"] == ROWS - 30
        done = await ask("delete", ids=[gone])
        assert (done["rows"], done["missing"]) == (0, 1)
        row = {"vectors": [[0.5] * DIM], "ids": [new], "metadata": {"year": [3]}}
        assert (await ask("insert", **row))["rows"] == 1
        assert (await ask("upsert", **row))["replaced"] == 1
        assert (await ask("search", ids=[new], k=1))["ids"] == [[new]]
        assert (await ask("update", ids=[new, kept], metadata={"year": [4, 4]}))["rows"] == 2

    play(open_local_backend(path, writable=True, durability="process", threads=1), scene)
