"""Collections that clients create, copy and drop: real servers, with one gateway and with two."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.serving.conftest import Served, children
from tests.serving.test_access import ADMIN, READ, write_keys
from tests.serving.test_writes import serving
from velo.errors import IndexExistsError, InvalidArgumentError, UnknownIdError, UnsupportedError, VeloError
from velo_serving import Client, serve_local
from velo_serving.protocol.errors import AdminKeyError, UnknownCollectionError

SCHEMA = pa.schema(
    [("price", pa.float32()), ("when", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string()))]
)
ROWS = np.random.default_rng(3).standard_normal((50, 8)).astype(np.float32)


def until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@pytest.fixture(params=[[], ["--workers", "2"]], ids=["one", "workers"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Served, Path]]:
    """A server with a folder for collections, which is empty, and keys."""
    root = tmp_path / "root"
    root.mkdir()
    write_keys(tmp_path / "keys.txt", f"read {READ}\nadmin {ADMIN}\n")
    keys = ("--api-keys", str(tmp_path / "keys.txt"))
    with serving("--root", str(root), "--writable", "--memory", "1MiB", *keys, *request.param) as served:
        yield served, root


def names(served: Served) -> set[str]:
    """What each of some connections says is served."""
    seen: set[str] = set()
    for _ in range(6):
        with Client(served.url, api_key=READ) as one:
            seen |= {told["name"] for told in one.info()["collections"]}
    return seen


def at_all(served: Served, name: str) -> bool:
    """Whether every gateway serves a collection by now."""
    for _ in range(8):
        try:
            with Client(served.url, collection=name, api_key=READ, retries=0) as one:
                one.info()
        except UnknownCollectionError:
            return False
    return True


def test_a_collection_comes_is_written_to_copied_and_goes(shop: tuple[Served, Path], tmp_path: Path) -> None:
    served, root = shop
    with Client(served.url, api_key=ADMIN, timeout_s=60.0) as admin:
        told = admin.create("shop", dim=8, metric="cosine", metadata=SCHEMA)
        assert (told["name"], told["dim"], told["metric"]) == ("shop", 8, "cosine")
        with pytest.raises(IndexExistsError, match="shop"):
            admin.create("shop", dim=8)
    until(lambda: at_all(served, "shop"))
    with Client(served.url, collection="shop", api_key=ADMIN, timeout_s=60.0) as client:
        rows = {
            "price": pa.array(range(50), pa.float32()),
            "when": pa.array([0] * 50, pa.timestamp("us", "UTC")),
            "tags": pa.array([["a"]] * 50),
        }
        assert client.insert(ROWS, metadata=rows).rows == 50
        assert client.get([0]).schema == pa.schema([("id", pa.int64()), *SCHEMA])
        assert client.search(ROWS[7], k=1, recall=1.0).ids.tolist() == [7]
        client.snapshot(str(tmp_path / "copy.velo"))
        client.delete([7])
        with pytest.raises(IndexExistsError):
            client.snapshot(str(tmp_path / "copy.velo"))
        with pytest.raises(InvalidArgumentError, match="absolute"):
            client.snapshot("copy.velo")
        with pytest.raises(UnknownIdError):
            client.get([7])
    with velo.open(tmp_path / "copy.velo") as copy:
        assert len(copy) == 50
        assert copy.search(ROWS[7], k=1, recall=1.0).ids.tolist() == [7]
    (root / "shop.velo" / "notes.txt").write_text("mine")
    shards = children(served, b"shard.process")
    with Client(served.url, collection="shop", api_key=ADMIN, timeout_s=60.0) as client:
        assert client.drop() == ["notes.txt"]
    assert [path.name for path in (root / "shop.velo").iterdir()] == ["notes.txt"]
    until(lambda: "shop" not in names(served))
    assert len(shards) == 1
    assert children(served, b"shard.process") == []
    with (
        Client(served.url, collection="shop", api_key=ADMIN) as client,
        pytest.raises(UnknownCollectionError),
    ):
        client.drop()
    with Client(served.url, api_key=ADMIN) as admin:
        with pytest.raises(IndexExistsError, match="not empty"):  # what stayed is not velo's to use
            admin.create("shop", dim=8)
        (root / "shop.velo" / "notes.txt").unlink()
        assert admin.create("shop", dim=4)["dim"] == 4
    until(lambda: at_all(served, "shop"))
    # Each gateway serves the one that there is now.
    for _ in range(6):
        with Client(served.url, collection="shop", api_key=ADMIN) as client:
            assert client.upsert(np.eye(1, 4, dtype=np.float32), [5]).rows == 1
            assert client.search(np.ones(4), k=1).ids.tolist() == [5]


def test_who_may_create_drop_and_copy(shop: tuple[Served, Path], tmp_path: Path) -> None:
    served, root = shop
    with Client(served.url, api_key=ADMIN) as admin:
        admin.create("shop", dim=8)
    until(lambda: at_all(served, "shop"))
    with Client(served.url, collection="shop", api_key=READ) as reader:
        for ask in (
            lambda: reader.create("more", dim=8),
            reader.drop,
            lambda: reader.snapshot(str(tmp_path / "copy.velo")),
        ):
            with pytest.raises(AdminKeyError, match="for reading"):
                ask()
    for method, path in (("DELETE", "/v1/collections/shop"), ("POST", "/v1/collections")):
        assert httpx.request(method, f"{served.url}{path}").status_code == 401
    assert [path.name for path in root.iterdir()] == ["shop.velo"]
    assert not (tmp_path / "copy.velo").exists()


def test_what_is_there_is_served_again_and_a_killed_removal_is_ended(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other.velo"
    root.mkdir()
    velo.build(other, ROWS, calibrate=False).close()
    velo.build_collection(root / "built.velo", ROWS, shards=2, calibrate=False)
    (root / "notes.velo").mkdir()
    (root / "notes.velo" / "notes.txt").write_text("mine")
    options = (str(other), "--root", str(root), "--writable", "--memory", "1MiB")
    with serving(*options) as served, Client(served.url) as client:
        client.create("made", dim=8)
        client.create("gone", dim=8)
        with Client(served.url, collection="made") as made:
            made.insert(ROWS)
        for name in ("other", "notes", "nothing"):
            with Client(served.url, collection=name) as one, pytest.raises(VeloError) as told:
                one.drop()
            kind = UnsupportedError if name == "other" else UnknownCollectionError
            assert type(told.value) is kind
        with pytest.raises(IndexExistsError):
            client.create("other", dim=8)
        with Client(served.url, collection="built") as built, pytest.raises(AdminKeyError, match="no keys"):
            built.snapshot(str(tmp_path / "copy.velo"))
    (root / "gone.velo" / "removing").touch()
    (root / "gone.velo" / "live.json").unlink()  # a removal was killed here
    with serving(*options) as served:
        assert names_of(served) == {"other", "made", "built"}
        assert not (root / "gone.velo").exists()
        with Client(served.url, collection="made") as made:
            assert made.count() == 50
        with Client(served.url, collection="built", timeout_s=60.0) as built:
            assert built.count() == 50
            assert built.drop() == []
        assert names_of(served) == {"other", "made"}
    assert sorted(path.name for path in root.iterdir()) == ["made.velo", "notes.velo"]


def names_of(served: Served) -> set[str]:
    with Client(served.url) as client:
        return {told["name"] for told in client.info()["collections"]}


def test_a_copy_of_shards_while_rows_come(tmp_path: Path) -> None:
    """Each row that was told before the copy is in it, whoever's processes the shards have."""
    write_keys(tmp_path / "keys.txt", f"admin {ADMIN}\n")
    path = velo.build_collection(tmp_path / "rows.velo", ROWS, shards=2, ids=np.arange(50), calibrate=False)
    for turn, how in enumerate(([], ["--processes"])):
        options = (
            str(path),
            "--writable",
            "--memory",
            "1MiB",
            "--api-keys",
            str(tmp_path / "keys.txt"),
            *how,
        )
        told: list[int] = []
        over = threading.Event()

        def write(url: str, first: int, told: list[int] = told, over: threading.Event = over) -> None:
            with Client(url, collection="rows", api_key=ADMIN) as client:
                while not over.is_set():
                    one = first + len(told)
                    client.upsert(ROWS[:1], [one])
                    told.append(one)

        with serving(*options) as served:
            writer = threading.Thread(target=write, args=(served.url, 1000 * (turn + 1)))
            writer.start()
            until(lambda told=told: len(told) > 10)
            before = list(told)
            with Client(served.url, collection="rows", api_key=ADMIN, timeout_s=60.0) as client:
                client.snapshot(str(tmp_path / f"copy-{turn}.velo"))
            over.set()
            writer.join()
        with velo.open(tmp_path / f"copy-{turn}.velo") as copy:
            assert copy.contains(before).all()
            assert copy.contains(np.arange(50)).all()


@pytest.mark.parametrize("workers", [[], ["--workers", "2"]], ids=["one", "workers"])
def test_bodies_are_checked(workers: list[str], tmp_path: Path) -> None:
    (tmp_path / "there.velo").mkdir()
    (tmp_path / "there.velo" / "file").touch()
    with serving("--root", str(tmp_path), "--writable", *workers) as served:
        url = f"{served.url}/v1/collections"
        wrong: list[tuple[dict[str, Any], int]] = [
            ({}, 422),
            ({"name": "a"}, 422),
            ({"name": "a", "dim": 0}, 422),
            ({"name": "a", "dim": 8193}, 422),
            ({"name": "a", "dim": 8, "metric": "l3"}, 422),
            ({"name": "a", "dim": 8, "more": 1}, 422),
            ({"name": "a", "dim": 8, "metadata": {}}, 422),
            ({"name": "a", "dim": 8, "metadata": {"x": "number"}}, 422),
            ({"name": "a", "dim": 8, "metadata": {"x": "list<" * 9 + "int8" + ">" * 9}}, 422),
            ({"name": "../a", "dim": 8}, 422),
            ({"name": ".a", "dim": 8}, 422),
            ({"name": "", "dim": 8}, 422),
            ({"name": "a" * 129, "dim": 8}, 422),
            ({"name": "there", "dim": 8}, 409),
        ]
        for body, status in wrong:
            told = httpx.post(url, json=body)
            assert told.status_code == status, (body, told.text)
        assert httpx.post(url, content=b"x", headers={"Content-Type": "text/plain"}).status_code == 415
        assert httpx.post(url, content=b"{", headers={"Content-Type": "application/json"}).status_code == 400
        arrow = {"Content-Type": "application/vnd.apache.arrow.stream"}
        assert httpx.post(f"{url}?name=a&dim=8", content=b"x", headers=arrow).status_code == 400
        assert httpx.post(f"{url}?name=a&dim=8", json={"name": "a", "dim": 8}).status_code == 422
        assert [path.name for path in tmp_path.iterdir()] == ["there.velo"]
        assert httpx.get(f"{served.url}/readyz").status_code == 200  # nothing to serve yet is no fault
        made = httpx.post(url, json={"name": "a", "dim": 2, "metadata": {"x": "int32", "y": "list<string>"}})
        assert made.status_code == 200, made.text
        until(lambda: at_all(served, "a"))
        row = {"vectors": [[1, 2]], "metadata": [{"x": 1, "y": ["b"]}]}
        assert httpx.post(f"{url}/a/insert", json=row).json()["rows"] == 1
        assert httpx.delete(f"{url}/a").json()["left"] == []


def test_where_there_is_no_folder_for_them_none_come_or_go(things_served: Served, tmp_path: Path) -> None:
    with Client(things_served.url, collection="names") as client:
        with pytest.raises(UnsupportedError, match="--root"):
            client.create("more", dim=8)
        with pytest.raises(UnsupportedError, match="--root"):
            client.drop()
        assert client.count() == 20

    async def awaited() -> None:
        async with Client(things_served.url, collection="names") as client:
            with pytest.raises(UnsupportedError, match="--root"):
                await client.create_async("more", dim=8)

    asyncio.run(awaited())
    for wrong, word in ((tmp_path / "none", "no folder"), (tmp_path, "writable")):
        with pytest.raises(InvalidArgumentError, match=word) as told:
            serve_local([], root=wrong, writable=word != "writable", port=0)
        assert told.value.argument == "root"


def test_a_gateway_that_was_killed_serves_what_came(shop: tuple[Served, Path]) -> None:
    served, _ = shop
    gateways = children(served, b"gateway_process")
    if not gateways:
        return  # one gateway is the server itself
    with Client(served.url, api_key=ADMIN) as admin:
        admin.create("shop", dim=8)
    for pid in gateways:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(set(children(served, b"gateway_process")) - set(gateways)) == 2)

    def all_serve_it() -> bool:
        try:
            return at_all(served, "shop")
        except VeloError:
            return False

    until(all_serve_it)
