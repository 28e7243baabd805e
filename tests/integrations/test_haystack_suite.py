"""Haystack's own suites for document stores, base and extended, blocking and awaited."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from haystack.dataclasses import Document
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.testing import document_store as blocking
from haystack.testing import document_store_async as awaited

from velo.integrations.haystack import VeloDocumentStore


class OverVelo:
    """The store under test, and what its documents are equal to."""

    @pytest.fixture
    def document_store(self, tmp_path: Path) -> Iterator[VeloDocumentStore]:
        store = VeloDocumentStore(tmp_path / "store.velo", embedding_dim=768, durability="process")
        yield store
        store.close()

    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]) -> None:
        """They are equal, embeddings in float32; they come in the order of their ids."""

        def key(document: Document) -> str:
            return document.id

        for one, other in zip(sorted(received, key=key), sorted(expected, key=key), strict=True):
            given = other.to_dict(flatten=False)
            if other.embedding is not None:
                given["embedding"] = np.float32(other.embedding).tolist()
            assert one.to_dict(flatten=False) == given
        assert [one.id for one in received] == sorted(one.id for one in received)


class TestBlocking(
    OverVelo,
    blocking.DocumentStoreBaseExtendedTests,
    blocking.CountDocumentsByFilterTest,
    blocking.CountUniqueMetadataByFilterTest,
    blocking.GetMetadataFieldsInfoTest,
    blocking.GetMetadataFieldMinMaxTest,
    blocking.GetMetadataFieldUniqueValuesTest,
):
    def test_write_documents(self, document_store: VeloDocumentStore) -> None:  # type: ignore[override]
        documents = [Document(content="one"), Document(content="two", embedding=[0.5] * 768)]
        assert document_store.write_documents(documents) == 2
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([Document(content="three"), documents[0]])
        self.assert_documents_are_equal(document_store.filter_documents(), documents)


class TestAwaited(
    OverVelo,
    awaited.CountDocumentsAsyncTest,
    awaited.CountDocumentsByFilterAsyncTest,
    awaited.CountUniqueMetadataByFilterAsyncTest,
    awaited.DeleteAllAsyncTest,
    awaited.DeleteByFilterAsyncTest,
    awaited.DeleteDocumentsAsyncTest,
    awaited.FilterDocumentsAsyncTest,
    awaited.GetMetadataFieldMinMaxAsyncTest,
    awaited.GetMetadataFieldUniqueValuesAsyncTest,
    awaited.GetMetadataFieldsInfoAsyncTest,
    awaited.UpdateByFilterAsyncTest,
    awaited.WriteDocumentsAsyncTest,
):
    async def test_write_documents_async(self, document_store: VeloDocumentStore) -> None:  # type: ignore[override]
        documents = [Document(content="one"), Document(content="two", embedding=[0.5] * 768)]
        assert await document_store.write_documents_async(documents) == 2
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async([Document(content="three"), documents[0]])
        self.assert_documents_are_equal(await document_store.filter_documents_async(), documents)
