"""Shards on a real Ray, asked directly and through the gateway, while actors die."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.serving.conftest import LIST_SIZE, PATIENT, RAY_MARKS, ROWS, SHARDS, Served, local_answer
from tests.serving.exact_gateway import client_of, serving
from velo.errors import DimensionMismatchError, InvalidArgumentError, UnknownColumnError, VeloError
from velo_serving import Access, AsyncClient, Client, ClusterSearch, VectorSearch
from velo_serving.catalog.records import Place
from velo_serving.on_ray.actors import places_of, ray
from velo_serving.on_ray.cluster import Cluster
from velo_serving.protocol.answers import result_of
from velo_serving.protocol.errors import (
    ClusterExistsError,
    PlacementError,
    ShardNotHereError,
    ShuttingDownError,
    SupersededError,
    UnknownCollectionError,
)
from velo_serving.protocol.types import SearchRequest
from velo_serving.routing.backend import Backend

pytestmark = RAY_MARKS


#: By when a killed actor has been restarted and answers again, on a busy machine.
RECOVERY_S = 60.0


@pytest.fixture(scope="module")
def cluster(local_ray: None, sharded_path: Path) -> Iterator[Cluster]:
    """The shards, each pinned to the node that has its disk."""
    with Cluster.start(sharded_path, pin="resource:disk-{shard}", threads=1) as started:
        yield started


def gateway(cluster: Cluster) -> AbstractAsyncContextManager[AsyncClient]:
    """A client of a gateway over the cluster, in this event loop."""
    return client_of(cluster.backend(limits=PATIENT), collection=cluster.collection.name, retries=0)


def test_shards_on_ray_answer_as_one_merged_local_search(
    cluster: Cluster, sharded_path: Path, sharded_queries: np.ndarray
) -> None:
    request = SearchRequest(sharded_queries, 10, list_size=LIST_SIZE)
    expected = local_answer(sharded_path, request).hits
    direct = cluster.search(sharded_queries, k=10, list_size=LIST_SIZE)
    assert np.array_equal(direct.ids, expected.ids)

    async def run() -> None:
        async with gateway(cluster) as client:
            whole = await client.search(sharded_queries, k=10, list_size=LIST_SIZE)
            assert np.array_equal(whole.ids, expected.ids)
            assert np.array_equal(whole.distances, expected.distances)
            assert (whole.shards_answered, whole.shards_total, whole.partial) == (SHARDS, SHARDS, False)
            # One by one and all at once: the answers stay the same.
            singles = await asyncio.gather(
                *(client.search(query, k=10, list_size=LIST_SIZE) for query in sharded_queries)
            )
            assert np.array_equal(np.stack([one.ids for one in singles]), expected.ids)

    asyncio.run(run())


def test_groups_and_radius_through_ray(
    cluster: Cluster, sharded_path: Path, sharded_queries: np.ndarray
) -> None:
    condition = "price < 0.5"
    request = SearchRequest(
        sharded_queries,
        4,
        (condition,),
        return_metadata=("brand",),
        list_size=LIST_SIZE,
        group_by="uniform10",
        group_size=3,
    )
    expected = local_answer(sharded_path, request).hits
    found = cluster.search(
        sharded_queries,
        4,
        filter=condition,
        list_size=LIST_SIZE,
        return_metadata=["brand"],
        group_by="uniform10",
        group_size=3,
    )
    whole = result_of(local_answer(sharded_path, request), request, 0.0)
    assert isinstance(found, velo.GroupedResult)
    assert found.groups == [[value for value, _ in row] for row in expected.groups or []]
    assert np.array_equal(found.ids, whole.ids)
    # Dictionaries of shards are joined in the order of their answers.
    assert found.to_arrow().schema == whole.to_arrow().schema
    assert found.to_arrow().to_pylist() == whole.to_arrow().to_pylist()
    radius = float(np.median(found.distances[:, 0, 0]))
    near = SearchRequest(sharded_queries, 500, (condition,), list_size=LIST_SIZE, radius=radius)
    whole = result_of(local_answer(sharded_path, near), near, 0.0)
    within = cluster.range_search(sharded_queries, radius, limit=500, filter=condition, list_size=LIST_SIZE)
    assert np.array_equal(within.lims, whole.lims)
    assert np.array_equal(within.ids, whole.ids)
    assert not within.limited.any()


def test_filters_and_metadata_through_ray(
    cluster: Cluster, sharded_path: Path, sharded_queries: np.ndarray
) -> None:
    condition = {"uniform10": {"$in": [2, 5]}}
    filters = tuple(condition if row % 2 else None for row in range(len(sharded_queries)))
    columns = ("uniform10", "brand")
    request = SearchRequest(sharded_queries, 5, filters, list_size=LIST_SIZE, return_metadata=columns)
    expected = local_answer(sharded_path, request).hits

    async def run() -> None:
        async with gateway(cluster) as client:
            answer = await client.search(
                sharded_queries,
                k=5,
                list_size=LIST_SIZE,
                filters=list(filters),
                return_metadata=list(columns),
            )
            assert np.array_equal(answer.ids, expected.ids)
            known = [table.to_pylist() for table in expected.metadata or ()]
            assert [one.to_pylist() for one in answer.metadata] == known
            assert all(row["uniform10"] in (2, 5) for one in answer.metadata[1::2] for row in one.to_pylist())
            with pytest.raises(UnknownColumnError, match="colour"):
                await client.search(sharded_queries, filter={"colour": 1})

    asyncio.run(run())
    with pytest.raises(UnknownColumnError, match="colour"):
        cluster.search(sharded_queries, filter={"colour": 1})
    with pytest.raises(DimensionMismatchError):
        cluster.search(sharded_queries[:, :5])


class Pictures(NamedTuple):
    """A collection with stored vectors and texts, and its actors."""

    vectors: np.ndarray
    path: Path
    cluster: Cluster


@pytest.fixture(scope="module")
def pictures(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pictures]:
    vectors = np.random.default_rng(6).standard_normal((300, 16)).astype(np.float32)
    colors = [f"c{row % 5}" for row in range(300)]
    texts = [f"row n{row} {'moon' if row % 5 == 0 else 'sun'}" for row in range(300)]
    path = velo.build_collection(
        tmp_path_factory.mktemp("pictures") / "pictures.velo",
        vectors,
        shards=2,
        metadata=pa.table({"color": colors, "text": texts}),
        text="text",
        store_vectors=True,
        threads=1,
        calibrate=False,
    )
    with Cluster.start(path, threads=1) as started:
        yield Pictures(vectors, path, started)


def test_vectors_of_hits_through_ray(pictures: Pictures) -> None:
    """A job has the same as a client has of a gateway."""
    vectors, _, cluster = pictures
    options: dict[str, Any] = {"recall": 1.0, "return_vectors": True}

    async def run() -> None:
        async with gateway(cluster) as client:
            for more in ({"k": 5}, {"k": 3, "group_by": "color", "group_size": 2}):
                found = await asyncio.to_thread(cluster.search, vectors[:4], **more, **options)
                asked = await client.search(vectors[:4], **more, **options)
                assert type(found) is type(asked)
                assert found.vectors is not None
                assert asked.vectors is not None
                assert np.array_equal(found.ids, asked.ids)
                assert np.array_equal(found.vectors, asked.vectors)
                assert np.array_equal(found.vectors, vectors[found.ids])
            within = await asyncio.to_thread(cluster.range_search, vectors[:4], 18.0, limit=50, **options)
            assert within.vectors is not None
            assert len(within.ids) > 4
            assert np.array_equal(within.vectors, vectors[within.ids])

    asyncio.run(run())


def test_another_process_finds_running_actors_and_leaves_them_alone(
    cluster: Cluster, sharded_queries: np.ndarray
) -> None:
    expected = cluster.search(sharded_queries, k=10, list_size=LIST_SIZE)
    found = Cluster.connect("sample")
    assert found.collection == cluster.collection
    answer = found.search(sharded_queries, k=10, list_size=LIST_SIZE)
    assert np.array_equal(answer.ids, expected.ids)
    found.stop()
    with pytest.raises(ShuttingDownError):
        found.search(sharded_queries)
    assert cluster.search(sharded_queries, k=10, list_size=LIST_SIZE).shards_answered == SHARDS
    with pytest.raises(UnknownCollectionError, match="nothing"):
        Cluster.connect("nothing")


def test_a_step_of_a_pipeline_asks_the_actors_that_run(cluster: Cluster, sharded_queries: np.ndarray) -> None:
    expected = cluster.search(sharded_queries, k=3, list_size=LIST_SIZE)
    step = ClusterSearch("sample", k=3, list_size=LIST_SIZE)
    batch = step({"vector": sharded_queries, "row": np.arange(len(sharded_queries))})
    assert sorted(batch) == ["distances", "ids", "row", "vector"]
    assert np.array_equal(batch["ids"], expected.ids)
    table = step(pa.table({"vector": sharded_queries.tolist()}))
    assert table.column("ids").to_pylist() == expected.ids.tolist()
    with pytest.raises(DimensionMismatchError):
        step({"vector": sharded_queries[:, :5]})
    step.close()
    assert cluster.search(sharded_queries[:1], k=1).shards_answered == SHARDS
    with pytest.raises(UnknownCollectionError):
        ClusterSearch("nothing")


def test_words_through_ray(pictures: Pictures) -> None:
    vectors, path, cluster = pictures
    how = velo.Weighted(vectors=0.3, words=0.7)
    batch = {"vector": vectors[:3] + np.float32(0.1), "asked": np.array(["moon n7", "n9", "sun"], object)}
    local = VectorSearch(path, k=4, text="asked", fusion=how, threads=1)
    expected = local(batch)
    local.close()
    direct = cluster.search(batch["vector"], 4, text=batch["asked"].tolist(), fusion=how)
    assert direct.scores is not None
    assert np.array_equal(direct.ids, expected["ids"])
    np.testing.assert_allclose(direct.scores, expected["scores"], rtol=1e-6)
    assert cluster.search(None, 1, text=["n7", "n9"]).ids.ravel().tolist() == [7, 9]
    step = ClusterSearch(cluster.collection.name, k=4, text="asked", fusion=how)
    found = step(batch)
    step.close()
    assert np.array_equal(found["ids"], expected["ids"])
    np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-6)


def test_a_job_of_any_size(cluster: Cluster, sharded_queries: np.ndarray) -> None:
    """Larger than one request may be: it goes in several, and comes back as one."""
    small = cluster.search(sharded_queries, k=3, list_size=LIST_SIZE, return_metadata=["brand"])
    times = 12
    large = cluster.search(
        np.tile(sharded_queries, (times, 1)), k=3, list_size=LIST_SIZE, return_metadata=["brand"]
    )
    assert np.array_equal(large.ids, np.tile(small.ids, (times, 1)))
    brands = [one.to_pylist() for one in small.metadata]
    assert [one.to_pylist() for one in large.metadata] == brands * times


def test_a_killed_actor_makes_answers_partial_until_ray_has_restarted_it(
    cluster: Cluster, sharded_path: Path, sharded_queries: np.ndarray
) -> None:
    queries = sharded_queries[:4]
    whole = local_answer(sharded_path, SearchRequest(queries, 10, list_size=LIST_SIZE)).hits.ids

    async def run() -> None:
        async with gateway(cluster) as client:
            assert (await client.search(queries, k=10, list_size=LIST_SIZE)).shards_answered == SHARDS
            ray.kill(cluster.actors[1], no_restart=False)
            seen: list[Any] = []
            end = time.monotonic() + RECOVERY_S
            while time.monotonic() < end:
                answer = await client.search(queries, k=10, list_size=LIST_SIZE)
                seen.append(answer)
                if len(seen) > 1 and answer.shards_answered == SHARDS and seen[-2].shards_answered < SHARDS:
                    break
                await asyncio.sleep(0.02)
            counts = [answer.shards_answered for answer in seen]
            assert set(counts) <= {SHARDS - 1, SHARDS}
            assert SHARDS - 1 in counts, "the death was never noticed"
            for answer in seen:
                assert answer.partial == (answer.shards_answered < SHARDS)
                if answer.partial:
                    assert [one["shard"] for one in answer.failures] == ["1"]
                    # What is there is right: no hit of the dead shard, all others as before.
                    rows = range(ROWS // 2, ROWS)
                    for got, all_hits in zip(answer.ids.tolist(), whole.tolist(), strict=True):
                        kept = [one for one in all_hits if one not in rows]
                        assert got[: len(kept)] == kept
                        assert not set(got) & set(rows)
            assert counts[-1] == SHARDS, "the actor did not come back"
            assert np.array_equal(seen[-1].ids, whole)

    asyncio.run(run())


def test_a_shard_that_is_not_on_its_node_is_a_typed_error(
    local_ray: None, sharded_path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "moved"
    shutil.copytree(sharded_path, copy)
    shutil.rmtree(copy / "shard-00001")
    with pytest.raises(ShardNotHereError, match=r"shard 1 is not on node .*shard-00001"):
        Cluster.start(copy, threads=1)
    # Nothing is left of the attempt: the same name starts once the shard is there.
    shutil.copytree(sharded_path / "shard-00001", copy / "shard-00001")
    with Cluster.start(copy, pin={"0": "label:disks=here"}, threads=1) as cluster:
        assert cluster.search(np.zeros((1, 128)), k=1).shards_answered == SHARDS
        with pytest.raises(ClusterExistsError, match="velo-moved-1-shard-0"):
            Cluster.start(copy, threads=1)


@pytest.mark.parametrize("pin", ["resource:no-such-disk", "label:disks=elsewhere"])
def test_a_pin_that_no_node_has_is_a_typed_error(local_ray: None, sharded_path: Path, pin: str) -> None:
    with pytest.raises(PlacementError, match="did not start within"):
        Cluster.start(sharded_path, name="pinned", pin=pin, start_timeout_s=1.0)
    with pytest.raises(InvalidArgumentError, match="a pin reads"):
        Cluster.start(sharded_path, name="pinned", pin="node:abc")


def editions(folder: Path) -> tuple[Path, Path]:
    """Two builds of the same name: of the second all ids are above a thousand, and it has fewer shards."""
    vectors = np.random.default_rng(3).standard_normal((300, 128)).astype(np.float32)
    first = velo.build_collection(folder / "books.velo", vectors, shards=2, threads=1)
    second = velo.build(folder / "second", vectors, ids=np.arange(1000, 1300), threads=1)
    second.close()
    return first, folder / "second"


@pytest.mark.long(guarded_by="tests/serving/test_ray_end_to_end.py::test_a_gateway_over_actors_publishes")
def test_a_version_is_published_under_load_and_every_answer_has_one(
    local_ray: None, tmp_path: Path, sharded_queries: np.ndarray
) -> None:
    first, second = editions(tmp_path)

    async def run(owner: Cluster) -> None:
        elsewhere = Cluster.connect("books")
        over = asyncio.Event()
        seen: list[set[str]] = []

        async def load(client: Client) -> None:
            while not over.is_set():
                for body in ("json", "arrow"):
                    answer = await client.search(sharded_queries[:8], k=10)
                    assert not answer.partial, (body, answer.failures)
                    seen.append({"new" if one >= 1000 else "old" for row in answer.ids for one in row})
                await asyncio.sleep(0.01)

        async with gateway(owner) as one, gateway(elsewhere) as other:
            loads = [asyncio.create_task(load(client)) for client in (one, other)]
            await asyncio.sleep(0.3)
            # Not the job that started it, but another one.
            await asyncio.to_thread(elsewhere.publish, second, "2026-11")
            await asyncio.sleep(0.2)
            over.set()
            await asyncio.gather(*loads)
            assert all(len(versions) == 1 for versions in seen), "an answer of two versions"
            assert {"old"} in seen
            assert seen[-1] == {"new"}
            assert (await one.info())["version"] == "2026-11"
            # The former actors are gone, and both gateways have left them before.
            assert {place.generation for place in places_of("books")} == {2}
            assert elsewhere.collection.version == "2026-11"
            with pytest.raises(InvalidArgumentError, match="served already"):
                elsewhere.publish(second, "2026-11")
            shutil.copytree(second, tmp_path / "broken")
            (tmp_path / "broken" / "pages.bin").unlink()
            with pytest.raises(VeloError):
                elsewhere.publish(tmp_path / "broken", "2026-12")
            assert {place.generation for place in places_of("books")} == {2}
            assert (await one.search(sharded_queries[0], k=1)).ids[0] >= 1000
            # A replica dies: the other one answers, and no answer is partial.
            victim = (await one.info())["shards"][0]
            os.kill(victim["pid"], signal.SIGKILL)
            for _ in range(40):
                assert not (await one.search(sharded_queries[0], k=1)).partial
                await asyncio.sleep(0.01)
        assert Cluster.connect("books").collection.version == "2026-11"

    with Cluster.start(first, replicas=2) as owner:
        assert owner.search(sharded_queries, k=1).ids.max() < 1000
        asyncio.run(run(owner))
        assert owner.search(sharded_queries, k=1).ids.min() >= 1000, "a job follows, too"
    assert places_of("books") == [], "what others published ends with its owner"


def test_a_gateway_over_actors_publishes(
    local_ray: None, sharded_queries: np.ndarray, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("admin admin-key-0123456789\n")
    dim = sharded_queries.shape[1]
    small: dict[str, Any] = {"calibrate": False, "threads": 1}
    velo.build(tmp_path / "first.velo", np.zeros((200, dim), np.float32), **small).close()
    second = tmp_path / "second.velo"
    velo.build(second, np.zeros((300, dim), np.float32), **small).close()

    async def run(owner: Cluster) -> None:
        async with serving(owner.backend(limits=PATIENT), access=Access(str(keys))) as http:
            http.headers["Authorization"] = "Bearer admin-key-0123456789"
            path = f"/v1/collections/{owner.collection.name}"
            told = await http.post(f"{path}/publish", json={"path": str(second), "version": "two"})
            assert told.status_code == 200, told.text
            assert (told.json()["n"], told.json()["version"]) == (300, "two")
            body = {"vector": sharded_queries[0].tolist(), "k": 1}
            answer = (await http.post(f"{path}/search", json=body)).json()
            assert (answer["version"], answer["shards_answered"]) == ("two", 1)
            gone = await http.post(f"{path}/publish", json={"path": "/nowhere", "version": "three"})
            assert (gone.status_code, gone.json()["error"]["type"]) == (422, "PublicationError")
            assert {place.generation for place in places_of("magazines")} == {2}
            with pytest.raises(
                SupersededError, match="generation 1 of magazines is no longer served"
            ) as caught:
                await owner.locate(Place("magazines", 1, "0", 0))
            assert caught.value.generation == 2

    with Cluster.start(tmp_path / "first.velo", name="magazines", threads=1) as owner:
        asyncio.run(run(owner))


def test_acknowledged_writes_of_actors_survive_a_kill(local_ray: None, tmp_path: Path) -> None:
    vectors = np.random.default_rng(4).standard_normal((60, 8)).astype(np.float32)
    path = velo.build_collection(
        tmp_path / "notes.velo",
        vectors,
        shards=2,
        ids=[f"n{row}" for row in range(60)],
        store_vectors=True,
        threads=1,
    )

    async def run(cluster: Cluster) -> None:
        async with gateway(cluster) as one:
            names = [f"new-{row}" for row in range(20)]
            done = await one.upsert(vectors[:20] + 1, names, request="first")
            assert (done.rows, done.replaced, done.repeated) == (20, 0, False)
            for actor in cluster.actors:
                victim = await actor.health.remote()
                os.kill(victim.pid, signal.SIGKILL)
            end = time.monotonic() + RECOVERY_S
            while True:  # Ray starts them again; the same call is not done twice
                try:
                    again = await one.upsert(vectors[:20] + 1, names, request="first")
                    break
                except VeloError:
                    assert time.monotonic() < end, "the actors did not come back"
                    await asyncio.sleep(0.1)
            assert again.repeated
            found = await one.search(vectors[:20] + 1, k=1, recall=1.0)
            assert [row[0] for row in found.ids.tolist()] == names
            assert (await one.delete([*names, "n1"])).rows == 21
            assert (await one.search(vectors[1], k=1, recall=1.0)).ids[0] != "n1"

    with Cluster.start(path, writable=True, threads=1) as cluster:
        asyncio.run(run(cluster))


@pytest.mark.long(guarded_by="tests/serving/test_ray_end_to_end.py::test_a_gateway_over_actors_publishes")
def test_a_gateway_that_missed_a_publication_asks_ray_and_follows(local_ray: None, tmp_path: Path) -> None:
    vectors = np.random.default_rng(17).standard_normal((400, 16)).astype(np.float32)
    small: dict[str, Any] = {"calibrate": False, "threads": 1}
    velo.build(tmp_path / "first", vectors, **small).close()
    velo.build(tmp_path / "second", vectors, ids=np.arange(1000, 1400), **small).close()

    async def first(backend: Backend) -> int:
        """What a gateway answers that begins only now; the actors that it knows are gone."""
        await backend.start()
        try:
            served = backend.collection()
            end = time.monotonic() + RECOVERY_S
            while served.now.number == 1:
                assert time.monotonic() < end, served.router.shards()
                await asyncio.sleep(0.02)
            answer = await served.router.search(SearchRequest(vectors[[3]], 1, list_size=100))
            assert (answer.shards_answered, served.now.version) == (1, "two")
            return int(answer.hits.ids[0, 0])
        finally:
            await backend.close()

    async def superseded(cluster: Cluster) -> int:
        with pytest.raises(SupersededError, match="generation 1 of papers is no longer served") as caught:
            await cluster.locate(Place("papers", 1, "0", 0))
        return caught.value.generation

    with Cluster.start(tmp_path / "first", name="papers", threads=1) as owner:
        elsewhere = Cluster.connect("papers")
        # One knows handles of actors that will have died, the other must ask for their names.
        late = [owner.backend(limits=PATIENT), elsewhere.backend(limits=PATIENT)]
        owner.publish(tmp_path / "second", "two")
        assert {place.generation for place in places_of("papers")} == {2}
        for cluster, backend in zip((owner, elsewhere), late, strict=True):
            assert asyncio.run(superseded(cluster)) == 2
            assert asyncio.run(first(backend)) == 1003
        elsewhere.stop()


def test_a_shard_is_found_again_without_asking_ray(
    cluster: Cluster, sharded_queries: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        backend = cluster.backend(limits=PATIENT)
        await backend.start()
        router = backend.collection().router
        request = SearchRequest(sharded_queries[:1], 5, timeout_s=20.0)
        assert (await router.search(request)).shards_answered == SHARDS

        async def gone(place: Place) -> Any:
            raise AssertionError(f"Ray is asked for {place}")

        monkeypatch.setattr(cluster, "locate", gone)
        for queue in router._queues:  # a connection that is lost is made again where it was
            queue.channel.reset()
            await queue.probe()
        end = time.monotonic() + RECOVERY_S
        while router.shards_up < SHARDS:
            assert time.monotonic() < end, router.shards()
            await asyncio.sleep(0.02)
        assert (await router.search(request)).shards_answered == SHARDS
        await backend.close()

    asyncio.run(run())


def whole(client: Client, vectors: np.ndarray) -> Any:
    """An answer of both shards: on a busy machine one may be a moment late."""
    end = time.monotonic() + RECOVERY_S
    while (answer := client.search(vectors, k=10, list_size=LIST_SIZE)).shards_answered < 2:
        assert time.monotonic() < end
        time.sleep(0.02)
    return answer


@pytest.mark.parametrize(
    "own",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.long(
                guarded_by="tests/serving/test_ray_end_to_end.py::test_velo_serve_with_ray_survives_a_kill"
            ),
        ),
    ],
)
def test_velo_serve_with_ray_survives_a_kill(own: bool, local_ray: None, tmp_path: Path) -> None:
    """Over a Ray that runs, or one that it starts."""
    vectors = np.random.default_rng(8).standard_normal((300, 16)).astype(np.float32)
    path = velo.build_collection(tmp_path / "films.velo", vectors, shards=2, calibrate=False, threads=1)
    expected = local_answer(path, SearchRequest(vectors, 10, list_size=LIST_SIZE)).hits.ids
    address = ray.get_runtime_context().gcs_address
    served = Served(str(path), "--ray", *(() if own else ("--ray-address", address)), "--threads", "1")
    try:
        with Client(served.url, collection="films", body_format="arrow") as client:
            assert np.array_equal(whole(client, vectors).ids, expected)
            victim = client.info()["shards"][0]
            os.kill(victim["pid"], signal.SIGKILL)
            counts = []
            end = time.monotonic() + RECOVERY_S
            while time.monotonic() < end and counts[-2:] != [1, 2]:
                counts.append(client.search(vectors[:1], k=10, list_size=LIST_SIZE).shards_answered)
                time.sleep(0.02)
            assert counts[-2:] == [1, 2]
            reborn = client.info()["shards"][0]
            assert reborn["pid"] != victim["pid"]
            assert np.array_equal(whole(client, vectors).ids, expected)
    finally:
        code, told = served.stop()
    assert code == 0, told
    assert places_of("films") == [], "its actors end with it"
