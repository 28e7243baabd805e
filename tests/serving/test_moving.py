"""A shard moves to another folder while it is searched and written to: no error, and no row is lost."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import velo
from tests.serving.conftest import ADMIN, RAY_MARKS, serving, write_keys
from velo.errors import (
    BusyError,
    CorruptIndexError,
    DeviceError,
    IndexExistsError,
    InvalidArgumentError,
    NoSpaceError,
    UnsupportedError,
    VeloError,
)
from velo_serving import Client
from velo_serving.catalog import moving
from velo_serving.catalog.records import Place
from velo_serving.catalog.root import Root
from velo_serving.hosting.processes import open_processes
from velo_serving.protocol.types import Failure, SearchRequest, Shape
from velo_serving.routing.backend import Backend
from velo_serving.routing.local_backend import open_local_backend
from velo_serving.routing.served import ServedCollection
from velo_serving.routing.writes import WriteRequest, write
from velo_serving.shard import moving as source
from velo_serving.shard.moving import MoveSource

DIM, ROWS, SHARDS = 16, 400, 2
VECTORS = np.random.default_rng(41).standard_normal((ROWS, DIM)).astype(np.float32)

#: Calls a second of the load, and how long it lasts before the move and after it.
QUERIES, WRITES, BESIDE_S = 200, 50, 1.0

#: Calls of a kind under way at once: on a slow machine the load is what the server answers.
AT_ONCE = 32

#: Of a move, on a busy machine.
MOVE_S = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return velo.build_collection(
        tmp_path / "rows.velo", VECTORS, shards=SHARDS, ids=np.arange(ROWS), calibrate=False, threads=1
    )


@asynccontextmanager
async def started(backend: Backend) -> AsyncIterator[ServedCollection]:
    await backend.start()
    try:
        yield backend.collection()
    finally:
        await backend.close()


async def insert(served: ServedCollection, first: int, count: int = 1, **options: Any) -> Any:
    ids = np.arange(first, first + count)
    with served.hold() as now:
        return await write(now.router, WriteRequest("insert", VECTORS[ids % ROWS], ids, **options))


class Load:
    """Searches and inserts of one row each in an event loop, as long as the load lasts."""

    def __init__(self, served: ServedCollection, pause_s: float = 0.005) -> None:
        self._served, self._pause_s = served, pause_s
        self._over = False
        self.written: list[int] = []
        self.searched = 0

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.ensure_future(work()) for work in (self._search, self._write, self._write)]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)

    async def _search(self) -> None:
        while not self._over:
            with self._served.hold() as now:
                answer = await now.router.search(SearchRequest(VECTORS[:1], 1, timeout_s=MOVE_S))
            assert not answer.partial
            self.searched += 1
            await asyncio.sleep(self._pause_s)

    async def _write(self) -> None:
        while not self._over:
            one = ROWS + len(self.written)
            self.written.append(one)
            await insert(self._served, one, timeout_s=MOVE_S)
            await asyncio.sleep(self._pause_s)


def check_rows(path: Path, written: list[int]) -> None:
    """The collection opens, and has each row once."""
    with velo.open(path) as index:
        assert sorted(index.rows(limit=100_000)["id"].to_pylist()) == [*range(ROWS), *sorted(written)]
        assert index.contains([*range(ROWS), *written]).all()


def check_nothing_left(target: Path) -> None:
    assert not [one for one in target.parent.iterdir() if one.name.strip(".").startswith(target.name)]


@pytest.mark.parametrize("how", [["--processes"], []], ids=["processes", "one"])
def test_a_move_under_load_has_no_error_and_loses_no_row(how: list[str], path: Path, tmp_path: Path) -> None:
    """200 queries and 50 inserts a second over HTTP."""
    write_keys(tmp_path / "keys.txt", f"admin {ADMIN}\n")
    target = tmp_path / "elsewhere" / "shard"
    target.parent.mkdir()
    options = ("--writable", "--memory", "8MiB", "--api-keys", str(tmp_path / "keys.txt"), *how)
    with serving(str(path), *options) as served:
        seen, written, held_ms = asyncio.run(_load_and_move(served.url, target))
        assert seen.failures == []
        with Client(served.url, collection="rows", api_key=ADMIN) as client:
            assert client.count() == ROWS + len(written)
            assert client.insert(VECTORS[:1], ids=[ROWS], request=f"r{ROWS}").repeated
    assert held_ms >= 0
    print(f"writes waited for {held_ms:.1f} ms")
    for name, took_ms in seen.took_ms.items():
        print(
            f"{name}: {len(took_ms)} calls, median {np.median(took_ms):.1f} ms, longest {max(took_ms):.1f} ms"
        )
    assert (path / "shard-00001").resolve() == target
    assert (path / "shard-00001.moved").is_dir()
    check_rows(path, written)


class Connections:
    """Connections to a server, which cost little beside it, and the milliseconds of each call."""

    def __init__(self, url: str) -> None:
        self._host, port = url.removeprefix("http://").split(":")
        self._port = int(port)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.took_ms: dict[str, list[float]] = {}
        self.failures: list[str] = []

    async def post(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        content = json.dumps(body).encode()
        began = time.monotonic()
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection(self._host, self._port)
        head = f"POST /v1/collections/rows/{name} HTTP/1.1\r\nHost: velo\r\nAuthorization: Bearer {ADMIN}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        told = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(told.partition("content-length:")[2].split()[0])
        answer: dict[str, Any] = json.loads(await reader.readexactly(size))
        self.took_ms.setdefault(name, []).append(1000 * (time.monotonic() - began))
        if told.split()[1] != "200" or answer.get("partial"):
            self.failures.append(f"{name}: {answer}")
        self._idle.append((reader, writer))
        return answer

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()


async def _load_and_move(url: str, target: Path) -> tuple[Connections, list[int], float]:
    server, written = Connections(url), []
    over = asyncio.Event()

    async def paced(per_s: int, work: Callable[[int], Any]) -> None:
        tasks, began, room = [], time.monotonic(), asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            try:
                await work(number)
            finally:
                room.release()

        while not over.is_set():
            await room.acquire()
            tasks.append(asyncio.ensure_future(one(len(tasks))))
            await asyncio.sleep(began + len(tasks) / per_s - time.monotonic())
        await asyncio.gather(*tasks)

    async def search(number: int) -> None:
        await server.post("search", {"vector": VECTORS[number % ROWS].tolist(), "k": 3})

    async def insert_one(number: int) -> None:
        one = ROWS + number
        written.append(one)
        body = {"vectors": [VECTORS[number % ROWS].tolist()], "ids": [one], "request_id": f"r{one}"}
        await server.post("insert", body)

    load = [asyncio.ensure_future(paced(*one)) for one in ((QUERIES, search), (WRITES, insert_one))]
    await asyncio.sleep(BESIDE_S)
    moved = await server.post("move", {"shard": "1", "path": str(target)})
    await asyncio.sleep(BESIDE_S)
    over.set()
    await asyncio.gather(*load)
    server.close()
    return server, written, float(moved.get("held_ms", -1))


async def test_a_shard_moves_again_and_takes_new_segments_along(path: Path, tmp_path: Path) -> None:
    """The log is cut and a segment written between the rounds of a copy."""
    async with started(open_local_backend(path, writable=True, threads=1)) as served, Load(served) as load:
        for number in range(3):
            index: Any = served._directory.shards["rows"][1].shard._opened  # type: ignore[union-attr]
            copy, rounds = moving.ShardCopy.copy, 0

            async def flush(self: Any, last: bool, index: Any = index, copy: Any = copy) -> int:
                nonlocal rounds
                rounds += 1
                copied = await copy(self, last)
                if rounds == 1:
                    await asyncio.to_thread(index.flush)
                    return moving.SHORT_BYTES + 1
                return int(copied)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(moving.ShardCopy, "copy", flush)
                await served.move("1", str(tmp_path / f"place-{number}"))
            assert rounds >= 3
    assert load.searched
    assert (path / "shard-00001").resolve() == tmp_path / "place-2"
    assert (tmp_path / "place-1.moved").is_dir()
    check_rows(path, load.written)


def _fail_at(patch: pytest.MonkeyPatch, step: str, number: int, error: Exception) -> list[str]:
    """Let a step of a move fail when it comes for the last of some times; return the steps so far."""
    steps: list[str] = []
    take = MoveSource.take

    async def counted(self: Any, folder: Path, arguments: Any, is_busy: bool) -> Any:
        steps.append(arguments["step"])
        if arguments["step"] == step and steps.count(step) == number:
            raise error
        return await take(self, folder, arguments, is_busy)

    patch.setattr(MoveSource, "take", counted)
    return steps


async def test_a_failure_at_any_step_leaves_the_shard_where_it_is(path: Path, tmp_path: Path) -> None:
    chance = random.Random(48)
    async with started(open_local_backend(path, writable=True, threads=1)) as served, Load(served) as load:
        with pytest.MonkeyPatch.context() as patch:
            steps = _fail_at(patch, "", 0, BusyError())
            await served.move("0", str(tmp_path / "first"))
        assert {"begin", "files", "read", "hold", "commit"} <= set(steps)
        fails = [("begin", 1), ("files", 1), ("files", 2), ("hold", 1), ("commit", 1)]
        fails += [("read", chance.randrange(1, steps.count("read") // 2)) for _ in range(6)]
        for number, (step, occurrence) in enumerate(fails):
            target = tmp_path / f"target-{number}"
            with pytest.MonkeyPatch.context() as patch:
                _fail_at(patch, step, occurrence, DeviceError("the device fails"))
                with pytest.raises(DeviceError):
                    await served.move("1", str(target))
            check_nothing_left(target)
            assert not (path / "shard-00001").is_symlink()
            await asyncio.wait_for(insert(served, 10_000 + number), source.HOLD_S / 2)
        await served.move("1", str(tmp_path / "at last"))
    check_rows(path, [*load.written, *range(10_000, 10_000 + len(fails))])


async def test_a_full_device_of_the_target_leaves_the_shard_where_it_is(path: Path, tmp_path: Path) -> None:
    chance = random.Random(49)
    write_all = moving.write_all
    async with started(open_local_backend(path, writable=True, threads=1)) as served, Load(served) as load:
        for number in range(4):
            room = chance.randrange(10_000)

            def fill(handle: int, content: bytes) -> int:
                nonlocal room
                room -= len(content)
                if room < 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return write_all(handle, content)

            target = tmp_path / f"full-{number}"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(moving, "write_all", fill)
                with pytest.raises(NoSpaceError):
                    await served.move("1", str(target))
            check_nothing_left(target)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
            with pytest.raises(NoSpaceError, match="1000 are free"):
                await served.move("1", str(tmp_path / "small"))
        check_nothing_left(tmp_path / "small")
    check_rows(path, load.written)


async def test_a_copy_that_has_other_rows_is_not_taken(path: Path, tmp_path: Path) -> None:
    states = iter([1, 2])

    async def differ(channel: Any) -> int:
        return next(states)

    async with started(open_local_backend(path, writable=True, threads=1)) as served:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moving, "_state", differ)
            with pytest.raises(CorruptIndexError, match="other rows"):
                await served.move("1", str(tmp_path / "other"))
        check_nothing_left(tmp_path / "other")
        await insert(served, ROWS)
    check_rows(path, [ROWS])


async def test_a_move_that_takes_too_long_lets_writes_go_on(path: Path, tmp_path: Path) -> None:
    """Its commit is refused once writes went on, so that none is lost."""
    copy = moving.ShardCopy.copy

    async def slow(self: Any, last: bool) -> int:
        if last:
            await asyncio.sleep(0.3)
        return await copy(self, last)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "HOLD_S", 0.1)
        patch.setattr(moving.ShardCopy, "copy", slow)
        async with started(open_local_backend(path, writable=True, threads=1)) as served:
            async with Load(served) as load:
                with pytest.raises((BusyError, CorruptIndexError)):
                    await served.move("1", str(tmp_path / "late"))
            check_nothing_left(tmp_path / "late")
    check_rows(path, load.written)


async def test_wrong_moves_are_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "empty").mkdir()
    async with started(open_local_backend(path, writable=True, threads=1)) as served:
        for shard, target, kind in (
            ("2", tmp_path / "to", InvalidArgumentError),
            ("1", Path("relative"), InvalidArgumentError),
            ("1", tmp_path / "no" / "folder", InvalidArgumentError),
            ("1", path / "shard-00009", InvalidArgumentError),
            ("1", path / "shard-00001", InvalidArgumentError),
            ("1", tmp_path / "full", IndexExistsError),
        ):
            with pytest.raises(kind):
                await served.move(shard, str(target))
        with pytest.raises(UnsupportedError, match="Ray"):
            await served.move("1", str(tmp_path / "to"), "resource:disk-1")
        reached, go_on = asyncio.Event(), asyncio.Event()
        copy = moving.ShardCopy.copy

        async def wait(self: Any, last: bool) -> int:
            reached.set()
            await go_on.wait()
            return await copy(self, last)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moving.ShardCopy, "copy", wait)
            first = asyncio.ensure_future(served.move("1", str(tmp_path / "empty")))
            await reached.wait()
            with pytest.raises(BusyError):
                await served.move("0", str(tmp_path / "to"))
            replies = await served.router.write("optimize", {0: {}, 1: {}})
            assert not isinstance(replies[0], Failure)
            assert getattr(replies[1], "kind", "") == "BusyError"
            go_on.set()
            await first
    with pytest.raises(UnsupportedError, match="replicas"), open_processes(path, replicas=2) as shards:
        await shards.move("rows", "1", str(tmp_path / "to"), None)
    check_rows(path, [])


@pytest.mark.parametrize("whose", ["source", "target"])
async def test_a_process_that_is_killed_during_the_copy_loses_no_row(
    whose: str, path: Path, tmp_path: Path
) -> None:
    copy, killed = moving.ShardCopy.copy, []
    with open_processes(path, writable=True, threads=1) as shards:
        start = shards._launcher.start

        def kept(about: Any, only: str | None = None) -> Any:
            began = start(about, only)
            killed.extend(began.values())
            return began

        async def kill(self: Any, last: bool) -> int:
            if not last and killed:
                new = killed.pop()
                os.kill(shards.shards["rows"][1].pid if whose == "source" else new.pid, signal.SIGKILL)
            return await copy(self, last)

        backend = shards.backend()
        await backend.start()
        served = backend.collection()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shards._launcher, "start", kept)
            patch.setattr(moving.ShardCopy, "copy", kill)
            await insert(served, ROWS, 20)
            try:
                await served.move("1", str(tmp_path / "to"))
                assert whose == "target"  # it is started again, in time or not
            except VeloError:
                check_nothing_left(tmp_path / "to")
        deadline = time.monotonic() + MOVE_S
        while served.router.shards_up < SHARDS:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await insert(served, ROWS + 20, 20)
        await backend.close()
    check_rows(path, list(range(ROWS, ROWS + 40)))


async def test_a_lost_answer_to_a_commit_is_asked_for_again(path: Path, tmp_path: Path) -> None:
    take = MoveSource.take
    lost: list[Any] = []

    async def lose(self: Any, folder: Path, arguments: Any, is_busy: bool) -> Any:
        answer = await take(self, folder, arguments, is_busy)
        if arguments["step"] == "commit" and not lost:
            lost.append(answer)
            raise moving.ShardUnavailableError("the answer is lost")
        return answer

    async with started(open_local_backend(path, writable=True, threads=1)) as served, Load(served) as load:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MoveSource, "take", lose)
            await served.move("1", str(tmp_path / "to"))
    assert lost
    assert (path / "shard-00001").resolve() == tmp_path / "to"
    check_rows(path, load.written)


async def test_an_index_that_was_moved_is_dropped_with_its_link(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    root = Root(tmp_path / "root")
    with open_processes([], root=root.folder, writable=True, threads=1) as shards:
        await shards.create("one", Shape(DIM))
        await shards.move("one", "0", str(tmp_path / "to"), None)
        assert [one.name for one in root.paths()] == ["one.velo"]
        assert await shards.drop("one") == []
    assert not (tmp_path / "to").exists()
    assert [one.name for one in root.folder.iterdir()] == ["one.velo.moved"]


async def test_a_commit_without_an_answer_removes_nothing(path: Path, tmp_path: Path) -> None:
    async def silent(source: Any, target: str) -> None:
        raise moving.ShardUnavailableError("nothing is heard of it")

    async with started(open_local_backend(path, writable=True, threads=1)) as served:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moving, "_commit", silent)
            with pytest.raises(moving.ShardUnavailableError):
                await served.move("1", str(tmp_path / "to"))
        with velo.open(tmp_path / "to") as copy:
            assert copy.count() > 0
        await insert(served, ROWS)
    check_rows(path, [ROWS])


async def test_a_copy_that_was_killed_is_removed_by_the_next_move(path: Path, tmp_path: Path) -> None:
    (tmp_path / ".to.moving" / "part").mkdir(parents=True)
    (tmp_path / ".to.moving" / "part" / "live.json").touch()
    async with started(open_local_backend(path, writable=True, threads=1)) as served, Load(served) as load:
        await served.move("1", str(tmp_path / "to"))
    assert not (tmp_path / "to" / "part").exists()
    assert not (tmp_path / ".to.moving").exists()
    check_rows(path, load.written)


class TestOnRay:
    pytestmark = RAY_MARKS

    def test_a_shard_moves_to_another_node_under_load(
        self, local_ray: None, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from velo_serving import Cluster
        from velo_serving.on_ray import actors

        moved, former, handles_of = Place("rows", 1, "1"), dict[Place, Any](), actors.handles_of

        def find_former(places: Iterable[Place]) -> dict[Place, Any]:
            handles = handles_of(places) | former
            former.clear()
            return handles

        written: list[int] = []
        with Cluster.start(path, writable=True, threads=1, pin={"1": "resource:disk-0"}) as cluster:
            ended = actors.get_actor(moved)

            async def run() -> None:
                backend, other = cluster.backend(), Cluster.connect("rows").backend()
                async with started(backend) as served, started(other) as beside:
                    async with Load(served) as load:
                        await served.move("1", str(tmp_path / "to"), "resource:disk-1")
                    await insert(beside, 10_000, 10)
                    answer = await beside.router.search(SearchRequest(VECTORS[:1], 1))
                    assert not answer.partial
                    for wrong in ("to", "rows.velo/shard-00007"):
                        with pytest.raises((IndexExistsError, InvalidArgumentError)):
                            await served.move("0", str(tmp_path / wrong))
                    written.extend([*load.written, *range(10_000, 10_010)])
                    await served.move("1", str(tmp_path / "again"), "resource:disk-0")
                    await insert(served, 20_000, 10)
                    written.extend(range(20_000, 20_010))

            asyncio.run(run())
            # A move may end the actor that was found just before.
            monkeypatch.setattr(actors, "handles_of", find_former)
            former[moved] = ended
            Cluster.connect("rows").stop()
            assert not former
        check_rows(path, written)
