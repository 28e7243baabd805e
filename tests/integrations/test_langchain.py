"""LangChain's store: filters as velo's, metadata of any shape, errors, several ways to open."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.exceptions import LangChainException

import velo
from velo.errors import DimensionMismatchError, FilterError, FilterTypeError, ReadOnlyError
from velo.integrations.documents import most_diverse
from velo.integrations.langchain import VeloStoreError, VeloVectorStore

EMBEDDING = DeterministicFakeEmbedding(size=6)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[VeloVectorStore]:
    with VeloVectorStore(EMBEDDING, tmp_path / "store.velo", durability="process") as store:
        yield store


def texts_of(found: list[Document]) -> set[str]:
    return {one.page_content for one in found}


def passing(store: VeloVectorStore, condition: Any) -> set[str]:
    return texts_of(store.similarity_search("x", k=10_000, filter=condition))


# ---- metadata


def test_metadata_comes_back_as_it_was_given(store: VeloVectorStore) -> None:
    shapes: list[dict[str, Any]] = [
        {},
        {"a": None, "b": {"c": {"d": [1, "x", None, {"e": 2.5}]}, "empty": {}}, "list": []},
        {"when": dt.datetime(2024, 5, 6, 7, 8, 9, 10), "day": dt.date(2024, 5, 6), "tuple": (1, "a")},
        {"zone": dt.datetime(2024, 5, 6, tzinfo=dt.timezone(dt.timedelta(hours=2)))},
        {"id": uuid.UUID(int=7), "raw": b"\x00\xff", "big": 2**80, "inner": {1: "one"}},
        {"velo:is": ["datetime", "no date"], "mixed": [True, 1, "1"]},
        {"nan": float("inf"), "text": "ä\n\u2028", "id": 5},
    ]
    ids = store.add_texts([str(at) for at in range(len(shapes))], shapes)
    assert [one.metadata for one in store.get_by_ids(ids)] == shapes
    path = store.index.path  # type: ignore[union-attr]
    store.close()
    with VeloVectorStore(EMBEDDING, path) as again:
        found = again.get_by_ids(ids)
    assert [one.metadata for one in found] == shapes
    assert [type(one.metadata.get("tuple")) for one in found][2] is tuple


def test_fields_are_columns_of_their_own_that_velo_filters_itself(store: VeloVectorStore) -> None:
    store.add_texts(["a", "b"], [{"year": 2020, "tags": ["x"]}, {"year": 2021, "shape": {"x": 1.5}}])
    index = store.index
    assert index is not None
    assert index.count("year > 2020") == 1
    assert index.count({"shape.x": 1.5}) == 1
    assert index.rows(velo.col("tags").contains_any(["x"]))["velo_text"].to_pylist() == ["a"]


def test_fields_that_are_not_filterable_are_kept_and_not_filtered(tmp_path: Path) -> None:
    with VeloVectorStore(EMBEDDING, tmp_path / "s", filterable=["year"]) as store:
        ids = store.add_texts(["a"], [{"year": 2020, "note": "n"}])
        assert store.index is not None
        assert store.index.info()["columns"] == ["velo_text", "velo_metadata", "year"]
        assert store.get_by_ids(ids)[0].metadata == {"year": 2020, "note": "n"}
        assert passing(store, {"year": 2020}) == {"a"}
        with pytest.raises(VeloStoreError, match="'note' is not filterable"):
            store.similarity_search("x", filter={"note": "n"})


def test_too_many_fields_are_refused_and_nothing_is_written(store: VeloVectorStore) -> None:
    store.add_texts(["a"], [{"x": 1}])
    with pytest.raises(VeloStoreError, match=r"more than 512 columns.*filterable"):
        store.add_texts(["b"], [{f"field-{at}": 1 for at in range(600)}])
    assert store.index is not None
    assert len(store.index) == 1
    assert store.index.info()["columns"] == ["velo_text", "velo_metadata", "x"]


# ---- filters


VALUES: list[dict[str, Any]] = [
    {},
    {"x": None},
    {"x": 1},
    {"x": 2},
    {"x": 1.5},
    {"x": 2.0},
    {"x": True},
    {"x": False},
    {"x": "1"},
    {"x": "2024-01-02"},
    {"x": "cat"},
    {"x": [1, 2]},
    {"x": ["cat", "dog"]},
    {"x": [1.5]},
    {"x": {"y": 1}},
    {"x": [1, "cat"]},
    {"x": []},
    {"x": dt.date(2024, 1, 2)},
    {"x": dt.datetime(2024, 1, 2, 3)},
    {"x": dt.datetime(2024, 1, 2, 3, tzinfo=dt.timezone.utc)},
]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def meets(value: Any, operator: str, operand: Any) -> bool:
    """What MongoDB means, but that a bool is no number, and a text that is a date may meet one."""
    if isinstance(value, list):
        kinds = {type(one) for one in value}
        if kinds == {str} or kinds <= {int, float}:
            return any(meets(one, operator, operand) for one in value)
        return False
    if isinstance(value, dt.date):
        value = moment_of(value)
        if not isinstance(operand, dt.date):
            try:
                operand = dt.datetime.fromisoformat(operand)
            except (TypeError, ValueError):
                return False
        operand = moment_of(operand)
    elif isinstance(value, bool) or isinstance(operand, bool):
        if not (isinstance(value, bool) and isinstance(operand, bool)):
            return False
    elif not (is_number(value) and is_number(operand)) and not (
        isinstance(value, str) and isinstance(operand, str)
    ):
        return False
    if operator == "$eq":
        return bool(value == operand)
    return bool({"$lt": value < operand, "$lte": value <= operand, "$gt": value > operand}[operator])


def moment_of(value: dt.date) -> dt.datetime:
    if not isinstance(value, dt.datetime):
        value = dt.datetime(value.year, value.month, value.day)
    return value if value.tzinfo else value.replace(tzinfo=dt.timezone.utc)


OPERANDS: list[Any] = [1, 2, 1.5, 2.0, True, False, "1", "cat", "2024-01-02", dt.date(2024, 1, 2)]
OPERANDS += [dt.datetime(2024, 1, 2, 3), dt.datetime(2024, 1, 2, 3, tzinfo=dt.timezone.utc)]


@pytest.mark.parametrize("operator", ["$eq", "$lt", "$lte", "$gt"])
def test_a_field_with_values_of_all_kinds(tmp_path: Path, operator: str) -> None:
    """In whatever order the kinds came; negated, with the missing ones."""
    for seed in range(3):
        values = list(VALUES)
        random.Random(seed).shuffle(values)
        with VeloVectorStore(EMBEDDING, tmp_path / f"s{seed}", durability="process") as store:
            for at, one in enumerate(values):  # one call each: columns come one after the other
                store.add_texts([str(at)], [one])
            for operand in OPERANDS:
                if isinstance(operand, bool) and operator != "$eq":
                    continue  # bools have no order
                wanted = {str(at) for at, one in enumerate(values) if meets(one.get("x"), operator, operand)}
                everything = {str(at) for at in range(len(values))}
                there = {str(at) for at, one in enumerate(values) if one.get("x") is not None}
                assert passing(store, {"x": {operator: operand}}) == wanted, operand
                assert passing(store, {"x": {"$not": {operator: operand}}}) == everything - wanted, operand
                if operator == "$eq":
                    assert passing(store, velo.col("x") == operand) == wanted
                    assert passing(store, ~(velo.col("x") == operand)) == there - wanted, operand
                    assert passing(store, {"x": {"$in": [operand, "zebra"]}}) == wanted, operand
            assert passing(store, {"x": {"$exists": True}}) == there
            assert passing(store, velo.col("x").is_null()) == everything - there


def test_filters_of_every_dress(store: VeloVectorStore) -> None:
    documents = [
        Document(id="1", page_content="one", metadata={"year": 2020, "tags": ["a", "b"], "sold": True}),
        Document(id="2", page_content="two", metadata={"year": 2021, "tags": ["b"], "name": "bolt"}),
        Document(id="3", page_content="three", metadata={"author": {"name": "ann"}, "tags": [], "year": 0.5}),
    ]
    store.add_documents(documents)
    cases: list[tuple[Any, set[str]]] = [
        ({"year": {"$gte": 2021}}, {"two"}),
        ({"year": {"$between": [0.1, 2020]}}, {"one", "three"}),
        ("year > 2020 OR author.name = 'ann'", {"two", "three"}),
        ('{"name": {"$starts_with": "bo"}}', {"two"}),
        (velo.col("name").like("%ol_"), {"two"}),
        (velo.col("tags").contains_any(["a"]) | velo.ids(["3"]), {"one", "three"}),
        ({"tags": {"$all": ["a", "b"]}}, {"one"}),
        ({"tags": {"$size": 1}}, {"two"}),
        ({"tags": {"$elemMatch": {"$ne": "a", "$gte": "a"}}}, {"one", "two"}),
        (velo.col("sold"), {"one"}),
        ({"author": {"$exists": True}}, {"three"}),
        ({"nobody": 1}, set()),
        ({"nobody": {"$ne": 1}}, {"one", "two", "three"}),
        ({"type": "eq", "key": "year", "value": 2020}, {"one"}),
        ({"velo_text": {"$like": "t%"}}, {"two", "three"}),
    ]
    for condition, wanted in cases:
        assert passing(store, condition) == wanted, condition
        assert texts_of(store.max_marginal_relevance_search("x", k=3, filter=condition)) == wanted
        found = asyncio.run(store.asimilarity_search("x", k=3, filter=condition))
        assert texts_of(found) == wanted


@pytest.mark.parametrize(
    ("condition", "cause"),
    [
        ({"year": {"$regex": "2"}}, FilterError),
        ({"year": {"$gte": "x"}}, FilterTypeError),
        ({"year": {"$in": ["x"]}}, FilterTypeError),
        ("year >", FilterError),
        (lambda document: True, FilterError),
        (7, FilterError),
    ],
)
def test_invalid_filters_are_refused(store: VeloVectorStore, condition: Any, cause: type[Exception]) -> None:
    store.add_texts(["a"], [{"year": 1}])
    with pytest.raises(VeloStoreError) as caught:
        store.similarity_search("x", filter=condition)
    assert isinstance(caught.value.__cause__, cause)
    assert isinstance(caught.value, LangChainException)
    assert "filter" in str(caught.value) or "$" in str(caught.value)
    with pytest.raises(VeloStoreError):
        store.delete(filter=condition)
    assert store.index is not None
    assert len(store.index) == 1


# ---- what is refused


class Lying(DeterministicFakeEmbedding):
    """Vectors of another length, or none, for some texts."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        made: dict[str, Any] = {"short": [1.0], "nan": [float("nan")] * 6, "words": ["a"] * 6}
        return [made.get(one, [0.5] * 6) for one in texts if one != "nothing"]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["fine", "short"], r"shape \(1,\), and 6 numbers"),
        (["fine", "nan"], "NaN or an infinity"),
        (["fine", "words"], "not a list of numbers"),
        (["fine", "nothing"], "1 for 2 texts"),
    ],
)
def test_invalid_embeddings_are_refused(tmp_path: Path, texts: list[str], said: str) -> None:
    with VeloVectorStore(Lying(size=6), tmp_path / "s") as store:
        store.add_texts(["first"], ids=["1"])
        with pytest.raises(VeloStoreError, match=said):
            store.add_texts(texts, ids=["1", "2"])
        assert [one.page_content for one in store.get_by_ids(["1", "2"])] == ["first"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"metadatas": [{}]}, "metadatas: 1 for 2 texts"),
        ({"ids": ["1"]}, "ids: 1 for 2 texts"),
        ({"ids": ["1", ""]}, "an id is a text"),
        ({"ids": ["1", 2]}, "an id is a text"),
        ({"metadatas": [{}, {"a": {"b": [object()]}}]}, r"a\.b\[0\] is a object"),
        ({"metadatas": [{}, {"velo_text": 1}]}, "'velo_text' is not a field name"),
        ({"metadatas": [{}, {"a": "\ud800"}]}, "UTF-8"),
        ({"batch_size": 7}, "no argument 'batch_size'"),
    ],
)
def test_invalid_documents_are_refused(store: VeloVectorStore, more: dict[str, Any], said: str) -> None:
    store.add_texts(["first"], ids=["1"])
    with pytest.raises(VeloStoreError, match=said):
        store.add_texts(["a", "b"], **more)
    assert store.index is not None
    assert len(store.index) == 1
    assert store.index.info()["columns"] == ["velo_text", "velo_metadata"]


def test_invalid_searches_are_refused(store: VeloVectorStore) -> None:
    with pytest.raises(VeloStoreError, match="k is a number"):
        store.similarity_search("x", k=-1)
    store.add_texts(["a"])
    with pytest.raises(VeloStoreError) as caught:
        store.similarity_search_by_vector([1.0, 2.0])
    assert isinstance(caught.value.__cause__, DimensionMismatchError)
    with pytest.raises(VeloStoreError, match="'score_threshold'"):
        store.similarity_search("x", score_threshold=0.5)
    with pytest.raises(VeloStoreError, match="lambda_mult"):
        store.max_marginal_relevance_search("x", lambda_mult=2.0)
    assert store.similarity_search("x", k=0) == []
    assert len(store.similarity_search("x", recall=0.99, timeout_s=5)) == 1


def test_existing_folders_are_handled(tmp_path: Path) -> None:
    with VeloVectorStore(EMBEDDING, tmp_path / "s", dim=6) as store:
        store.add_texts(["a"], ids=["1"])
        with VeloVectorStore(EMBEDDING, tmp_path / "s") as other:
            other.add_texts(["c"], [{"year": 4}], ids=["3"])
        assert passing(store, {"year": 4}) == {"c"}
        reader = VeloVectorStore(EMBEDDING, tmp_path / "s", writable=False)
        with pytest.raises(VeloStoreError) as caught:
            reader.add_texts(["b"], ids=["2"])
        assert isinstance(caught.value.__cause__, ReadOnlyError)
        store.add_texts(["b"], [{"year": 3}], ids=["2"])
        assert passing(reader, {"year": 3}) == {"b"}
        reader.close()
    with pytest.raises(VeloStoreError, match="4 dimensions"):
        VeloVectorStore(EMBEDDING, tmp_path / "s", dim=4)
    with pytest.raises(VeloStoreError, match="path or an open index"):
        VeloVectorStore(EMBEDDING)
    with pytest.raises(VeloStoreError, match="does not exist"):
        VeloVectorStore(EMBEDDING, tmp_path / "nothing", writable=False)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(VeloStoreError, match="no index"):
        VeloVectorStore(EMBEDDING, tmp_path / "full")
    velo.build(tmp_path / "other.velo", np.eye(6, dtype=np.float32)).close()
    with pytest.raises(VeloStoreError, match="not written by an integration"):
        VeloVectorStore(EMBEDDING, tmp_path / "other.velo")


def test_an_index_that_is_open_already(tmp_path: Path) -> None:
    with VeloVectorStore(EMBEDDING, tmp_path / "s") as store:
        store.add_texts(["a", "b"], [{"year": 1}, {"year": 2}])
    with velo.open(tmp_path / "s", unknown_columns="missing") as index:
        store = VeloVectorStore(EMBEDDING, index=index)
        assert passing(store, {"year": 2, "nobody": {"$ne": 3}}) == {"b"}
    with pytest.raises(VeloStoreError, match="closed"):
        store.similarity_search("x")


# ---- searches


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_scores_are_velos_distances_and_relevance_is_1_at_best(tmp_path: Path, metric: Any) -> None:
    with VeloVectorStore(EMBEDDING, tmp_path / "s", metric=metric) as store:
        store.add_texts(["a", "b", "c"])
        query = np.array(EMBEDDING.embed_query("b"))
        other = np.array(EMBEDDING.embed_query("a"))
        lengths = np.linalg.norm(query) * np.linalg.norm(other)
        scores = {one.page_content: score for one, score in store.similarity_search_with_score("b", k=3)}
        wanted = {
            "cosine": 1 - query @ other / lengths,
            "l2": ((query - other) ** 2).sum(),
            "ip": -query @ other,
        }
        assert scores["a"] == pytest.approx(wanted[metric], rel=1e-4, abs=1e-5)
        score = store._select_relevance_score_fn()
        assert score(scores["b"]) == pytest.approx(query @ query if metric == "ip" else 1, abs=1e-4)
        if metric != "ip":
            found = store.similarity_search_with_relevance_scores("b", k=1)
            assert found[0][0].page_content == "b"


def naive_choice(query: Any, vectors: Any, k: int, share: float) -> list[int]:
    def cosine(a: Any, b: Any) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    chosen: list[int] = []
    while len(chosen) < min(k, len(vectors)):
        left = [at for at in range(len(vectors)) if at not in chosen]
        gains = [
            share * cosine(query, vectors[at])
            - (1 - share) * max((cosine(vectors[at], vectors[one]) for one in chosen), default=0.0)
            for at in left
        ]
        if not chosen:
            gains = [cosine(query, vectors[at]) for at in left]
        chosen.append(left[int(np.argmax(gains))])
    return chosen


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_most_diverse_is_the_definition(share: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        query, vectors = rng.normal(size=5), rng.normal(size=(9, 5))
        assert most_diverse(query, vectors, 4, share) == naive_choice(query, vectors, 4, share)
    assert most_diverse(query, vectors, 99, share) == naive_choice(query, vectors, 99, share)


def test_maximal_marginal_relevance_leaves_copies_out(store: VeloVectorStore) -> None:
    store.add_texts(["a"] * 5 + ["b"], ids=[str(at) for at in range(6)])
    assert [one.page_content for one in store.similarity_search("a", k=2)] == ["a", "a"]
    found = store.max_marginal_relevance_search("a", k=2, fetch_k=6, lambda_mult=0.4)
    assert [one.page_content for one in found] == ["a", "b"]
    assert found == asyncio.run(store.amax_marginal_relevance_search("a", k=2, fetch_k=6, lambda_mult=0.4))
    retriever = store.as_retriever(
        search_type="mmr", search_kwargs={"k": 2, "fetch_k": 6, "lambda_mult": 0.4}
    )
    assert texts_of(retriever.invoke("a")) == {"a", "b"}


def test_the_last_document_with_an_id_wins(store: VeloVectorStore) -> None:
    assert store.add_texts(["a", "b"], [{"x": 1}, {"y": "z"}], ids=["1", "1"]) == ["1", "1"]
    assert store.get_by_ids(["2", "1", "1"]) == [Document(id="1", page_content="b", metadata={"y": "z"})] * 2
    store.add_texts(["c"], ids=["1"])
    assert store.get_by_ids(["1"]) == [Document(id="1", page_content="c")]
    assert passing(store, {"y": "z"}) == set()


def test_delete_by_filter_and_of_everything(store: VeloVectorStore) -> None:
    assert store.delete() is True
    store.add_texts(["a", "b", "c"], [{"x": 1}, {"x": 2}, {}])
    store.delete(filter={"x": {"$gt": 1}})
    assert passing(store, None) == {"a", "c"}
    with pytest.raises(VeloStoreError, match="one of them"):
        store.delete(["1"], filter={"x": 1})
    store.delete([])
    assert passing(store, None) == {"a", "c"}
    asyncio.run(store.adelete())
    assert passing(store, None) == set()
    store.add_texts(["d"])
    assert passing(store, None) == {"d"}


def test_many_documents_over_parts_deletes_and_a_merge(tmp_path: Path) -> None:
    with VeloVectorStore(EMBEDDING, tmp_path / "s", durability="process") as store:
        for start in range(0, 3000, 500):
            numbers = range(start, start + 500)
            store.add_texts(
                [f"text {one}" for one in numbers],
                [{"n": one, f"mod{start % 1000}": one % 7} for one in numbers],
                ids=[str(one) for one in numbers],
            )
            assert store.index is not None
            store.index.flush()
        store.delete(filter={"mod0": {"$in": [1, 2]}})
        store.index.optimize()
        wanted = {f"text {one}" for one in range(3000) if (one // 500) % 2 or one % 7 not in (1, 2)}
        assert passing(store, None) == wanted
        assert passing(store, {"n": {"$lt": 20}, "mod0": {"$gte": 5}}) == {
            f"text {one}" for one in range(20) if one % 7 >= 5
        }
        found = store.similarity_search("text 2777", k=1, exact=True)
        assert found[0].metadata == {"n": 2777, "mod500": 2777 % 7}


def test_stores_that_are_made_of_texts(tmp_path: Path) -> None:
    store = VeloVectorStore.from_texts(["a"], EMBEDDING, [{"x": 1}], ids=["1"], path=tmp_path / "s")
    store.close()
    again = asyncio.run(
        VeloVectorStore.afrom_documents([Document(id="2", page_content="b")], EMBEDDING, path=tmp_path / "s")
    )
    assert [one.page_content for one in again.get_by_ids(["1", "2"])] == ["a", "b"]
    again.close()
