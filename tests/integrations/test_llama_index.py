"""LlamaIndex's store beside its own simple one: filters, queries, deletes; nodes as wholes; errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core import MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.schema import (
    Document,
    ImageNode,
    IndexNode,
    NodeRelationship,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)
from llama_index.core.vector_stores.utils import build_metadata_filter_fn, node_to_metadata_dict

import velo
from tests.long import count
from velo.errors import DimensionMismatchError, FilterError, InvalidArgumentError, ReadOnlyError, VeloError
from velo.integrations.documents import most_diverse
from velo.integrations.llama_index import VeloVectorStore

DIM = 6


@pytest.fixture
def store(tmp_path: Path) -> Iterator[VeloVectorStore]:
    store = VeloVectorStore(tmp_path / "store.velo", durability="process")
    yield store
    store.close()


def nodes_of(metadatas: list[dict[str, Any]], seed: int = 0) -> list[TextNode]:
    vectors = np.random.default_rng(seed).normal(size=(len(metadatas), DIM)).astype(np.float32)
    return [
        TextNode(
            id_=f"{at:03d}",
            text=f"text {at}",
            metadata=one,
            embedding=list(map(float, vector)),
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"doc-{at % 3}")},
        )
        for at, (one, vector) in enumerate(zip(metadatas, vectors, strict=True))
    ]


# ---- filters

SINGLE: list[Any] = [1, 2, -3, 0.5, 1.0, True, False, "cat", "Cats", "a%b", "a_b", "a\\b", "", "2024-01-02"]
VALUES: list[Any] = [None, *SINGLE, ["cat", "dog"], ["dog"], [1, 2], [0.5, 1], [], {"y": 1}]
OPERANDS: list[Any] = [1, 2, 0.5, 1.0, 7, "cat", "at", "a%b", "a_", "\\", "", "CAT", "2024"]
LISTS: list[Any] = [["cat"], ["cat", "dog"], [1, 2], [0.5, 1.0], [7], ["x", "a%b"], ["a", "b"]]


def made_filter(rng: random.Random) -> MetadataFilter:
    operator = rng.choice(list(FilterOperator))
    if operator in (FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL):
        value: Any = rng.choice(LISTS)
    elif operator in (FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE):
        value = rng.choice([one for one in OPERANDS if isinstance(one, str)])
    else:
        value = rng.choice(OPERANDS)
    return MetadataFilter(key=rng.choice(["x", "z", "nobody"]), operator=operator, value=value)


def meets(one: MetadataFilter | MetadataFilters, metadata: dict[str, Any]) -> bool:
    """What LlamaIndex's own function says; what it cannot compare does not meet a comparison."""
    if isinstance(one, MetadataFilter):
        try:
            return build_metadata_filter_fn(lambda _: metadata, MetadataFilters(filters=[one]))("")
        except TypeError:
            return False
    found = [meets(inside, metadata) for inside in one.filters]
    if not found:
        return True
    return {"and": all(found), "or": any(found), "not": not any(found)}[(one.condition or "and").value]


@pytest.mark.parametrize("seed", range(count(1, 3)))
def test_filters_agree_with_those_of_llama_index(store: VeloVectorStore, seed: int) -> None:
    rng = random.Random(seed)
    values = VALUES * 2
    rng.shuffle(values)
    nodes = nodes_of([{"x": one, "z": rng.choice(VALUES)} for one in values])
    for start in range(0, len(nodes), 4):
        store.add(nodes[start : start + 4])
        if start == 20 and store.index is not None:
            store.index.flush()
    met = 0
    for _ in range(500):
        conditions = [FilterCondition.AND, FilterCondition.OR, FilterCondition.NOT]
        filters = MetadataFilters(
            filters=[made_filter(rng) for _ in range(rng.randrange(0, 4))], condition=rng.choice(conditions)
        )
        if rng.random() < 0.3:
            filters = MetadataFilters(filters=[filters, made_filter(rng)], condition=rng.choice(conditions))
        wanted = [one.node_id for one in nodes if meets(filters, one.metadata)]
        assert [one.node_id for one in store.get_nodes(filters=filters)] == wanted, filters
        met += 0 < len(wanted) < len(nodes)
    assert met > 150


@pytest.mark.parametrize(
    ("operator", "value", "said"),
    [
        (FilterOperator.EQ, ["cat"], "one value"),
        (FilterOperator.IN, "cat", "takes a list"),
        (FilterOperator.ANY, 1, "takes a list"),
        (FilterOperator.GT, ["cat"], "a number or a text"),
        (FilterOperator.GT, None, "a number or a text"),
        (FilterOperator.TEXT_MATCH, 5, "takes a text"),
        (FilterOperator.CONTAINS, ["a"], "one value"),
    ],
)
def test_invalid_filters_are_refused(store: VeloVectorStore, operator: Any, value: Any, said: str) -> None:
    store.add(nodes_of([{"x": 1}]))
    filters = MetadataFilters(filters=[MetadataFilter(key="x", operator=operator, value=value)])
    for call in (lambda: store.get_nodes(filters=filters), lambda: store.delete_nodes(filters=filters)):
        with pytest.raises(FilterError, match=said) as caught:
            call()
        assert isinstance(caught.value, ValueError)
    with pytest.raises(FilterError, match=said):
        asyncio.run(store.aquery(VectorStoreQuery([0.5] * DIM, filters=filters)))
    with pytest.raises(FilterError, match="filters are MetadataFilters"):
        store.get_nodes(filters={"x": 1})  # type: ignore[arg-type]
    assert len(store.get_nodes()) == 1


# ---- nodes


def test_nodes_are_returned_whole(tmp_path: Path) -> None:
    vector = [0.5] * DIM
    nodes = [
        TextNode(id_="1", text="äöü\n", metadata={"a": {"b": [1, None]}}, embedding=vector),
        IndexNode(id_="2", text="index", index_id="x", embedding=vector),
        ImageNode(id_="3", text="image", image="aGk=", embedding=vector),
        TextNode(
            id_="4",
            text="",
            embedding=vector,
            excluded_llm_metadata_keys=["a"],
            start_char_idx=3,
            relationships={
                NodeRelationship.SOURCE: RelatedNodeInfo(node_id="doc", metadata={"k": 1}),
                NodeRelationship.NEXT: RelatedNodeInfo(node_id="5"),
            },
        ),
    ]
    store = VeloVectorStore(tmp_path / "s")
    assert store.get_nodes() == []
    assert store.add(nodes) == ["1", "2", "3", "4"]
    store.close()
    again = VeloVectorStore(tmp_path / "s")
    for one, other in zip(again.get_nodes(), nodes, strict=True):
        assert type(one) is type(other)
        assert one.to_dict() == other.to_dict()
    found = again.get_nodes(["4", "nobody", "1"])
    assert [one.node_id for one in found] == ["4", "1"]
    assert asyncio.run(again.aget_nodes(["4"])) == found[:1]
    again.close()


def test_queries_are_those_of_the_simple_store(store: VeloVectorStore) -> None:
    nodes = nodes_of([{"n": at} for at in range(50)])
    simple = SimpleVectorStore()
    simple.add(nodes)
    asyncio.run(store.async_add(nodes))
    above = MetadataFilters(filters=[MetadataFilter(key="n", operator=FilterOperator.GTE, value=20)])
    for extra in ({}, {"filters": above}, {"node_ids": ["003", "030", "031"]}):
        for seed in range(5):
            vector = list(map(float, np.random.default_rng(seed).normal(size=DIM)))
            query = VectorStoreQuery(vector, similarity_top_k=7, **extra)
            wanted, found = simple.query(query), store.query(query)
            assert found.ids == wanted.ids
            assert found.similarities == pytest.approx(wanted.similarities, abs=1e-4)
            assert [one.node_id for one in found.nodes or []] == found.ids
            assert asyncio.run(store.aquery(query)).ids == found.ids
            query = VectorStoreQuery(vector, similarity_top_k=5, mode=VectorStoreQueryMode.MMR, **extra)
            nearest = simple.query(VectorStoreQuery(vector, similarity_top_k=12, **extra)).ids or []
            vectors = np.array([nodes[int(one)].embedding for one in nearest])
            chosen = [nearest[at] for at in most_diverse(vector, vectors, 5, 0.4)]
            assert store.query(query, mmr_threshold=0.4, mmr_prefetch_k=12).ids == chosen
            assert asyncio.run(store.aquery(query, mmr_threshold=0.4, mmr_prefetch_k=12)).ids == chosen
    of_doc = store.query(VectorStoreQuery([0.5] * DIM, similarity_top_k=50, doc_ids=["doc-1", "doc-9"]))
    assert sorted(of_doc.ids or []) == [one.node_id for one in nodes if one.ref_doc_id == "doc-1"]
    exact = store.query(VectorStoreQuery(nodes[3].embedding, similarity_top_k=1), exact=True, recall=0.99)
    assert exact.similarities == pytest.approx([1.0])


def test_deletes(store: VeloVectorStore) -> None:
    store.delete("doc-1")
    store.clear()
    nodes = nodes_of([{"n": at} for at in range(9)])
    store.add(nodes)
    store.delete("doc-1")
    assert [one.node_id for one in store.get_nodes()] == ["000", "002", "003", "005", "006", "008"]
    below = MetadataFilters(filters=[MetadataFilter(key="n", operator=FilterOperator.LT, value=4)])
    store.delete_nodes(["000", "008", "nobody"], below)
    assert [one.node_id for one in store.get_nodes()] == ["002", "003", "005", "006", "008"]
    store.delete_nodes(["008"])
    asyncio.run(store.adelete_nodes(filters=below))
    assert [one.node_id for one in store.get_nodes()] == ["005", "006"]
    with pytest.raises(InvalidArgumentError, match="node_ids or filters"):
        store.delete_nodes()
    store.delete_nodes([])
    asyncio.run(store.adelete("doc-2"))
    assert [one.node_id for one in store.get_nodes()] == ["006"]
    asyncio.run(store.aclear())
    assert store.get_nodes() == []


def test_a_node_takes_the_place_of_the_one_that_has_its_id(store: VeloVectorStore) -> None:
    first, second = nodes_of([{"n": 1}, {"m": "x"}])
    second.id_ = first.id_
    store.add([first])
    store.add([first, second])
    (found,) = store.get_nodes()
    assert found.metadata == {"m": "x"}
    assert found.get_content() == "text 1"


# ---- what is refused


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"embedding": None}, ValueError, "embedding not set"),
        ({"embedding": [1.0]}, DimensionMismatchError, r"shape \(1,\), and 6 numbers"),
        ({"embedding": [float("nan")] * DIM}, VeloError, "NaN or an infinity"),
        ({"metadata": {"velo_text": 1}}, InvalidArgumentError, "'velo_text' is not a field name"),
    ],
)
def test_invalid_nodes_are_refused(
    store: VeloVectorStore, change: dict[str, Any], kind: type[Exception], said: str
) -> None:
    first, second, third = nodes_of([{"n": 1}, {"n": 2}, {"n": 3}])
    store.add([first])
    for name, value in change.items():
        setattr(third, name, value)
    with pytest.raises(kind, match=said):
        store.add([second, third])
    assert [one.node_id for one in store.get_nodes()] == ["000"]


def test_invalid_queries_are_refused(store: VeloVectorStore) -> None:
    store.add(nodes_of([{"n": 1}]))
    with pytest.raises(DimensionMismatchError):
        store.query(VectorStoreQuery([1.0]))
    with pytest.raises(ValueError, match="no embedding"):
        store.query(VectorStoreQuery(None))
    with pytest.raises(ValueError, match="DEFAULT and MMR"):
        store.query(VectorStoreQuery([0.5] * DIM, mode=VectorStoreQueryMode.SPARSE))
    with pytest.raises(ValueError, match="lambda_mult"):
        store.query(VectorStoreQuery([0.5] * DIM, mode=VectorStoreQueryMode.MMR), mmr_threshold=3)


def test_fields_that_are_not_filterable(tmp_path: Path) -> None:
    store = VeloVectorStore(tmp_path / "s", filterable=["n"])
    store.add(nodes_of([{"n": 1, "m": 2}, {"n": 2, "m": 2}]))
    assert [one.metadata for one in store.get_nodes()] == [{"n": 1, "m": 2}, {"n": 2, "m": 2}]
    with pytest.raises(FilterError, match="'m' is not filterable"):
        store.get_nodes(filters=MetadataFilters(filters=[MetadataFilter(key="m", value=2)]))
    store.delete("doc-1")
    assert [one.node_id for one in store.get_nodes()] == ["000"]
    store.close()


def test_a_reader(tmp_path: Path) -> None:
    store = VeloVectorStore(tmp_path / "s", dim=DIM)
    reader = VeloVectorStore(tmp_path / "s", writable=False)
    store.add(nodes_of([{"n": 1}]))
    assert len(reader.get_nodes()) == 1
    with pytest.raises(ReadOnlyError):
        reader.clear()
    reader.close()
    store.close()
    with velo.open(tmp_path / "s", unknown_columns="missing") as index:
        assert len(VeloVectorStore(index=index).get_nodes()) == 1
    with pytest.raises(InvalidArgumentError, match="path or an open index"):
        VeloVectorStore()


def test_an_index_of_llama_index_over_it(tmp_path: Path) -> None:
    store = VeloVectorStore(tmp_path / "s")
    embedding = MockEmbedding(embed_dim=DIM)
    documents = [Document(id_=f"d{at}", text=f"document {at}", metadata={"n": at}) for at in range(5)]
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex.from_documents(documents, storage_context=context, embed_model=embedding)
    assert len(store.get_nodes()) == 5
    index.delete_ref_doc("d3")
    index.insert(Document(id_="d9", text="document 9", metadata={"n": 9}))
    store.close()
    again = VeloVectorStore(tmp_path / "s")
    index = VectorStoreIndex.from_vector_store(again, embed_model=embedding)
    above = MetadataFilters(filters=[MetadataFilter(key="n", operator=FilterOperator.GT, value=2)])
    found = index.as_retriever(similarity_top_k=9, filters=above).retrieve("x")
    assert {one.node.metadata["n"] for one in found} == {4, 9}
    assert {one.node.get_content() for one in found} == {"document 4", "document 9"}
    found = asyncio.run(index.as_retriever(similarity_top_k=9).aretrieve("x"))
    assert len(found) == 5
    fields = node_to_metadata_dict(found[0].node)
    assert fields["ref_doc_id"] in {"d0", "d1", "d2", "d4", "d9"}
    again.close()
