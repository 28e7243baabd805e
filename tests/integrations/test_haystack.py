"""Haystack's store and retriever: filters beside Haystack's own, pipelines, errors, missing embeddings."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from haystack import Document, Pipeline
from haystack.dataclasses import ByteStream, SparseEmbedding
from haystack.document_stores.errors import DocumentStoreError, DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy
from haystack.errors import FilterError
from haystack.utils.filters import document_matches_filter

from tests.long import count
from velo.errors import DimensionMismatchError, ReadOnlyError, SearchTimeoutError, VeloError
from velo.integrations.haystack import VeloDocumentStore, VeloEmbeddingRetriever

DIM = 8


@pytest.fixture
def store(tmp_path: Path) -> Iterator[VeloDocumentStore]:
    store = VeloDocumentStore(tmp_path / "store.velo", embedding_dim=DIM, durability="process")
    yield store
    store.close()


def embedded(count: int, seed: int = 0) -> list[list[float]]:
    rows = np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)
    return [list(map(float, row)) for row in rows]


# ---- filters

HOURS = timedelta(hours=1)
VALUES: list[Any] = [None, 0, 1, 2, -5, 2**62, 2**62 + 1, 0.5, 1.0, 2.0, True, False, "cat", "dog", ""]
VALUES += ["2024-01-02", "2024-01-02T03:00:00", "2024-01-02T03:00:00+00:00", "2024-01-02T03:00:00+02:00"]
VALUES += ["2024-01-02T01:00:00Z", "2024-01-02 03:00:00", datetime(2024, 1, 2, 3)]
VALUES += [datetime(2024, 1, 2, 3, tzinfo=timezone(2 * HOURS)), datetime(2024, 1, 2, tzinfo=timezone.utc)]
ODD: list[Any] = [[1, 2], ["cat"], {"y": 1}, [], {}, [1, "cat"], float("nan"), float("inf")]


def holds(filters: dict[str, Any], document: Document) -> bool:
    """What Haystack's own function says; what it refuses to compare does not meet a comparison."""
    if "field" in filters:
        try:
            return document_matches_filter(filters, document)
        except (FilterError, TypeError):
            return False
    found = [holds(one, document) for one in filters["conditions"]]
    return {"AND": all(found), "OR": any(found), "NOT": not all(found)}[filters["operator"]]


def made_filter(rng: random.Random, depth: int) -> dict[str, Any]:
    if depth and rng.random() < 0.6:
        conditions = [made_filter(rng, depth - 1) for _ in range(rng.randrange(0, 4))]
        return {"operator": rng.choice(["AND", "OR", "NOT"]), "conditions": conditions}
    field = rng.choice(["meta.x", "meta.z", "x", "meta.inner.x", "meta.nobody"])
    operator = rng.choice(["==", "!=", ">", ">=", "<", "<=", "in", "not in"])
    if "in" in operator:
        return {"field": field, "operator": operator, "value": rng.choices(VALUES, k=rng.randrange(0, 4))}
    ordered = [one for one in VALUES if not isinstance(one, str) or one.startswith("20")]
    return {
        "field": field,
        "operator": operator,
        "value": rng.choice(VALUES if operator in ("==", "!=") else ordered),
    }


@pytest.mark.parametrize("seed", range(count(1, 3)))
def test_filters_agree_with_those_of_haystack(tmp_path: Path, seed: int) -> None:
    """Random trees over fields with values of all kinds; columns come in any order, some rows in a part."""
    rng = random.Random(seed)
    values = [*VALUES, *ODD] * 2
    rng.shuffle(values)
    documents = [
        Document(id=f"{at:03d}", meta={"x": one, "z": rng.choice(VALUES), "inner": {"x": rng.choice(VALUES)}})
        for at, one in enumerate(values)
    ]
    store = VeloDocumentStore(tmp_path / "s", embedding_dim=DIM, durability="process")
    for start in range(0, len(documents), 5):
        store.write_documents(documents[start : start + 5])
        if start == 30 and store.index is not None:
            store.index.flush()
    met = 0
    for _ in range(400):
        filters = made_filter(rng, 2)
        wanted = [one.id for one in documents if holds(filters, one)]
        assert [one.id for one in store.filter_documents(filters)] == wanted, filters
        assert store.count_documents_by_filter(filters) == len(wanted)
        met += 0 < len(wanted) < len(documents)
    assert met > 100
    store.close()


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"field": "meta.x", "operator": "~", "value": 1}, "'~' is unknown"),
        ({"operator": "XOR", "conditions": []}, "'XOR' is unknown"),
        ({"operator": "AND", "conditions": {}}, "conditions are a list"),
        ({"operator": "AND", "conditions": [1]}, "a filter is a dict"),
        ({"field": 1, "operator": "==", "value": 1}, "a field is a text"),
        ({"field": "meta.x", "operator": "==", "value": [1]}, "single values"),
        ({"field": "meta.x", "operator": "in", "value": [{}]}, "single values"),
        ({"field": "meta.x", "operator": ">", "value": {}}, "has no order"),
        ({"field": "meta.x", "operator": ">", "value": "cat"}, "dates of ISO 8601"),
        ({"field": "embedding", "operator": "==", "value": [1.0]}, "is not compared"),
        ({"field": "content", "operator": ">", "value": "a"}, "has no order"),
        ([1], "a filter is a dict"),
    ],
)
def test_invalid_filters_are_refused(store: VeloDocumentStore, filters: Any, said: str) -> None:
    store.write_documents([Document(content="a", meta={"x": 1})])
    for call in (store.filter_documents, store.delete_by_filter, store.count_documents_by_filter):
        with pytest.raises(FilterError, match=said):
            call(filters)
    with pytest.raises(FilterError, match=said):
        store.update_by_filter(filters, {"x": 2})
    with pytest.raises(FilterError, match=said):
        asyncio.run(store.embedding_retrieval_async([0.5] * DIM, filters))
    assert store.filter_documents()[0].meta == {"x": 1}


def test_a_filter_that_nests_too_deeply(store: VeloDocumentStore) -> None:
    filters: dict[str, Any] = {"field": "meta.x", "operator": "==", "value": 1}
    for _ in range(70):
        filters = {"operator": "NOT", "conditions": [filters]}
    with pytest.raises(FilterError, match="deeper than 64"):
        store.filter_documents(filters)


def test_an_empty_filter_changes_nothing(store: VeloDocumentStore) -> None:
    store.write_documents([Document(content="a")])
    with pytest.raises(FilterError, match="a filter is needed"):
        store.delete_by_filter({})
    with pytest.raises(FilterError, match="a filter is needed"):
        store.update_by_filter({}, {"x": 1})
    assert store.count_documents() == 1


def test_fields_of_the_document_itself(store: VeloDocumentStore) -> None:
    documents = [Document(id="1", content="one"), Document(id="2", embedding=embedded(1)[0])]
    store.write_documents(documents)

    def passing(field: str, operator: str, value: Any) -> list[str]:
        return [
            one.id for one in store.filter_documents({"field": field, "operator": operator, "value": value})
        ]

    assert passing("id", "==", "2") == passing("id", "not in", ["1"]) == ["2"]
    assert passing("content", "==", "one") == passing("content", "!=", None) == ["1"]
    assert passing("content", "in", ["two", None]) == ["2"]
    assert passing("embedding", "==", None) == ["1"]
    assert passing("embedding", "!=", None) == ["2"]


# ---- documents


def test_documents_are_returned_with_all_fields(tmp_path: Path) -> None:
    documents = [
        Document(id="1", content="text", meta={"a": {"b": [1, None, {"c": 2.5}]}, "none": None}),
        Document(id="2", blob=ByteStream(b"\x00\xff", meta={"k": 1}, mime_type="image/png")),
        Document(id="3", sparse_embedding=SparseEmbedding([1, 5], [0.5, 2.0]), embedding=embedded(1)[0]),
        Document(id="4", content="", embedding=[0.0] * DIM, score=0.25),
        Document(
            id="5", content=None, meta={"when": "2024-01-02T03:04:05+02:00", "content": "no text", "id": 7}
        ),
    ]
    store = VeloDocumentStore(tmp_path / "s", embedding_dim=DIM)
    store.write_documents(documents)
    assert store.filter_documents() == documents
    store.close()
    again = VeloDocumentStore(tmp_path / "s")
    assert again.index is not None
    again.index.flush()
    assert again.filter_documents() == documents
    again.close()


def test_no_retriever_finds_documents_without_embeddings(store: VeloDocumentStore) -> None:
    vectors = embedded(3)
    with_one = [Document(id=str(at), embedding=one) for at, one in enumerate(vectors)]
    store.write_documents(with_one)
    assert store.index is not None
    assert "velo_embedded" not in store.index.info()["columns"]
    assert {one.id for one in store.embedding_retrieval(vectors[0])} == {"0", "1", "2"}
    store.write_documents([Document(id=f"bare {at}", content="x") for at in range(20)])
    assert store.embedding_retrieval(vectors[1])[0].id == "1"
    assert {one.id for one in store.embedding_retrieval(vectors[0])} == {"0", "1", "2"}
    found = asyncio.run(
        store.embedding_retrieval_async(vectors[0], {"field": "id", "operator": "!=", "value": "0"})
    )
    assert {one.id for one in found} == {"1", "2"}
    store.write_documents([Document(id="bare 3", embedding=vectors[0])], DuplicatePolicy.OVERWRITE)
    assert {one.id for one in store.embedding_retrieval(vectors[0], top_k=2)} == {"0", "bare 3"}


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([Document(content="a"), Document(content="b", embedding=[1.0])], r"shape \(1,\), and 8 numbers"),
        ([Document(content="a", embedding=[float("nan")] * DIM)], "NaN or an infinity"),
        ([Document(content="a", meta={"x": object()})], "metadata of .* is a object"),
        ([Document(content="a", meta={"velo_text": 1})], "'velo_text' is not a field name"),
    ],
)
@pytest.mark.parametrize("policy", list(DuplicatePolicy))
def test_invalid_documents_are_refused(
    store: VeloDocumentStore, documents: list[Document], said: str, policy: DuplicatePolicy
) -> None:
    store.write_documents([Document(id="1", content="first")])
    with pytest.raises(DocumentStoreError, match=said) as caught:
        store.write_documents([Document(id="2", content="fine"), *documents], policy)
    assert isinstance(caught.value.__cause__, VeloError)
    assert [one.id for one in store.filter_documents()] == ["1"]


def test_policies_over_ids_that_repeat(store: VeloDocumentStore) -> None:
    first, other, second = (Document(id=one[0], content=one) for one in ("1 a", "1 b", "2 c"))
    for policy in (DuplicatePolicy.NONE, DuplicatePolicy.FAIL):
        with pytest.raises(DuplicateDocumentError):
            store.write_documents([second, first, other], policy)
        assert store.count_documents() == 0
    assert store.write_documents([first, other, second], DuplicatePolicy.SKIP) == 2
    assert [one.content for one in store.filter_documents()] == ["1 a", "2 c"]
    assert store.write_documents([other, second], DuplicatePolicy.SKIP) == 0
    assert store.write_documents([first, second, other], DuplicatePolicy.OVERWRITE) == 3
    assert [one.content for one in store.filter_documents()] == ["1 b", "2 c"]
    assert store.write_documents([], DuplicatePolicy.FAIL) == 0


def test_the_first_embeddings_say_the_dimension(tmp_path: Path) -> None:
    store = VeloDocumentStore(tmp_path / "s")
    assert store.filter_documents() == []
    assert store.embedding_retrieval([1.0]) == []
    assert store.get_metadata_fields_info() == {}
    assert store.update_by_filter({"field": "meta.x", "operator": "==", "value": 1}, {"x": 2}) == 0
    with pytest.raises(DocumentStoreError, match="number of dimensions is unknown"):
        store.write_documents([Document(content="a")])
    store.write_documents([Document(content="a"), Document(content="b", embedding=[0.5, 0.5])])
    assert store.index is not None
    assert store.index.dim == 2
    with pytest.raises(DocumentStoreError) as caught:
        store.embedding_retrieval([1.0])
    assert isinstance(caught.value.__cause__, DimensionMismatchError)
    store.close()
    with pytest.raises(DocumentStoreError, match="3 dimensions"):
        VeloDocumentStore(tmp_path / "s", embedding_dim=3).count_documents()


def test_updates_keep_what_they_do_not_name(store: VeloDocumentStore) -> None:
    vectors = embedded(2)
    store.write_documents(
        [
            Document(id="1", content="a", meta={"x": 1, "y": "old", "deep": {"z": 1}}, embedding=vectors[0]),
            Document(id="2", content="b", meta={"x": 2}, blob=ByteStream(b"raw")),
        ]
    )
    assert (
        store.update_by_filter({"field": "meta.x", "operator": ">", "value": 0}, {"y": 5, "new": None}) == 2
    )
    one, two = store.filter_documents()
    assert one == Document(
        id="1", content="a", meta={"x": 1, "y": 5, "deep": {"z": 1}, "new": None}, embedding=vectors[0]
    )
    assert two.meta == {"x": 2, "y": 5, "new": None}
    assert two.blob == ByteStream(b"raw")
    assert two.embedding is None
    assert store.count_documents_by_filter({"field": "meta.y", "operator": "==", "value": "old"}) == 0
    assert store.count_documents_by_filter({"field": "meta.y", "operator": "==", "value": 5}) == 2
    with pytest.raises(DocumentStoreError, match="is a object"):
        store.update_by_filter({"field": "meta.x", "operator": ">", "value": 0}, {"y": object()})
    assert store.filter_documents()[0].meta["y"] == 5


def test_fields_keep_their_values(store: VeloDocumentStore) -> None:
    metas: list[dict[str, Any]] = [
        {"n": 1, "b": True, "t": "x", "deep": {"z": 1}, "l": [1, 2], "id": 3},
        {"n": 0.5, "b": False, "t": "ä", "l": [1, 2], "id": 4},
        {"n": True, "m": 1, "l": ["a"]},
        {"m": "one", "t": "2024-01-02"},
    ]
    store.write_documents([Document(content=str(at), meta=one) for at, one in enumerate(metas)])
    info = {field: one["type"] for field, one in store.get_metadata_fields_info().items()}
    assert info == {
        "n": "keyword",
        "b": "boolean",
        "t": "keyword",
        "deep": "keyword",
        "l": "keyword",
        "m": "keyword",
        "id": "int",
    }
    assert store.get_metadata_field_min_max("n") == {"min": 0.5, "max": 1}
    assert store.get_metadata_field_min_max("meta.t") == {"min": "2024-01-02", "max": "ä"}
    assert store.get_metadata_field_min_max("m") == {"min": None, "max": None}
    assert store.get_metadata_field_min_max("id") == {"min": 3, "max": 4}
    assert store.get_metadata_field_unique_values("l") == ([["a"], [1, 2]], 2)
    assert store.get_metadata_field_unique_values("deep") == ([{"z": 1}], 1)
    assert store.get_metadata_field_unique_values("id") == ([3, 4], 2)
    assert store.count_unique_metadata_by_filter({}, ["n", "meta.l", "nobody"]) == {
        "n": 3,
        "l": 2,
        "nobody": 0,
    }


# ---- retrievers


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_scores(tmp_path: Path, metric: Any) -> None:
    vectors = np.array(embedded(20))
    store = VeloDocumentStore(tmp_path / "s", metric=metric)
    store.write_documents([Document(id=f"{at:02d}", embedding=list(one)) for at, one in enumerate(vectors)])
    query = vectors[3]
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    cosine, product, squared = vectors @ query / lengths, vectors @ query, ((vectors - query) ** 2).sum(1)
    wanted = {"cosine": cosine, "ip": product, "l2": -squared}[metric]
    scaled = {"cosine": (cosine + 1) / 2, "ip": 1 / (1 + np.exp(-product / 100)), "l2": 1 / (1 + squared)}[
        metric
    ]
    found = store.embedding_retrieval(list(query), top_k=20)
    assert [one.id for one in found] == [f"{at:02d}" for at in np.argsort(-wanted)]
    assert [one.score for one in found] == pytest.approx(np.sort(wanted)[::-1], abs=1e-4)
    assert found[0].embedding is None
    found = asyncio.run(
        store.embedding_retrieval_async(list(query), top_k=5, scale_score=True, return_embedding=True)
    )
    assert [one.score for one in found] == pytest.approx(np.sort(scaled)[::-1][:5], abs=1e-4)
    assert found[0].embedding == list(vectors[int(found[0].id)])
    store.close()


def test_a_pipeline_and_its_twin_from_yaml(tmp_path: Path) -> None:
    vectors = embedded(30)
    store = VeloDocumentStore(tmp_path / "s", metric="l2", memory="50%", filterable=["n"])
    store.write_documents(
        [Document(id=f"{at:02d}", embedding=one, meta={"n": at}) for at, one in enumerate(vectors)]
    )
    below_9 = {"field": "meta.n", "operator": "<", "value": 9}
    retriever = VeloEmbeddingRetriever(
        store, filters=below_9, top_k=3, filter_policy=FilterPolicy.MERGE, recall=0.99, exact=True
    )
    pipeline = Pipeline()
    pipeline.add_component("retriever", retriever)
    asked = {"retriever": {"query_embedding": vectors[12]}}
    found = pipeline.run(asked)["retriever"]["documents"]
    assert len(found) == 3
    assert all(one.meta["n"] < 9 for one in found)
    not_7 = {"field": "id", "operator": "!=", "value": "07"}
    merged = retriever.run(vectors[12], filters=not_7, top_k=10)["documents"]
    assert {one.meta["n"] for one in merged} == {0, 1, 2, 3, 4, 5, 6, 8}
    with pytest.raises(FilterError, match="'m' is not filterable"):
        retriever.run(vectors[12], filters={"field": "meta.m", "operator": "==", "value": 1})
    assert asyncio.run(retriever.run_async(vectors[12]))["documents"] == found
    text = pipeline.dumps()
    store.close()
    twin = Pipeline.loads(text, allowed_modules=["velo.integrations.haystack"])
    assert twin.run(asked)["retriever"]["documents"] == found
    assert twin.dumps() == text
    twin.get_component("retriever").document_store.close()
    with pytest.raises(ValueError, match="top_k"):
        VeloEmbeddingRetriever(store, top_k=0)
    with pytest.raises(ValueError, match="VeloDocumentStore"):
        VeloEmbeddingRetriever("store")  # type: ignore[arg-type]


def test_several_stores_write_to_an_index_and_others_read(tmp_path: Path) -> None:
    store = VeloDocumentStore(tmp_path / "s", embedding_dim=DIM)
    store.write_documents([Document(id="1")])
    other = VeloDocumentStore(tmp_path / "s")
    assert other.count_documents() == 1
    other.write_documents([Document(id="2")])
    assert store.count_documents() == 2
    other.delete_documents(["2"])
    other.close()
    reader = VeloDocumentStore(tmp_path / "s", writable=False)
    assert reader.count_documents() == 1
    with pytest.raises(DocumentStoreError) as caught:
        reader.delete_documents(["1"])
    assert isinstance(caught.value.__cause__, ReadOnlyError)
    reader.close()
    store.close()
    assert store.count_documents() == 1  # opened again
    store.close()
    with pytest.raises(DocumentStoreError, match="does not exist"):
        VeloDocumentStore(tmp_path / "nothing", writable=False).count_documents()


def test_a_search_that_takes_too_long(store: VeloDocumentStore) -> None:
    store.write_documents([Document(id=str(at), embedding=one) for at, one in enumerate(embedded(500))])
    assert store.index is not None
    store.index.flush()
    retriever = VeloEmbeddingRetriever(store, timeout_s=1e-7)
    with pytest.raises(DocumentStoreError) as caught:
        retriever.run([0.5] * DIM)
    assert isinstance(caught.value.__cause__, SearchTimeoutError)
