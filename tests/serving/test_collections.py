"""Collections that clients create, copy and drop: real servers, with one gateway and with two."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.serving.conftest import ADMIN, READ, Served, children, serving, until, write_keys
from velo.errors import IndexExistsError, InvalidArgumentError, UnknownIdError, UnsupportedError, VeloError
from velo_serving import Client, serve_local
from velo_serving.protocol.errors import AdminKeyError, UnknownCollectionError

SCHEMA = pa.schema(
    [("price", pa.float32()), ("when", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string()))]
)
ROWS = np.random.default_rng(3).standard_normal((50, 8)).astype(np.float32)


class Shop(NamedTuple):
    """A server that creates collections, and the folder for them."""

    served: Served
    root: Path


@pytest.fixture(
    scope="module",
    params=[
        ["--workers", "2"],
        pytest.param(
            [],
            marks=pytest.mark.long(
                guarded_by="tests/serving/test_collections.py::test_a_restart_serves_all_collections_and_ends_a_killed_removal"
            ),
        ),
    ],
    ids=["workers", "one"],
)
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A server with keys and a folder without collections."""
    folder = tmp_path_factory.mktemp("shop")
    root = folder / "root"
    root.mkdir()
    write_keys(folder / "keys.txt", f"read {READ}\nadmin {ADMIN}\n")
    keys = ("--api-keys", str(folder / "keys.txt"))
    with serving("--root", str(root), "--writable", "--memory", "1MiB", *keys, *request.param) as served:
        yield Shop(served, root)


def names(served: Served) -> set[str]:
    """What each of some connections says is served."""
    seen: set[str] = set()
    for _ in range(6):
        with Client(served.url, api_key=READ) as one:
            seen |= {told["name"] for told in one.info()["collections"]}
    return seen


def at_all(served: Served, name: str) -> bool:
    """Whether every gateway serves a collection by now."""
    for _ in range(6):
        try:
            with Client(served.url, collection=name, api_key=READ, retries=0) as one:
                one.info()
        except UnknownCollectionError:
            return False
    return True


def test_a_collection_is_created_written_copied_and_dropped(shop: Shop, tmp_path: Path) -> None:
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
    # Each gateway serves the current one.
    for _ in range(6):
        with Client(served.url, collection="shop", api_key=ADMIN) as client:
            assert client.upsert(np.eye(1, 4, dtype=np.float32), [5]).rows == 1
            assert client.search(np.ones(4), k=1).ids.tolist() == [5]


def test_only_an_admin_key_may_create_drop_and_copy(shop: Shop, tmp_path: Path) -> None:
    served, root = shop
    with Client(served.url, api_key=ADMIN) as admin:
        admin.create("guarded", dim=8)
    until(lambda: at_all(served, "guarded"))
    with Client(served.url, collection="guarded", api_key=READ) as reader:
        for ask in (
            lambda: reader.create("more", dim=8),
            reader.drop,
            lambda: reader.snapshot(str(tmp_path / "copy.velo")),
        ):
            with pytest.raises(AdminKeyError, match="for reading"):
                ask()
    for method, path in (("DELETE", "/v1/collections/guarded"), ("POST", "/v1/collections")):
        assert httpx.request(method, f"{served.url}{path}").status_code == 401
    assert (root / "guarded.velo").exists()
    assert not (root / "more.velo").exists()
    assert not (tmp_path / "copy.velo").exists()
    with Client(served.url, collection="guarded", api_key=ADMIN) as admin:
        admin.drop()


def test_a_restart_serves_all_collections_and_ends_a_killed_removal(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other.velo"
    root.mkdir()
    velo.build(other, ROWS, calibrate=False).close()
    velo.build_collection(root / "built.velo", ROWS, shards=1, calibrate=False)
    (root / "notes.velo").mkdir()
    (root / "notes.velo" / "notes.txt").write_text("mine")
    options = ("--root", str(root), "--writable", "--memory", "1MiB")
    with serving(str(other), *options) as served, Client(served.url) as client:
        client.create("made", dim=8)
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
    velo.create(root / "gone.velo", dim=8).close()
    (root / "gone.velo" / "removing").touch()
    (root / "gone.velo" / "live.json").unlink()  # a removal was killed here
    with serving(*options) as served:
        assert names_of(served) == {"made", "built"}
        assert not (root / "gone.velo").exists()
        with Client(served.url, collection="made") as made:
            assert made.count() == 50
        with Client(served.url, collection="built", timeout_s=60.0) as built:
            assert built.count() == 50
            assert built.drop() == []
        assert names_of(served) == {"made"}
    assert sorted(path.name for path in root.iterdir()) == ["made.velo", "notes.velo"]


def names_of(served: Served) -> set[str]:
    with Client(served.url) as client:
        return {told["name"] for told in client.info()["collections"]}


@pytest.mark.parametrize(
    "how",
    [
        ["--processes"],
        pytest.param(
            [],
            marks=pytest.mark.long(
                guarded_by="tests/serving/test_collections.py::test_a_snapshot_of_shards_has_all_rows_written_before"
            ),
        ),
    ],
    ids=["processes", "one"],
)
def test_a_snapshot_of_shards_has_all_rows_written_before(how: list[str], tmp_path: Path) -> None:
    """While another client writes."""
    write_keys(tmp_path / "keys.txt", f"admin {ADMIN}\n")
    path = velo.build_collection(tmp_path / "rows.velo", ROWS, shards=2, ids=np.arange(50), calibrate=False)
    options = ("--writable", "--memory", "1MiB", "--api-keys", str(tmp_path / "keys.txt"), *how)
    told: list[int] = []
    over = threading.Event()

    def write(url: str) -> None:
        with Client(url, collection="rows", api_key=ADMIN) as client:
            while not over.is_set():
                one = 1000 + len(told)
                client.upsert(ROWS[:1], [one])
                told.append(one)
                time.sleep(0.005)

    with serving(str(path), *options) as served:
        writer = threading.Thread(target=write, args=(served.url,))
        writer.start()
        until(lambda: len(told) > 10)
        before = list(told)
        with Client(served.url, collection="rows", api_key=ADMIN, timeout_s=60.0) as client:
            client.snapshot(str(tmp_path / "copy.velo"))
        over.set()
        writer.join()
    with velo.open(tmp_path / "copy.velo") as copy:
        assert copy.contains(before).all()
        assert copy.contains(np.arange(50)).all()


def test_bodies_are_checked(shop: Shop) -> None:
    served, root = shop
    (root / "there.velo").mkdir(exist_ok=True)
    (root / "there.velo" / "file").touch()
    before = sorted(path.name for path in root.iterdir())
    url = f"{served.url}/v1/collections"
    with httpx.Client(headers={"Authorization": f"Bearer {ADMIN}"}, timeout=30) as http:
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
            told = http.post(url, json=body)
            assert told.status_code == status, (body, told.text)
        assert http.post(url, content=b"x", headers={"Content-Type": "text/plain"}).status_code == 415
        assert http.post(url, content=b"{", headers={"Content-Type": "application/json"}).status_code == 400
        arrow = {"Content-Type": "application/vnd.apache.arrow.stream"}
        assert http.post(f"{url}?name=a&dim=8", content=b"x", headers=arrow).status_code == 400
        assert http.post(f"{url}?name=a&dim=8", json={"name": "a", "dim": 8}).status_code == 422
        assert sorted(path.name for path in root.iterdir()) == before
        assert httpx.get(f"{served.url}/readyz").status_code == 200  # without a collection it is ready, too
        made = http.post(url, json={"name": "a", "dim": 2, "metadata": {"x": "int32", "y": "list<string>"}})
        assert made.status_code == 200, made.text
        until(lambda: at_all(served, "a"))
        row = {"vectors": [[1, 2]], "metadata": [{"x": 1, "y": ["b"]}]}
        assert http.post(f"{url}/a/insert", json=row).json()["rows"] == 1
        assert http.delete(f"{url}/a").json()["left"] == []


def test_without_a_root_folder_nothing_is_created_or_dropped(things_served: Served, tmp_path: Path) -> None:
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


def test_a_restarted_gateway_serves_created_collections(shop: Shop) -> None:
    served, _ = shop
    gateways = children(served, b"gateway_process")
    if not gateways:
        return  # one gateway is the server itself
    with Client(served.url, api_key=ADMIN) as admin:
        admin.create("kept", dim=8)
    for pid in gateways:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(set(children(served, b"gateway_process")) - set(gateways)) == 2)

    def all_serve_it() -> bool:
        try:
            return at_all(served, "kept")
        except VeloError:
            return False

    until(all_serve_it)
