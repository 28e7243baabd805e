"""LangChain's own suite for vector stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_tests.integration_tests.vectorstores import EMBEDDING_SIZE, VectorStoreIntegrationTests

from velo.integrations.langchain import VeloVectorStore


class TestMadeByItsFirstDocuments(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Iterator[VeloVectorStore]:  # type: ignore[override]
        with VeloVectorStore(self.get_embeddings(), tmp_path / "store.velo") as store:
            yield store


class TestMadeBeforehand(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Iterator[VeloVectorStore]:  # type: ignore[override]
        with VeloVectorStore(
            self.get_embeddings(), tmp_path / "store.velo", dim=EMBEDDING_SIZE, metric="l2"
        ) as store:
            yield store
