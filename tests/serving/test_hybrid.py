"""Words and vectors over HTTP: what shards find becomes one list, and says what it scored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.serving.exact_gateway import asked, serving
from velo.errors import InvalidArgumentError, UnsupportedError, VeloError
from velo.results import fused
from velo_serving import VectorSearch, open_local_backend
from velo_serving.routing import job as job_module
from velo_serving.routing.job import JOB_LIMITS, JobSearches

ROWS, DIM, SHARDS, K = 400, 8, 2, 6
VOCABULARY = ["red", "green", "blue", "boat", "house", "moon", "sun", "sea"]
EXACT: dict[str, Any] = {"exact": True, "recall": 1.0}


def rows() -> tuple[np.ndarray, list[str]]:
    random = np.random.default_rng(6)
    texts = [
        " ".join([*random.choice(VOCABULARY, int(random.integers(1, 6))), *["more"] * (row % 90)])
        for row in range(ROWS)
    ]
    return random.normal(size=(ROWS, DIM)).astype(np.float32), texts


@pytest.fixture(scope="module", params=["numbers", "names"])
def sharded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    vectors, texts = rows()
    return velo.build_collection(
        tmp_path_factory.mktemp(request.param) / "c.velo",
        vectors,
        shards=SHARDS,
        ids=None if request.param == "numbers" else [f"n{row}" for row in range(ROWS)],
        metadata=pa.table({"text": texts, "number": range(ROWS)}),
        text="text",
        store_vectors=True,
        threads=1,
        calibrate=False,
    )


def ask(path: Path, *arguments: Any, body_format: Any = "json", **options: Any) -> Any:
    # The machine may be busy: an answer is whole, or an error.
    options = {"allow_partial": False, "timeout_s": 20, **options}
    backend = open_local_backend(path, threads=1)
    return asked(backend, "search", *arguments, client={"body_format": body_format}, **options)


def fused_by_hand(path: Path, query: Any, text: str, how: Any, condition: str | None = None) -> Any:
    """Ids and scores of what vectors of the whole and words of the shards find."""
    depth = how.depth_of(K)
    with velo.open(path) as whole:
        near = whole.search(query, depth, filter=condition, **EXACT)
    words = best_of_shards(path, text, depth, filter=condition)
    known = list(dict.fromkeys([*near.ids.tolist(), *(one for _, one in words)]))
    numbers, points = fused(
        how,
        np.array([known.index(one) for one in near.ids.tolist()]),
        near.distances,
        np.array([known.index(one) for _, one in words], np.int64),
        np.array([score for score, _ in words]),
    )
    return [known[number] for number in numbers[:K].tolist()], points[:K]


def best_of_shards(path: Path, text: str, k: int, **how: Any) -> list[tuple[float, Any]]:
    """What the shards find by words alone, best first."""
    found = []
    for number in range(SHARDS):
        with velo.open(path / f"shard-{number:05d}") as shard:
            one = shard.search(None, k, text=text, **how)
            assert one.scores is not None
            found += zip(one.scores[: one.counts[0]].tolist(), one.ids.tolist(), strict=False)
    return sorted(found, key=lambda hit: (-hit[0], hit[1]))[:k]


def test_words_alone(sharded: Path) -> None:
    found = ask(sharded, None, K, text="red moon", return_metadata=["text"])
    wanted = best_of_shards(sharded, "red moon", K)
    assert found.ids.tolist() == [one for _, one in wanted]
    np.testing.assert_allclose(found.scores, [score for score, _ in wanted], rtol=1e-5)
    assert np.isinf(found.distances).all()
    assert all("red" in one or "moon" in one for one in found.metadata["text"].to_pylist())
    several = ask(sharded, None, K, text=["red moon", "nothing of it"], filter="number < 300")
    assert several.counts.tolist() == [K, 0]
    wanted = best_of_shards(sharded, "red moon", K, filter="number < 300")
    assert several.ids[0].tolist() == [one for _, one in wanted]
    assert (several.scores[1] == 0).all()


@pytest.mark.parametrize(
    ("fusion", "condition"),
    [
        ("rrf", None),
        ("weighted", "number >= 100"),
        (velo.RRF(words=3.0, constant=5.0, depth=40), "number >= 100"),
        (velo.Weighted(vectors=0.2, words=0.8), None),
        (velo.RRF(vectors=0.0), None),
        (velo.Weighted(words=0.0, depth=7), "number >= 100"),
    ],
    ids=str,
)
def test_vectors_and_words_are_fused_into_one_list(sharded: Path, fusion: Any, condition: str | None) -> None:
    vectors, _ = rows()
    query, text = vectors[3] + np.float32(0.2), "blue boat sea"
    found = ask(
        sharded, query, K, text=text, fusion=fusion, filter=condition, return_metadata=["number"], **EXACT
    )
    how = {"rrf": velo.RRF(), "weighted": velo.Weighted()}.get(fusion, fusion)
    ids, points = fused_by_hand(sharded, query, text, how, condition)
    assert found.ids.tolist() == ids
    np.testing.assert_allclose(found.scores, points, rtol=1e-4)
    with velo.open(sharded) as whole:
        # Whoever found them, hits have the distances of their vectors.
        alone = whole.search(query, K, candidates=found.ids.tolist(), **EXACT)
    distance_of = dict(zip(alone.ids.tolist(), alone.distances.tolist(), strict=True))
    np.testing.assert_allclose(found.distances, [distance_of[one] for one in found.ids.tolist()], rtol=1e-4)
    assert [str(one).lstrip("n") for one in found.ids] == [
        str(one) for one in found.metadata["number"].to_pylist()
    ]


async def test_forms_of_answers(sharded: Path) -> None:
    vectors, _ = rows()
    asked: dict[str, Any] = {"vectors": vectors[:2].tolist(), "text": ["red", "moon"], "k": 4}

    async with serving(open_local_backend(sharded, threads=1)) as client:
        path = "/v1/search"
        plain = (await client.post(path, json=asked)).json()
        assert [len(row) for row in plain["scores"]] == [4, 4]
        arrow = await client.post(path, json=asked, headers={"Accept": "application/vnd.apache.arrow.stream"})
        table = pa.ipc.open_stream(arrow.content).read_all()
        np.testing.assert_allclose(
            table["score"].to_pylist(), [one for row in plain["scores"] for one in row], rtol=1e-6
        )
        for wrong in (
            {"text": ["one"]},
            {"text": "x" * 70_000},
            {"text": 7},
            {"fusion": "best"},
            {"fusion": 7},
            {"fusion": {"words": 2.0}},
            {"fusion": {"method": "best"}},
            {"fusion": {"method": "weighted", "words": -1}},
            {"fusion": {"method": "weighted", "words": 0, "vectors": 0}},
            {"fusion": {"method": "weighted", "constant": 60}},
            {"fusion": {"method": "rrf", "weight": 1}},
            {"fusion": {"method": "rrf", "depth": 3}},
            {"fusion": {"method": "rrf", "depth": 100_000}},
            {"text": None, "fusion": {"method": "rrf"}},
            {"vectors": None, "fusion": {"method": "rrf"}},
            {"text": None, "fusion": "rrf"},
            {"group_by": "number"},
            {"vectors": None, "text": None},
            {"vectors": None, "fusion": "rrf"},
            {"k": None, "radius": 1.0},
        ):
            body = {name: one for name, one in {**asked, **wrong}.items() if one is not None}
            refused = await client.post(path, json=body)
            assert refused.status_code in (400, 422), (wrong, refused.text)
        body = {**asked, "fusion": {"method": "weighted", "words": -1}}
        told = (await client.post(path, json=body)).json()["error"]
        assert told["position"]["path"] == "fusion.words"
        assert "a number >= 0" in told["message"]
        weighted = {**asked, "fusion": {"method": "weighted", "words": 0.9, "vectors": 0.1}}
        assert (await client.post(path, json=weighted)).json()["scores"][0][0] <= 1


def test_rows_as_queries_and_vectors_of_hits(sharded: Path) -> None:
    vectors, _ = rows()
    with velo.open(sharded) as whole:
        one = whole.rows(limit=1, filter="number = 9")["id"][0].as_py()
    found = ask(
        sharded, None, 3, ids=one, text="red", fusion="rrf", return_vectors=True, return_metadata=["number"]
    )
    assert found.ids[0] == one
    np.testing.assert_array_equal(found.vectors, vectors[found.metadata["number"].to_pylist()])
    by_arrow = ask(sharded, vectors[9], 3, text="red", body_format="arrow")
    assert by_arrow.ids.tolist() == found.ids.tolist()


def test_a_collection_without_words(tmp_path: Path) -> None:
    vectors, _ = rows()
    path = velo.build_collection(tmp_path / "c", vectors, shards=2, threads=1, calibrate=False)
    for queries in (None, vectors[0]):
        with pytest.raises(UnsupportedError):
            ask(path, queries, 3, text="red")
    with pytest.raises((InvalidArgumentError, VeloError)):
        ask(path, vectors[0], 3, fusion="rrf")


def test_the_client_refuses_an_invalid_fusion(sharded: Path) -> None:
    vectors, _ = rows()
    for wrong in ("best", 7, {"method": "rrf"}):
        with pytest.raises(InvalidArgumentError, match="fusion is 'rrf', 'weighted'"):
            ask(sharded, vectors[0], 3, text="red", fusion=wrong)


@pytest.fixture
def fusion(sharded: Path) -> Any:
    """One of each collection."""
    return None if sharded.parent.name.startswith("numbers") else velo.Weighted(vectors=0.3, words=0.7)


@pytest.fixture
def job(sharded: Path) -> Iterator[JobSearches]:
    """What a cluster does, over shards of this process."""
    backend = open_local_backend(sharded, threads=1, limits=JOB_LIMITS)
    made = JobSearches("hybrid", backend.collection)
    yield made
    made.end_searches()
    asyncio.run(backend.close())


def test_a_job(sharded: Path, job: JobSearches, fusion: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "_QUERIES_A_REQUEST", 2)  # a text goes with its query
    vectors, _ = rows()
    texts = ["red moon", "blue boat sea", "sun", "more red", "nothing of it"]
    queries = vectors[:5] + np.float32(0.1)
    found = job.search(queries, K, text=texts, fusion=fusion, return_metadata=["number"], **EXACT)
    for row, text in enumerate(texts):
        ids, points = fused_by_hand(sharded, queries[row], text, fusion or velo.RRF())
        assert found.ids[row].tolist() == ids
        np.testing.assert_allclose(found.scores[row], points, rtol=1e-4)
    words = job.search(None, K, text=texts)
    for row, text in enumerate(texts):
        wanted = [one for _, one in best_of_shards(sharded, text, K)]
        assert words.ids[row, : words.counts[row]].tolist() == wanted
    assert job.search(None, K, text="red moon", filter="number < 300").counts.tolist() == [K]
    refusals: list[tuple[Any, dict[str, Any]]] = [
        ("text", {"text": texts[:2]}),
        ("text", {"text": 7}),
        ("fusion", {"fusion": "rrf"}),
        ("fusion", {"text": "red", "fusion": "best"}),
        ("depth", {"text": "red", "fusion": velo.RRF(depth=2)}),
        ("group_by", {"text": "red", "group_by": "number"}),
    ]
    for argument, wrong in refusals:
        with pytest.raises(InvalidArgumentError) as told:
            job.search(queries, K, **wrong)
        assert told.value.argument == argument
    with pytest.raises(InvalidArgumentError):
        job.search(None, K, text=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        job.search(None, K, text="red", fusion="rrf")


def test_a_step_of_a_pipeline(sharded: Path, fusion: Any) -> None:
    vectors, _ = rows()
    texts = ["red moon", "blue boat sea", "nothing of it"]
    queries = vectors[:3] + np.float32(0.1)
    condition = {"number": {"$gte": 100}}
    step = VectorSearch(
        sharded, k=K, column="v", text="asked", fusion=fusion, filter=condition, threads=1, **EXACT
    )
    batch = step({"v": queries, "asked": np.array(texts, object)})
    assert list(batch) == ["v", "asked", "ids", "distances", "scores"]
    for row, text in enumerate(texts):
        ids, points = fused_by_hand(sharded, queries[row], text, fusion or velo.RRF(), "number >= 100")
        assert list(batch["ids"][row]) == ids
        np.testing.assert_allclose(batch["scores"][row], points, rtol=1e-4)
    assert np.isfinite(batch["distances"]).all()
    table = step(pa.table({"v": queries.tolist(), "asked": texts}))
    assert table["ids"].to_pylist() == [list(one) for one in batch["ids"]]
    np.testing.assert_allclose(table["scores"].to_pylist(), batch["scores"], rtol=1e-6)
    nothing = step({"v": np.zeros((0, DIM), np.float32), "asked": np.zeros(0, object)})
    assert nothing["scores"].shape == (0, K)
    with pytest.raises(InvalidArgumentError, match="no column 'asked'"):
        step({"v": queries})
    with pytest.raises(InvalidArgumentError, match="text is a str"):
        step({"v": queries, "asked": np.arange(3)})
    step.close()
    for argument, wrong in (
        ("fusion", {"fusion": "rrf"}),
        ("depth", {"text": "t", "fusion": velo.RRF(depth=1)}),
    ):
        with pytest.raises(InvalidArgumentError) as told:
            VectorSearch(sharded, k=K, **wrong)  # type: ignore[arg-type]
        assert told.value.argument == argument
