"""What the window at /ui is made of and asks for: files, costs of shards, vectors, texts, a map."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.serving.conftest import READ, THINGS_DIM, THINGS_ROWS, Served, invoked, write_keys
from tests.serving.exact_gateway import serving
from tests.serving.text_vectors import ROWS, VECTORS, embed, model
from velo.errors import DimensionMismatchError, InvalidArgumentError, UnsupportedError
from velo_serving import open_local_backend
from velo_serving.gateway.access import Access
from velo_serving.gateway.dashboard.directions import Directions
from velo_serving.gateway.dashboard.embedding import WAITING_MAX, Embedding, load_embedding
from velo_serving.gateway.dashboard.pages import FILES, FOLDER
from velo_serving.protocol.errors import DeadlineExceededError, EmbeddingError, QueueFullError

# ---- files


@pytest.fixture(scope="module")
def live_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index that was written to, and stores no vectors."""
    path = tmp_path_factory.mktemp("window") / "live.velo"
    table = pa.table({"kind": [f"k{row % 9}" for row in range(ROWS)], "size": range(ROWS)})
    table = table.append_column("tags", pa.array([["a", "b"]] * ROWS))
    velo.build(path, VECTORS[:200], metadata=table.slice(0, 200), threads=1, record_bits=8).close()
    with velo.open(path, writable=True, durability="process") as index:
        index.insert(VECTORS[200:], metadata=table.slice(200))
        index.delete([0, 1])
    return path


def asking(
    path: Path, scene: Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]], **options: Any
) -> None:
    """Play a scene with an app over an index."""

    async def run() -> None:
        async with serving(open_local_backend(path, threads=1, writable=True), **options) as client:
            await scene(client)

    asyncio.run(run())


def test_the_page_loads_nothing_from_elsewhere_and_runs_nothing_but_its_files(things_served: Served) -> None:
    assert sorted(FILES) == sorted(one.name for one in FOLDER.iterdir())
    page = httpx.get(f"{things_served.url}/ui")
    assert page.text == (FOLDER / "index.html").read_text()
    named = {one for one in re.findall(r'(?:src|href)="([^"#]+)"', page.text) if one != "docs"}
    for name, kind in FILES.items():
        told = httpx.get(f"{things_served.url}/ui/{name}")
        assert told.status_code == 200
        assert told.headers["content-type"].startswith(kind)
        policy = told.headers["content-security-policy"]
        for rule in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"):
            assert rule in policy.split("; ")
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert told.headers["x-content-type-options"] == "nosniff"
        text = told.text.replace("http://www.w3.org/", "")  # names of markup, which are not loaded
        assert "//" not in re.sub(r"^\s*//.*|  // .*", "", text, flags=re.MULTILINE), name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(", text
        )
    assert {f"ui/{name}" for name in FILES if name in ("window.js", "window.css", "icon.svg")} == named
    assert not re.search(r"<style|style=|\son\w+=|<script(?! type=\"module\" src)", page.text)
    moved = httpx.get(f"{things_served.url}/ui/")
    assert httpx.URL(moved.headers["location"]) == httpx.URL("../ui")
    for name in ("nothing.js", "index.htm", "..%2Fpages.py", "%2e%2e/pages.py"):
        assert httpx.get(f"{things_served.url}/ui/{name}").status_code == 404


def test_files_open_without_a_key_and_data_does_not(live_path: Path, tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", f"read {READ}\n")

    async def scene(client: httpx.AsyncClient) -> None:
        for path in ("/ui", *(f"/ui/{name}" for name in FILES)):
            assert (await client.get(path)).status_code == 200, path
        assert (await client.get("/ui/")).status_code == 307
        assert (await client.get("/ui/x")).status_code == 401
        document = (await client.get("/openapi.json")).json()
        for what in ("info", "vectors", "embed", "map"):
            path = f"/v1/collections/live/{what}"
            assert (await client.post(path, json={})).status_code == 401
            key = {"Authorization": f"Bearer {READ}"}
            assert (await client.post(path, json={}, headers=key)).status_code in (200, 422), what
            assert "security" in document["paths"][path.replace("live", "{name}")]["post"]

    asking(live_path, scene, access=Access(api_keys=str(tmp_path / "keys")))


# ---- what shards cost


def post(served: Served, path: str, body: Any) -> httpx.Response:
    return httpx.post(f"{served.url}/v1/collections/{path}", json=body, timeout=60)


def test_shards_report_their_costs(things_served: Served, live_path: Path) -> None:
    told = post(things_served, "things/info", {}).json()
    assert [one["shard"] for one in told["shards"]] == ["0", "1", "2"]
    assert sum(one["n"] for one in told["shards"]) == THINGS_ROWS
    for one in told["shards"]:
        assert one["memory_bytes"]["codes"] > 0
        assert one["disk_bytes"] > 0
        assert one["live"] is None
        assert "path" not in one
    assert told["columns"] == [["color", "string"], ["size", "int64"], ["vector", "int64"]]
    assert (told["ids"], told["embeds"], told["partial"]) == ("int64", False, False)
    assert post(things_served, "names/info", {}).json()["ids"] == "string"
    assert post(things_served, "things/info", {"path": True}).status_code == 422

    async def scene(client: httpx.AsyncClient) -> None:
        told = (await client.post("/v1/collections/live/info", json={})).json()
        (one,) = told["shards"]
        live = one["live"]
        assert (one["n"], live["dead"], live["delta"]["n"], len(live["parts"])) == (
            ROWS - 2,
            2,
            ROWS - 200,
            1,
        )
        assert 0 < live["pressure"] < 1
        assert told["embeds"]
        assert ["tags", "list<item: string>"] in told["columns"]
        # What is written is seen.
        row = {"vectors": [VECTORS[0].tolist()], "metadata": [{"kind": "k0", "size": 0, "tags": []}]}
        wrote = await client.post("/v1/collections/live/insert", json=row)
        assert wrote.status_code == 200, wrote.text
        told = (await client.post("/v1/collections/live/info", json={})).json()
        assert told["shards"][0]["n"] == ROWS - 1

    asking(live_path, scene, embed=embed)


# ---- vectors


def test_vectors_are_those_stored_or_nearly(
    things_served: Served, things_vectors: np.ndarray, live_path: Path
) -> None:
    told = post(things_served, "things/vectors", {"ids": [250, 3]}).json()["vectors"]
    np.testing.assert_array_equal(np.array(told, np.float32), things_vectors[[250, 3]])
    codes = np.array(post(things_served, "codes/vectors", {"ids": [5]}).json()["vectors"])
    assert np.linalg.norm(codes - things_vectors[5]) < 0.3 * np.linalg.norm(things_vectors[5])
    for body, status in (
        ({"ids": [10**6]}, 404),
        ({"ids": []}, 422),
        ({"ids": list(range(101))}, 422),
        ({}, 422),
    ):
        assert post(things_served, "things/vectors", body).status_code == status

    async def scene(client: httpx.AsyncClient) -> None:
        told = (await client.post("/v1/collections/live/vectors", json={"ids": [210, 100]})).json()["vectors"]
        np.testing.assert_array_equal(np.array(told[0], np.float32), VECTORS[210])
        np.testing.assert_allclose(told[1], VECTORS[100], atol=0.05 * np.abs(VECTORS[100]).max())
        assert (await client.post("/v1/collections/live/vectors", json={"ids": [0]})).status_code == 404

    asking(live_path, scene)


# ---- texts


def test_texts_become_vectors(live_path: Path) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        async def ask(text: str, **more: Any) -> httpx.Response:
            return await client.post("/v1/collections/live/embed", json={"text": text, **more})

        told = (await ask("like row 17")).json()["vector"]
        np.testing.assert_array_equal(np.array(told, np.float32), VECTORS[17])
        for text, status in (("", 422), ("x" * 8193, 422), ("it fails", 500), ("none at all", 500)):
            refused = await ask(text)
            assert refused.status_code == status, text
            assert "secret" not in refused.text
        assert (await ask("it fails")).json()["error"]["type"] == EmbeddingError.__name__

    for one in (embed, "tests.serving.text_vectors:embed", "tests.serving.text_vectors:model.encode"):
        asking(live_path, scene, embed=one)

    async def without(client: httpx.AsyncClient) -> None:
        refused = await client.post("/v1/collections/live/embed", json={"text": "row 3"})
        assert refused.status_code == 422
        assert refused.json()["error"]["type"] == UnsupportedError.__name__

    asking(live_path, without)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nothing_of_this_name:embed", "ModuleNotFoundError"),
        ("tests.serving.text_vectors:nothing", "AttributeError"),
        ("tests.serving.text_vectors:NOT_CALLABLE", "int"),
        ("tests.serving.text_vectors", "MODULE:FUNCTION"),
        ("a:b:c", "MODULE:FUNCTION"),
        ("", "MODULE:FUNCTION"),
    ],
)
def test_an_embedding_function_that_cannot_be_imported_is_refused(name: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why) as caught:
        load_embedding(name)
    assert caught.value.argument == "embed"


def test_an_unknown_embedding_function_is_refused_before_an_index_is_opened(tmp_path: Path) -> None:
    for more in ((), ("--workers", "2")):
        ended = invoked(
            "serve", str(tmp_path / "nothing.velo"), "--embed", "nothing_of_this_name:embed", *more
        )
        assert ended.returncode == 1
        assert len(ended.stderr.strip().splitlines()) == 1
        assert "nothing_of_this_name" in ended.stderr


async def test_an_embedding_function_runs_one_call_at_a_time_with_bounded_waits() -> None:
    go, calls = threading.Event(), []

    def slow(texts: Any) -> np.ndarray:
        calls.append(texts)
        go.wait(60)
        return np.zeros(4)

    one = Embedding(slow)
    with pytest.raises(DeadlineExceededError):
        await one.vector("a", 4, 0.05)
    waiting = [asyncio.ensure_future(one.vector("b", 4, 60)) for _ in range(WAITING_MAX - 1)]
    await asyncio.sleep(0.05)
    assert calls == [["a"]]  # it still runs
    with pytest.raises(QueueFullError):
        await one.vector("c", 4, 1)
    go.set()
    assert [(await made).shape for made in waiting] == [(1, 4)] * len(waiting)
    assert len(calls) == WAITING_MAX
    with pytest.raises(DimensionMismatchError, match="4 dimensions, the collection has 5"):
        await one.vector("d", 5, 60)
    for wrong in (np.zeros((2, 4)), np.zeros(()), np.array([np.inf] * 4), None, "text", [["a"] * 4]):
        with pytest.raises(EmbeddingError):
            await Embedding(lambda texts, wrong=wrong: wrong).vector("e", 4, 60)
    assert not Embedding()
    assert model.encode(["row 3"]) == [VECTORS[3].tolist()]


# ---- the map


@pytest.mark.parametrize("metric", ["l2", "cosine"])
@pytest.mark.parametrize("shape", [(400, 30), (60, 200), (5, 3), (50, 2), (40, 1)])
def test_directions_are_those_of_a_decomposition(shape: tuple[int, int], metric: str) -> None:
    rows = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    rows = rows * np.float32(0.6) ** np.arange(shape[1], dtype=np.float32) + np.float32(3)
    found = Directions(rows, metric, seed=5)
    used = rows.astype(np.float64)
    if metric == "cosine":
        used /= np.linalg.norm(used, axis=1, keepdims=True)
    spread = used - used.mean(axis=0)
    left, sizes, _ = np.linalg.svd(spread, full_matrices=False)
    for axis in range(min(2, shape[1]) if sizes[0] > 1e-9 else 0):
        assert found.shares[axis] == pytest.approx(sizes[axis] ** 2 / (spread**2).sum(), rel=1e-3)
        assert abs(found.points[:, axis] @ left[:, axis]) == pytest.approx(
            np.linalg.norm(found.points[:, axis]), rel=1e-3
        )
    assert np.hypot(*found.points.T).max() == pytest.approx(1.0) or sizes[0] < 1e-9
    np.testing.assert_allclose(found(rows[:4]), found.points[:4], atol=1e-9)
    np.testing.assert_array_equal(found.points, Directions(rows, metric, seed=5).points)


def test_directions_of_few_or_equal_rows() -> None:
    for count in (0, 1, 7):
        same = Directions(np.ones((count, 6), np.float32), "cosine")
        assert same.points.shape == (count, 2)
        assert np.abs(same.points).max(initial=0) < 1e-6 or count == 0
        assert same(np.zeros((2, 6), np.float32)).shape == (2, 2)
        assert np.isfinite(same(np.zeros((2, 6), np.float32))).all()


def test_a_map_is_of_a_sample_of_all_shards(things_served: Served, things_vectors: np.ndarray) -> None:
    whole = post(things_served, "things/map", {"limit": 2000, "color": "color", "marks": [250, 3]}).json()
    assert sorted(whole["ids"]) == list(range(THINGS_ROWS))
    assert whole["values"] == [f"c{row % 5}" for row in whole["ids"]]
    assert (whole["rows"], whole["query"], whole["partial"]) == (THINGS_ROWS, None, False)
    directions = Directions(things_vectors[whole["ids"]], "l2")
    np.testing.assert_allclose(whole["points"], directions.points, atol=1e-4)
    np.testing.assert_allclose(whole["marks"], directions(things_vectors[[250, 3]]), atol=1e-4)
    few = post(things_served, "things/map", {"limit": 60}).json()
    assert len(few["ids"]) == len(set(few["ids"])) == 60
    assert few["values"] is None
    assert {one // 100 for one in few["ids"]} == {0, 1, 2}
    assert post(things_served, "things/map", {"limit": 60}).json() == few
    assert post(things_served, "things/map", {"limit": 60, "seed": 1}).json()["ids"] != few["ids"]
    query = things_vectors[7].tolist()
    some = post(things_served, "things/map", {"filter": {"color": "c2"}, "vector": query, "limit": 50}).json()
    assert some["rows"] == THINGS_ROWS / 5
    assert {one % 5 for one in some["ids"]} == {2}
    assert len(some["query"]) == 2
    empty = post(
        things_served, "things/map", {"filter": "size > 1000", "color": "size", "vector": query}
    ).json()
    assert (empty["ids"], empty["points"], empty["rows"]) == ([], [], 0)
    names = post(things_served, "names/map", {"marks": ["n3"]}).json()
    assert names["marks"][0] == names["points"][names["ids"].index("n3")]
    assert len(post(things_served, "codes/map", {}).json()["ids"]) == 20


def test_a_map_has_limits(things_served: Served, live_path: Path) -> None:
    for body, status, argument in (
        ({"limit": 2001}, 422, "limit"),
        ({"limit": 0}, 422, "limit"),
        ({"marks": list(range(101))}, 422, "marks"),
        ({"marks": [10**6]}, 404, "ids"),
        ({"vector": [1.0]}, 422, "vector"),
        ({"vector": [float(1)] * THINGS_DIM, "colour": "x"}, 422, "colour"),
        ({"color": "nothing"}, 400, None),
        ({"filter": {"nothing": 1}}, 400, None),
        ({"filter": "size <"}, 400, "filter"),
        ({"seed": -1}, 422, "seed"),
    ):
        refused = post(things_served, "things/map", body)
        assert refused.status_code == status, refused.text
        if argument is not None:
            assert refused.json()["error"]["argument"] == argument

    async def scene(client: httpx.AsyncClient) -> None:
        refused = await client.post("/v1/collections/live/map", json={"color": "tags"})
        assert refused.status_code == 422
        assert refused.json()["error"]["argument"] == "color"
        told = (await client.post("/v1/collections/live/map", json={"color": "kind", "limit": 2000})).json()
        assert not {0, 1} & set(told["ids"])
        assert told["values"][:3] == [f"k{row % 9}" for row in told["ids"][:3]]

    asking(live_path, scene)
