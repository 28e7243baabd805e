"""Writes over HTTP: real shards in processes, several gateways, real kills."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.long import count
from tests.serving.conftest import Served, serving, until
from tests.serving.exact_gateway import arrow, rows_in_arrow
from velo.errors import (
    DimensionMismatchError,
    DuplicateIdError,
    InvalidArgumentError,
    NoSpaceError,
    ReadOnlyError,
    UnknownColumnError,
    UnknownIdError,
    VeloError,
)
from velo.folder.shards import homes
from velo_serving import Client

DIM, ROWS, SHARDS = 8, 90, 3
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}

#: Random calls compared with a dict.
STEPS = count(14, 60)


def vectors(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)


def build(folder: Path, *, ids: Any = None, shards: int = SHARDS) -> Path:
    """A collection with two columns."""
    table = pa.table({"year": pa.array(range(ROWS), pa.int32()), "title": [f"t{row}" for row in range(ROWS)]})
    return velo.build_collection(
        folder, vectors(ROWS), shards=shards, ids=ids, metadata=table, store_vectors=True, threads=1
    )


def rows_of(client: Client) -> dict[Any, dict[str, Any]]:
    """All rows by their ids; no id is there twice."""
    pages = [client.rows(limit=1000)]
    while len(pages[-1]) == 1000:
        pages.append(client.rows(limit=1000, after=pages[-1]["id"][-1]))
    rows = pa.concat_tables(pages).to_pylist()
    by_id = {row["id"]: row for row in rows}
    assert len(by_id) == len(rows), sorted(str(row["id"]) for row in rows)
    return by_id


def pids(client: Client) -> dict[str, int]:
    return {shard["name"]: shard["pid"] for shard in client.info()["shards"]}


def all_up(served: Served) -> bool:
    """Whether all shards are up to all gateways: each looks for itself, so ask until none can be left out."""
    for _ in range(24):  # each on a connection of its own, which any of two gateways takes
        shards = httpx.get(f"{served.url}/v1/collections/named", timeout=30).json()["shards"]
        if any(shard["state"] != "up" for shard in shards):
            return False
    return True


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Shards in processes behind two gateways; ids are strings."""
    path = build(tmp_path_factory.mktemp("writes") / "named.velo", ids=[f"r{row}" for row in range(ROWS)])
    with serving(str(path), "--writable", "--durability", "process", "--workers", "2") as served:
        until(lambda: all_up(served))
        yield served


@pytest.fixture
def client(named: Served) -> Iterator[Client]:
    with Client(named.url, collection="named", retries=20) as one:
        yield one


def columns(years: list[int], title: str = "new") -> dict[str, Any]:
    return {"year": years, "title": [title] * len(years)}


def test_random_writes_agree_with_a_dict(named: Served, client: Client) -> None:
    """Random calls, each by the gateway that happens to take it, against a dict."""
    seed = int(os.environ.get("VELO_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    print(f"VELO_TEST_SEED={seed}")
    draw = np.random.default_rng(seed)
    model = {name: row["year"] for name, row in rows_of(client).items()}
    for step in range(STEPS):
        names = [f"r{one}" for one in draw.choice(ROWS + 40, size=draw.integers(1, 8), replace=False)]
        verb = draw.choice(["insert", "upsert", "update", "delete", "filter"])
        years = [1000 * step + place for place in range(len(names))]
        with Client(
            named.url, collection="named"
        ) as fresh:  # a connection, and perhaps a gateway, of its own
            there = [name for name in names if name in model]
            if verb == "insert" and there:
                with pytest.raises(DuplicateIdError):
                    fresh.insert(vectors(len(names), step), names, columns(years))
            elif verb in ("insert", "upsert"):
                done = getattr(fresh, verb)(vectors(len(names), step), names, columns(years))
                assert (done.rows, done.replaced) == (len(names), len(there))
                model |= dict(zip(names, years, strict=True))
            elif verb == "update":
                done = fresh.update(names, {"year": years})
                assert (done.rows, done.missing) == (len(there), len(names) - len(there))
                model |= {name: year for name, year in zip(names, years, strict=True) if name in model}
            elif verb == "delete":
                done = fresh.delete(names)
                assert (done.rows, done.missing) == (len(there), len(names) - len(there))
                for name in there:
                    del model[name]
            else:
                limit = int(draw.integers(0, 1000 * (step + 1)))
                found = fresh.delete(filter=f"year > 200 AND year < {limit}")
                gone = [name for name, year in model.items() if 200 < year < limit]
                assert found.rows == len(gone)
                for name in gone:
                    del model[name]
            if step == STEPS // 3:
                fresh.flush()
            if step == STEPS // 2:
                fresh.optimize()
        assert {name: row["year"] for name, row in rows_of(client).items()} == model
    assert client.count() == len(model)


def test_concurrent_writers_leave_each_id_in_one_shard(named: Served, client: Client) -> None:
    """Ids of built rows and new ones, upserted, inserted and deleted by many at the same moment."""
    names = [f"r{row}" for row in range(0, ROWS, 9)] + [f"both-{row}" for row in range(10)]

    def work(number: int) -> None:
        draw = np.random.default_rng(number)
        with Client(named.url, collection="named", retries=20) as one:
            for step in range(8):
                some = [str(name) for name in draw.choice(names, size=4, replace=False)]
                if draw.random() < 0.5:
                    one.upsert(vectors(4, step), some, columns([number] * 4, f"of {number}"))
                else:
                    one.delete(some)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    rows_of(client)  # no id twice
    client.upsert(vectors(len(names), 77), names, columns([7] * len(names), "last"))
    after = rows_of(client)
    assert {after[name]["title"] for name in names} == {"last"}
    found = client.search(vectors(len(names), 77), k=1, recall=1.0)
    assert [row[0] for row in found.ids.tolist()] == names


def test_a_request_id_makes_a_call_once(named: Served, client: Client) -> None:
    before = client.count()
    names = [f"once-{row}" for row in range(12)]
    first = client.insert(vectors(12), names, columns([1] * 12), request="order-17")
    with Client(named.url, collection="named") as fresh:
        again = fresh.insert(vectors(12), names, columns([2] * 12), request="order-17")
    assert (first.rows, first.repeated, again.rows, again.repeated) == (12, False, 12, True)
    assert client.count() == before + 12
    assert client.get(names)["year"].to_pylist() == [1] * 12
    # Another name is another call: its ids are there already, and no shard took the one that is not.
    with pytest.raises(DuplicateIdError, match="once-0"):
        client.insert(vectors(13), [*names, "fresh"], columns([3] * 13), request="order-18")
    with pytest.raises(UnknownIdError, match="fresh"):
        client.get(["fresh"])


def test_acknowledged_rows_survive_the_kill_of_a_shard(named: Served, client: Client) -> None:
    """Shards are killed while two writers insert rows."""
    told: list[str] = []
    over = threading.Event()

    def write(number: int) -> None:
        with Client(named.url, collection="named", retries=200, timeout_s=60.0) as one:
            for step in range(10_000):
                if over.is_set():
                    return
                names = [f"kept-{number}-{step}-{row}" for row in range(5)]
                done = one.insert(vectors(5, step), names, columns([step] * 5))
                assert done.rows == 5 or done.repeated
                told.extend(names)
                time.sleep(0.02)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for writer in writers:
        writer.start()
    for shard in ("0", "2"):
        count = len(told)
        until(lambda count=count: len(told) > count + 20)
        before = pids(client)[shard]
        os.kill(before, signal.SIGKILL)
        until(lambda before=before, shard=shard: pids(client)[shard] not in (0, before))
    over.set()
    for writer in writers:
        writer.join()
    until(lambda: all_up(named))
    assert len(told) > 40
    found = rows_of(client)
    assert set(told) <= found.keys()


def test_an_unreachable_shard_is_named_in_the_error(named: Served, client: Client) -> None:
    """An upsert writes nothing; a delete writes to the other shards and names this one."""
    pid = pids(client)["1"]
    os.kill(pid, signal.SIGSTOP)
    try:
        with Client(named.url, collection="named", retries=0) as one:
            until(lambda: any(shard["state"] == "down" for shard in one.info()["shards"]) or searched(one))
            count = 0
            while True:  # either gateway may take the request, and each finds out for itself
                with pytest.raises(VeloError) as told:
                    one.upsert(vectors(1), ["away"], columns([1]), timeout_s=2.0)
                count += 1
                if "shard 1" in str(told.value) or count > 20:
                    break
            assert "1: " in str(told.value)
            assert "nothing was written" in str(told.value)
            answer = httpx.post(
                f"{named.url}/v1/collections/named/delete", json={"ids": ["r1"], "timeout_ms": 2000}
            )
            assert answer.status_code == 503
            error = answer.json()["error"]
            assert (error["type"], error["shards"]) == ("PartialWriteError", ["1"])
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: all_up(named))
    assert len(client.get(["away"], unknown="skip")) == 0


def searched(one: Client) -> bool:
    """A search, by which a gateway finds a shard that hangs; never true."""
    one.search(vectors(1), k=1)
    return False


def test_a_full_device_refuses_writes_until_there_is_room(named: Served, client: Client) -> None:
    pid = pids(client)["2"]
    names = [name for name in (f"full-{row}" for row in range(200)) if homes(ids_of([name]), SHARDS)[0] == 2][
        :5
    ]
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        answer = httpx.post(
            f"{named.url}/v1/collections/named/upsert",
            json={"vectors": vectors(5).tolist(), "ids": names, "metadata": columns([1] * 5)},
        )
        assert answer.status_code == 507, answer.text
        assert answer.json()["error"]["type"] == NoSpaceError.__name__
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    assert len(client.get(names, unknown="skip")) == 0
    assert client.upsert(vectors(5), names, columns([1] * 5)).rows == 5


def ids_of(names: list[str]) -> Any:
    return pa.array(names, pa.large_string())


BAD: list[tuple[str, dict[str, Any], int, str]] = [
    ("insert", {"vectors": [[1.0] * 7], "ids": ["x"]}, 422, "DimensionMismatchError"),
    ("insert", {"vectors": [[1.0] * DIM], "ids": ["x", "y"]}, 422, "InvalidArgumentError"),
    ("insert", {"vectors": [[1.0] * DIM], "ids": [5], "metadata": columns([1])}, 422, "InvalidArgumentError"),
    ("insert", {"vectors": [[1.0] * DIM], "metadata": columns([1])}, 422, "InvalidArgumentError"),
    (
        "insert",
        {"vectors": [[1.0] * DIM] * 2, "ids": ["x", "x"], "metadata": columns([1, 2])},
        409,
        "DuplicateIdError",
    ),
    ("insert", {"vectors": [[1.0] * DIM], "ids": ["x"]}, 422, "InvalidArgumentError"),
    (
        "insert",
        {"vectors": [[1.0] * DIM], "ids": ["x"], "metadata": {"year": [1]}},
        422,
        "InvalidArgumentError",
    ),
    ("insert", {"vectors": [[1e30] * DIM], "ids": ["x"], "metadata": columns([1])}, 422, "NotFiniteError"),
    ("upsert", {"vectors": [[1.0] * DIM]}, 422, "RequestError"),
    (
        "upsert",
        {"vectors": [[1.0] * DIM], "ids": ["x"], "metadata": {"size": [1]}},
        400,
        "UnknownColumnError",
    ),
    ("update", {"ids": ["r1"], "metadata": {"year": ["a"]}}, 422, "InvalidArgumentError"),
    ("update", {"ids": ["r1"], "metadata": {"year": [2**40]}}, 422, "InvalidArgumentError"),
    ("update", {"ids": ["r1"], "metadata": [{}]}, 422, "InvalidArgumentError"),
    ("update", {"ids": [2**70], "metadata": {"year": [1]}}, 422, "InvalidArgumentError"),
    ("delete", {}, 422, "RequestError"),
    ("delete", {"ids": ["r1"], "filter": "year = 1"}, 422, "RequestError"),
    ("delete", {"filter": {"size": 1}}, 400, "UnknownColumnError"),
    ("delete", {"filter": "year ="}, 400, "FilterError"),
    ("optimize", {"now": True}, 422, "RequestError"),
]


def test_wrong_calls_are_refused_and_write_nothing(named: Served, client: Client) -> None:
    before = client.count()
    with httpx.Client(base_url=f"{named.url}/v1/collections/named", timeout=30) as http:
        for verb, body, status, kind in BAD:
            answer = http.post(f"/{verb}", json=body)
            told = (answer.status_code, answer.json()["error"]["type"])
            assert told == (status, kind), (verb, body, answer.text)
    assert client.count() == before


def test_json_and_arrow_bodies_write_the_same_row(named: Served, client: Client) -> None:
    url = f"{named.url}/v1/collections/named"
    row = vectors(1, 99)
    told = [
        httpx.post(
            f"{url}/upsert",
            json={"vectors": row.tolist(), "ids": ["f0"], "metadata": [{"year": 5, "title": "ü"}]},
        ),
        httpx.post(
            f"{url}/upsert?request_id=f1",
            headers=ARROW,
            content=arrow(
                vector=pa.FixedSizeListArray.from_arrays(pa.array(row[0]), DIM),
                id=["f1"],
                year=[5],
                title=["ü"],
            ),
        ),
    ]
    assert [one.status_code for one in told] == [200, 200], [one.text for one in told]
    assert client.get(["f0", "f1"]).to_pylist() == [
        {"id": one, "year": 5, "title": "ü"} for one in ("f0", "f1")
    ]
    assert set(client.search(row, k=2, recall=1.0).ids[0].tolist()) == {"f0", "f1"}
    for verb, headers, content, status in (
        ("insert", {"Content-Type": "application/x-npy"}, b"\x93NUMPY", 415),
        ("delete", ARROW, arrow(year=[5]), 422),
        ("delete", ARROW, arrow(id=["f0"], year=[5]), 422),
        ("update", ARROW, arrow(id=["f0"], year=[6]), 200),
        ("delete", ARROW, arrow(id=["f0", "f1", "f2"]), 200),
        ("insert", ARROW, b"nothing", 400),
    ):
        answer = httpx.post(f"{url}/{verb}", headers=headers, content=content)
        assert answer.status_code == status, answer.text
    assert len(client.get(["f0", "f1"], unknown="skip")) == 0


def test_inserted_rows_get_unused_numbers(tmp_path: Path) -> None:
    path = build(tmp_path / "numbered.velo")
    with (
        serving(str(path), "--writable", "--durability", "process") as served,
        Client(served.url, collection="numbered") as client,
    ):
        done = [client.insert(vectors(3, step), metadata=columns([step] * 3)) for step in range(3)]
        assert [one.first_id for one in done] == [ROWS, ROWS + 3, ROWS + 6]
        assert client.upsert(vectors(2), [5, ROWS + 1], columns([8, 9])).replaced == 2
        assert client.delete([5, 6]).rows == 2
        assert client.upsert(vectors(1), [5], columns([4])).rows == 1  # a number that was given once
        with pytest.raises(UnknownIdError):
            client.upsert(vectors(1), [10_000], columns([1]))
        with pytest.raises(InvalidArgumentError, match="numbers its rows itself"):
            client.insert(vectors(1), [10_000], columns([1]))
        found = rows_of(client)
        assert sorted(found) == [one for one in range(ROWS + 9) if one != 6]
        assert (found[5]["year"], found[ROWS + 1]["year"]) == (4, 9)


def test_a_server_without_writable_refuses_writes(served_index: Served) -> None:
    with Client(served_index.url, collection="sample") as client:
        for call in (
            lambda: client.insert(np.zeros((1, 16), np.float32)),
            lambda: client.delete([1]),
            lambda: client.optimize(),
        ):
            with pytest.raises(ReadOnlyError, match="--writable"):
                call()
        answer = httpx.post(f"{served_index.url}/v1/collections/sample/flush", json={})
        assert answer.status_code == 409
        assert client.info()["writable"] is False


def test_rows_are_inserted_into_an_empty_index(tmp_path: Path) -> None:
    """Types that JSON does not have, an element type that holds whole numbers alone, a budget."""
    schema = pa.schema([("when", pa.timestamp("us")), ("raw", pa.binary()), ("score", pa.float64())])
    velo.create(tmp_path / "empty.velo", dim=4, dtype="uint8", metadata=schema).close()
    row = {"when": "2024-02-29T12:00:00", "raw": "AAH_", "score": None}
    with (
        serving(str(tmp_path / "empty.velo"), "--writable", "--memory", "1MiB") as served,
        Client(served.url, collection="empty") as client,
    ):
        url = f"{served.url}/v1/collections/empty"
        assert client.search(np.zeros(4), k=3).ids.tolist() == [-1, -1, -1]
        answer = httpx.post(f"{url}/insert", json={"vectors": [[0, 1, 2, 255]], "metadata": [row]})
        assert answer.status_code == 200, answer.text
        assert (answer.json()["first_id"], answer.json()["durable"]) == (0, True)
        assert httpx.post(f"{url}/get", json={"ids": [0]}).json()["rows"] == [{"id": 0, **row}]
        assert client.get([0]).schema == pa.schema([("id", pa.int64()), *schema])
        assert client.search(np.array([0, 1, 2, 255]), k=1).ids.tolist() == [0]
        for wrong in ([0, 1, 2, 256], [0, 1, 2, 0.5], [0, 0, 0, -1]):
            answer = httpx.post(f"{url}/insert", json={"vectors": [wrong], "metadata": [row]})
            assert (answer.status_code, answer.json()["error"]["type"]) == (422, "DtypeError")
        answer = httpx.post(
            f"{url}/insert", json={"vectors": [[0, 0, 0, 0]], "metadata": [row | {"raw": "%"}]}
        )
        assert answer.status_code == 422
        assert "'raw'" in answer.json()["error"]["message"]
        with pytest.raises(DimensionMismatchError):
            client.insert(np.zeros((1, 5), np.uint8), metadata=pa.Table.from_pylist([{}], schema))
        # Rows that have room only in a part.
        table = pa.table({"when": [None], "raw": [b"1234567890" * 2], "score": [0.5]})
        count = 14_000
        done = client.insert(np.zeros((count, 4), np.uint8), metadata=table.take([0] * count))
        assert done.rows == count
        assert client.count() == 1 + count
        with pytest.raises(UnknownColumnError):
            client.update([0], {"size": [1]})
        # A second server of the folder writes, too.
        with (
            serving(str(tmp_path / "empty.velo"), "--writable", "--memory", "1MiB") as other,
            Client(other.url, collection="empty") as beside,
        ):
            beside.delete([0])
        assert client.count() == count
    with velo.open(tmp_path / "empty.velo") as index:
        assert len(index) == count


def test_writes_beyond_the_memory_budget_get_429_and_a_time_to_retry(tmp_path: Path) -> None:
    """The delta is full until a segment is made of it; a refused call writes nothing."""
    velo.create(tmp_path / "fast.velo", dim=1024).close()
    rows = np.random.default_rng(6).standard_normal((200, 1024)).astype(np.float32)
    with (
        serving(
            str(tmp_path / "fast.velo"), "--writable", "--memory", "1MiB", "--durability", "process"
        ) as served,
        Client(served.url, collection="fast", retries=100) as client,
    ):
        url = f"{served.url}/v1/collections/fast/insert"
        answers: list[httpx.Response] = []
        # The delta has room for one call; the next waits for the segment, at most until its timeout.
        for timeout_ms in (1000, 500, 250, 120, 60):

            def insert(_: int, timeout_ms: int = timeout_ms) -> httpx.Response:
                asked = f"{url}?timeout_ms={timeout_ms}"
                return httpx.post(asked, headers=ARROW, content=rows_in_arrow(rows), timeout=60)

            with ThreadPoolExecutor(8) as callers:
                answers += callers.map(insert, range(8))
            if any(answer.status_code == 429 for answer in answers):
                break
        done = [answer for answer in answers if answer.status_code == 200]
        # On a busy machine an answer may come too late to report that there was no room.
        late = [answer for answer in answers if answer.status_code == 504]
        refused = [answer for answer in answers if answer.status_code not in (200, 504)]
        assert done
        assert refused
        written = len(rows) * len(done)
        assert all(0 < answer.json()["pressure"] <= 1 for answer in done)
        for answer in refused:
            assert (answer.status_code, answer.json()["error"]["type"]) == (429, "BusyError"), answer.text
            assert int(answer.headers["retry-after"]) >= 1
        count = client.count()
        assert written <= count <= written + len(rows) * len(late)
        # The client comes back by itself.
        assert client.insert(rows).first_id == count
        assert client.count() == count + len(rows)


def test_a_reading_server_follows_writes_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "seen.velo"
    velo.create(path, dim=4).close()
    with serving(str(path)) as served, Client(served.url, collection="seen") as client:
        assert client.count() == 0
        with velo.open(path, writable=True) as index:
            index.insert(np.eye(4, dtype=np.float32))
            until(lambda: client.count() == 4)
            assert client.search(np.eye(4)[2], k=1).ids.tolist() == [2]
            index.optimize()
            index.delete([2])
            until(lambda: client.count() == 3)
            assert client.search(np.eye(4)[2], k=1).ids.tolist() != [2]


@pytest.mark.long(
    guarded_by="tests/serving/test_writes.py::test_a_reading_server_follows_writes_of_another_process"
)
def test_reading_replicas_follow_the_writing_one(tmp_path: Path) -> None:
    path = build(tmp_path / "twice.velo", ids=list(range(1000, 1000 + ROWS)), shards=1)
    with (
        serving(str(path), "--writable", "--durability", "process", "--replicas", "2") as served,
        Client(served.url, collection="twice", retries=20) as client,
    ):
        row = vectors(1, 50)
        client.insert(row, [1], columns([1]))

        def seen(one: int) -> bool:
            """By all replicas: requests go from one to the next."""
            return all(client.search(row, k=1, recall=1.0).ids[0, 0] == one for _ in range(8))

        until(lambda: seen(1))
        client.delete([1])
        client.optimize()
        until(lambda: not any(client.search(row, k=1).ids[0, 0] == 1 for _ in range(8)))
        client.upsert(row, [1001], columns([2]))
        until(lambda: seen(1001))
        # The writer goes; what it wrote is still answered, and it writes again once it is back.
        shards = client.info()["shards"]
        writers = {shard["name"]: shard["pid"] for shard in shards if shard["name"].endswith("/0")}
        for pid in writers.values():
            os.kill(pid, signal.SIGKILL)
        assert seen(1001)
        assert client.upsert(row, [2], columns([3])).rows == 1
        until(lambda: client.count() == ROWS + 1)


@pytest.mark.parametrize("numbers", [True, False])
def test_ids_are_spread_evenly_over_shards_by_a_fixed_function(numbers: bool) -> None:
    names = [f"id-{number}" for number in range(30_000)]
    ids = np.arange(-100, 29_900) * 64 if numbers else ids_of(names)
    found = homes(ids, 7)
    share = np.bincount(found, minlength=7) / len(found)
    assert share.min() > 0.13
    assert share.max() < 0.16
    # Rows are found by it for as long as an index lives: it must never change.
    known = homes(np.array([0, 1, -5, 2**62]), 7) if numbers else homes(ids_of(["", "a", "ü", "id-7"]), 7)
    assert known.tolist() == ([0, 6, 4, 1] if numbers else [0, 4, 4, 1])
    assert homes(ids[:5], 3, numbered=True).tolist() == [2] * 5


def test_answers_and_metrics_count_written_rows(named: Served, client: Client) -> None:
    body = {"ids": [f"none-{row}" for row in range(3)]}
    answer = httpx.post(f"{named.url}/v1/collections/named/delete", json=body).json()
    assert (answer["rows"], answer["missing"], sorted(answer["sequences"])) == (0, 3, ["0", "1", "2"])
    assert client.upsert(vectors(2), ["told-1", "told-2"], columns([1, 2])).rows == 2
    told = httpx.get(f"{named.url}/metrics").text  # of both gateways
    labels = 'collection="named",outcome="done",verb="upsert"'
    counts = [float(line.rpartition(" ")[2]) for line in told.splitlines() if labels in line]
    assert counts
    assert min(counts) >= 1
    rows = [
        line
        for line in told.splitlines()
        if line.startswith('velo_rows_written_total{collection="named",verb="upsert"}')
    ]
    assert float(rows[0].rpartition(" ")[2]) >= 2
