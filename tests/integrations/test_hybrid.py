"""Retrievers by words and vectors, of LangChain and of Haystack."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from haystack import Document as HaystackDocument
from haystack.document_stores.errors import DocumentStoreError
from langchain_core.embeddings import DeterministicFakeEmbedding

import velo
from velo.integrations.haystack import VeloDocumentStore, VeloHybridRetriever
from velo.integrations.langchain import VeloHybridRetriever as LangChainRetriever
from velo.integrations.langchain import VeloStoreError, VeloVectorStore

EMBEDDING = DeterministicFakeEmbedding(size=6)
#: Only words can find the one: these vectors know nothing of texts.
TEXTS = [f"row {row} of many" for row in range(60)] + ["the needle, x-500"]
WORDS = velo.RRF(vectors=0.0)


def test_langchain(tmp_path: Path) -> None:
    with VeloVectorStore(EMBEDDING, tmp_path / "a.velo", durability="process") as store:
        assert store.hybrid_search("needle") == []
        store.add_texts(TEXTS, [{"year": 2000 + at % 3} for at in range(len(TEXTS))])
        found = store.hybrid_search_with_score("X-500, a needle", 3, fusion="weighted")
        assert [one.page_content for one, _ in found].count(TEXTS[-1]) == 1
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
        assert asyncio.run(store.ahybrid_search_with_score("X-500, a needle", 3, fusion="weighted")) == found
        assert [one.page_content for one in store.hybrid_search("needle", 2, fusion=WORDS)] == TEXTS[-1:]
        assert store.hybrid_search("needle", 2, fusion=WORDS, filter="year = 2001") == []
        assert len(store.hybrid_search("needle", 2, filter="year = 2001", recall=0.9)) == 2
        with pytest.raises(VeloStoreError, match="fusion"):
            store.hybrid_search("needle", fusion="best")  # type: ignore[arg-type]
        with pytest.raises(VeloStoreError, match="no argument"):
            store.hybrid_search("needle", nearest=True)
        retriever = LangChainRetriever(
            store=store, k=1, fusion=WORDS, search_kwargs={"filter": {"year": {"$gte": 2000}}}
        )
        assert retriever.invoke("needle")[0].page_content == TEXTS[-1]
        assert asyncio.run(retriever.ainvoke("needle"))[0].page_content == TEXTS[-1]


def test_haystack(tmp_path: Path) -> None:
    store = VeloDocumentStore(tmp_path / "a.velo", durability="process")
    vectors = np.random.default_rng(0).normal(size=(len(TEXTS), 6)).tolist()
    store.write_documents(
        [
            HaystackDocument(content=text, embedding=vector, meta={"year": 2000 + at % 3})
            for at, (text, vector) in enumerate(zip(TEXTS, vectors, strict=True))
        ]
    )
    retriever = VeloHybridRetriever(store, top_k=2, vectors_weight=0.0, return_embedding=True)
    found = retriever.run("where is the needle?", vectors[0])["documents"]
    assert found[0].content == TEXTS[-1]
    assert found[0].embedding == pytest.approx(vectors[-1])
    assert found[0].score is not None
    assert found[0].score > 0
    again = asyncio.run(retriever.run_async("where is the needle?", vectors[0]))["documents"]
    assert [one.id for one in again] == [one.id for one in found]
    year = {"field": "meta.year", "operator": "==", "value": 2001}
    assert all(one.content != TEXTS[-1] for one in retriever.run("needle", vectors[0], year)["documents"])
    both = VeloHybridRetriever(store, fusion="weighted", words_weight=3.0)
    assert both.run("needle", vectors[0], top_k=1)["documents"][0].content == TEXTS[-1]
    twin = VeloHybridRetriever.from_dict(both.to_dict())
    assert twin.to_dict() == both.to_dict()
    twin.document_store.close()
    for wrong in ({"top_k": 0}, {"fusion": "best"}, {"document_store": None}):
        with pytest.raises(ValueError, match="must be"):
            VeloHybridRetriever(**{"document_store": store, **wrong})  # type: ignore[arg-type]
    with pytest.raises(DocumentStoreError):
        both.run("x" * 70_000, vectors[0])
    store.close()
