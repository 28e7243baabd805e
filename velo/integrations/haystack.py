"""Haystack's document store and retriever over an index of velo: ``pip install 'veloann[haystack]'``."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow.compute as pc

import velo
from velo.errors import DuplicateIdError, MissingDependencyError, VeloError
from velo.errors import FilterError as VeloFilterError
from velo.integrations.documents import KEPT, Documents, Found, awaited, documented_by
from velo.integrations.documents import Document as Written
from velo.integrations.values import decoded
from velo.types import FusionName, MetricName, PathLike

if TYPE_CHECKING:
    from typing_extensions import Self

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.dataclasses import ByteStream, SparseEmbedding
    from haystack.document_stores.errors import DocumentStoreError, DuplicateDocumentError
    from haystack.document_stores.types import DuplicatePolicy, FilterPolicy, apply_filter_policy
    from haystack.errors import FilterError

    from velo.integrations.haystack_filters import bare, condition_of, condition_to_change
except ImportError as error:
    raise MissingDependencyError("Haystack is not installed: pip install 'veloann[haystack]'") from error

__all__ = ["VeloDocumentStore", "VeloEmbeddingRetriever", "VeloHybridRetriever"]

Answer = TypeVar("Answer")

#: Divisor of inner products before scaling, as in Haystack's in-memory store.
_SCALED_BY: Final = 100.0
#: Kinds of single values, which have a column that says all of them.
_SINGLE: Final = frozenset(("bool", "int", "float", "text", "time", "instant"))


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except VeloFilterError as error:
        raise FilterError(str(error)) from error
    except DuplicateIdError as error:
        raise DuplicateDocumentError(str(error)) from error
    except VeloError as error:
        raise DocumentStoreError(str(error)) from error


class VeloDocumentStore:
    """A document store in a folder, opened by its first call and created with the first documents.

    Documents come back as they were written, embeddings in float32. Those without an embedding are kept and
    filtered like all others, and no retriever finds them. The index answers filters; none is evaluated in
    Python.

    Parameters
    ----------
    path : path
        The folder of the index.
    embedding_dim : int, optional
        Dimensions of an index that is to be made. Without it the first embeddings say so.
    metric : {"cosine", "l2", "ip"}
        Of an index that is to be made.
    filterable : list of str, optional
        The fields of ``meta`` that filters may ask for, where there are more than are worth a column each;
        all without it.
    writable : bool
        False: open an index to read; processes may write to it meanwhile.
    options :
        What :func:`velo.open` takes: memory, threads, durability, merge_memory, and so on.

    Raises
    ------
    DocumentStoreError
        As all methods: velo refused; the error says what and why, and nothing was written. A filter that is
        none is a ``haystack.errors.FilterError``.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        embedding_dim: int | None = None,
        metric: MetricName = "cosine",
        filterable: Sequence[str] | None = None,
        writable: bool = True,
        **options: Any,
    ) -> None:
        self._path = str(Path(path))
        self._embedding_dim = embedding_dim
        self._metric = metric
        self._filterable = filterable
        self._writable = writable
        self._options = options
        self._opening = threading.Lock()
        self._opened: Documents | None = None

    def _documents(self) -> Documents:
        with self._opening:
            if self._opened is None:
                self._opened = Documents(
                    self._path,
                    dim=self._embedding_dim,
                    metric=self._metric,
                    filterable=self._filterable,
                    dates_in_texts=True,
                    writable=self._writable,
                    options=self._options,
                )
            return self._opened

    @property
    def index(self) -> velo.Index | None:
        """The index; None before the first documents came."""
        with _errors():
            return self._documents().index

    def close(self) -> None:
        """Close the index; the next call opens it again."""
        with self._opening:
            if self._opened is not None:
                self._opened.close()
            self._opened = None

    def to_dict(self) -> dict[str, Any]:
        """Write the store, its path and options, as a dict.

        Returns
        -------
        dict
        """
        return dict(
            default_to_dict(
                self,
                path=self._path,
                embedding_dim=self._embedding_dim,
                metric=self._metric,
                filterable=None if self._filterable is None else list(self._filterable),
                writable=self._writable,
                **self._options,
            )
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> VeloDocumentStore:
        """Read a store from a dict.

        Parameters
        ----------
        data : dict
            What :meth:`to_dict` wrote.

        Returns
        -------
        VeloDocumentStore
        """
        store: VeloDocumentStore = default_from_dict(cls, data)
        return store

    # ---- writes

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Write documents, all of them or none.

        Parameters
        ----------
        documents : list of Document
        policy : DuplicatePolicy
            What becomes of a document whose id is there. Without one it is as with FAIL.

        Returns
        -------
        int
            How many were written.

        Raises
        ------
        DuplicateDocumentError
            With FAIL, an id that is there, or twice in the call.
        ValueError
            Something is no document.
        """
        given: Any = documents
        if not isinstance(given, list) or not all(isinstance(one, Document) for one in given):
            raise ValueError("write_documents takes a list of haystack.Document")
        with _errors():
            store = self._documents()
            rows = [_written(one) for one in documents]
            with store.writing:
                if policy == DuplicatePolicy.SKIP:
                    first = {one.id: one for one in reversed(rows)}
                    there = {one.id for one in store.get(first)}
                    rows = [one for one in rows if one.id not in there and first[one.id] is one]
                store.write(rows, upsert=policy == DuplicatePolicy.OVERWRITE)
        return len(rows)

    write_documents_async = awaited(write_documents)
    """As ``write_documents``, without blocking the event loop."""

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents by id; ids that no document has are no error.

        Parameters
        ----------
        document_ids : list of str
        """
        with _errors():
            self._documents().delete(document_ids)

    delete_documents_async = awaited(delete_documents)
    """As ``delete_documents``, without blocking the event loop."""

    def delete_all_documents(self, recreate_index: bool = False) -> None:
        """Delete all documents.

        Parameters
        ----------
        recreate_index : bool
            Give back their room on disk now, instead of in the background.
        """
        with _errors():
            store = self._documents()
            store.clear()
            if recreate_index and store.index is not None:
                store.index.optimize()

    delete_all_documents_async = awaited(delete_all_documents)
    """As ``delete_all_documents``, without blocking the event loop."""

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that pass a filter.

        Parameters
        ----------
        filters : dict

        Returns
        -------
        int
            How many there were.
        """
        with _errors():
            store = self._documents()
            return store.delete(condition=condition_to_change(filters, store.columns()))

    delete_by_filter_async = awaited(delete_by_filter)
    """As ``delete_by_filter``, without blocking the event loop."""

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set fields of the documents that pass a filter; their other fields stay.

        Parameters
        ----------
        filters : dict
        meta : dict

        Returns
        -------
        int
            How many there were.
        """
        with _errors():
            store = self._documents()
            with store.writing:
                changed = []
                for one in store.all(condition_to_change(filters, store.columns())):
                    fields = {**one.kept["meta"], **meta}
                    changed.append((one.id, {**one.kept, "meta": fields}, fields))
                return store.change(changed)

    update_by_filter_async = awaited(update_by_filter)
    """As ``update_by_filter``, without blocking the event loop."""

    # ---- lookups

    def count_documents(self) -> int:
        """Count all documents.

        Returns
        -------
        int
        """
        with _errors():
            return self._documents().count()

    count_documents_async = awaited(count_documents)
    """As ``count_documents``, without blocking the event loop."""

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """Count the documents that pass a filter.

        Parameters
        ----------
        filters : dict

        Returns
        -------
        int
        """
        with _errors():
            store = self._documents()
            return store.count(condition_of(filters, store.columns()))

    count_documents_by_filter_async = awaited(count_documents_by_filter)
    """As ``count_documents_by_filter``, without blocking the event loop."""

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Return the documents that pass a filter, in the order of their ids.

        Parameters
        ----------
        filters : dict, optional
            All without it.

        Returns
        -------
        list of Document
        """
        with _errors():
            store = self._documents()
            condition = condition_of(filters, store.columns())
            return [_document(one) for one in store.all(condition, with_vectors=True)]

    filter_documents_async = awaited(filter_documents)
    """As ``filter_documents``, without blocking the event loop."""

    # ---- what fields hold

    def count_unique_metadata_by_filter(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        """Count the distinct values of fields, of the documents that pass a filter.

        Parameters
        ----------
        filters : dict
            All documents where it is empty.
        metadata_fields : list of str
            With or without ``meta.`` before them.

        Returns
        -------
        dict of str to int
        """
        with _errors():
            return {bare(one): len(self._values(bare(one), filters)) for one in metadata_fields}

    count_unique_metadata_by_filter_async = awaited(count_unique_metadata_by_filter)
    """As ``count_unique_metadata_by_filter``, without blocking the event loop."""

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """Return the fields that filters can use, and the type of each.

        Returns
        -------
        dict of str to dict
            ``type`` is boolean, int, float or keyword.
        """
        with _errors():
            store = self._documents()
            columns = store.columns()
            found: dict[str, set[str]] = {}
            for field in columns.fields:
                top, _, inside = field.partition(".")
                for kind, name in columns.of(field).items():
                    if store.count(velo.col(name).is_valid()):
                        found.setdefault(top, set()).add("text" if inside else kind)
        types = (("boolean", {"bool"}), ("int", {"int"}), ("float", {"int", "float"}))
        return {
            field: {"type": next((name for name, known in types if kinds <= known), "keyword")}
            for field, kinds in found.items()
        }

    get_metadata_fields_info_async = awaited(get_metadata_fields_info)
    """As ``get_metadata_fields_info``, without blocking the event loop."""

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """Return the least and the greatest value of a field.

        Parameters
        ----------
        metadata_field : str
            With or without ``meta.`` before it.

        Returns
        -------
        dict
            ``min`` and ``max``; None where there are no values, or some that have no order among them.
        """
        with _errors():
            store = self._documents()
            columns = store.columns().of(bare(metadata_field))
            names = [columns[kind] for kind in ("bool", "int", "float", "text") if kind in columns]
            ends: list[Any] = []
            for table in store.tables(None, names):
                for name in names:
                    low_and_high: Any = pc.min_max(_column(table, name)).as_py()
                    ends += low_and_high.values()
        ends = [one for one in ends if one is not None]
        if not ends or len({isinstance(one, str) for one in ends}) > 1:
            return {"min": None, "max": None}
        return {"min": min(ends), "max": max(ends)}

    get_metadata_field_min_max_async = awaited(get_metadata_field_min_max)
    """As ``get_metadata_field_min_max``, without blocking the event loop."""

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        """Return distinct values of a field, page by page.

        Parameters
        ----------
        metadata_field : str
            With or without ``meta.`` before it.
        search_term : str, optional
            Only values whose text holds it, in letters of either case.
        from_, size : int
            The page.
        filters : dict, optional
            Of the documents that pass it.

        Returns
        -------
        tuple of list and int
            The values of the page, in the order of their texts, and how many there are in all.
        """
        with _errors():
            values = self._values(bare(metadata_field), filters)
        if search_term:
            values = [one for one in values if search_term.lower() in str(one).lower()]
        values.sort(key=lambda one: (str(one), type(one).__name__))
        return values[from_ : from_ + size], len(values)

    get_metadata_field_unique_values_async = awaited(get_metadata_field_unique_values)
    """As ``get_metadata_field_unique_values``, without blocking the event loop."""

    def _values(self, field: str, filters: dict[str, Any] | None) -> list[Any]:
        """The distinct values of a field; those of different types differ."""
        store = self._documents()
        columns = store.columns()
        condition = condition_of(filters, columns)
        of_field = columns.of(field)
        found: dict[Any, Any] = {}
        if of_field and of_field.keys() <= _SINGLE and columns.within(field) == list(of_field.values()):
            names = [of_field[kind] for kind in ("bool", "int", "float", "text") if kind in of_field]
            for table in store.tables(condition, names):
                for name in names:
                    for one in pc.unique(_column(table, name)).to_pylist():
                        found.setdefault((type(one), one), one)
        else:
            for table in store.tables(condition, [KEPT]):
                for kept in table[KEPT].to_pylist():
                    one = decoded(kept)["meta"].get(field)
                    found.setdefault((type(one), _hashable(one)), one)
        return [one for one in found.values() if one is not None]

    # ---- searches

    def _retrieval(self, filters: dict[str, Any] | None) -> tuple[Documents, Any]:
        """The documents, and the condition of a search for an embedding."""
        store = self._documents()
        return store, store.embedded(condition_of(filters, store.columns()))

    def embedding_retrieval(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        scale_score: bool = False,
        return_embedding: bool = False,
        **options: Any,
    ) -> list[Document]:
        """Find the documents whose embeddings are nearest to one.

        Parameters
        ----------
        query_embedding : list of float
        filters : dict, optional
        top_k : int
        scale_score : bool
            Scores between 0 and 1.
        return_embedding : bool
        options :
            What :meth:`velo.Index.search` takes: recall, list_size, exact, timeout_s, tuning.

        Returns
        -------
        list of Document
            With their scores, greatest first: the cosine, the inner product, or the negated squared length.
        """
        with _errors():
            store, condition = self._retrieval(filters)
            found = store.search(query_embedding, top_k, condition, options)
            return self._scored(store, found, scale_score, return_embedding)

    @documented_by(embedding_retrieval)
    async def embedding_retrieval_async(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        scale_score: bool = False,
        return_embedding: bool = False,
        **options: Any,
    ) -> list[Document]:
        """As ``embedding_retrieval``, without blocking the event loop."""
        with _errors():
            store, condition = await asyncio.to_thread(self._retrieval, filters)
            found = await store.search_async(query_embedding, top_k, condition, options)
            return await asyncio.to_thread(self._scored, store, found, scale_score, return_embedding)

    def hybrid_retrieval(
        self,
        query: str,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        return_embedding: bool = False,
        **options: Any,
    ) -> list[Document]:
        """Find the documents whose embeddings are nearest to one, and those that have the words of a text.

        Parameters
        ----------
        query : str
        query_embedding : list of float
        filters : dict, optional
        top_k : int
        return_embedding : bool
        options :
            As for :meth:`embedding_retrieval`, and ``fusion``: how both become one list.

        Returns
        -------
        list of Document
            With their scores, greatest first.
        """
        options = {**options, "text": query}
        return self.embedding_retrieval(query_embedding, filters, top_k, False, return_embedding, **options)

    @documented_by(hybrid_retrieval)
    async def hybrid_retrieval_async(
        self,
        query: str,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        return_embedding: bool = False,
        **options: Any,
    ) -> list[Document]:
        """As ``hybrid_retrieval``, without blocking the event loop."""
        options = {**options, "text": query}
        return await self.embedding_retrieval_async(
            query_embedding, filters, top_k, False, return_embedding, **options
        )

    @staticmethod
    def _scored(store: Documents, found: list[Found], scale: bool, with_embedding: bool) -> list[Document]:
        score = _scores(store.metric, scale)
        vectors: dict[str, Any] = {}
        if with_embedding:
            vectors = {one.id: one.vector for one in store.get([one.id for one in found], with_vectors=True)}
            found = [one for one in found if one.id in vectors]
        return [
            _document(one, score(one.distance) if one.score is None else one.score, vectors.get(one.id))
            for one in found
        ]


class _Retriever:
    """The common part of retrievers: the store, the options of searches, and both as a dict."""

    def __init__(
        self,
        document_store: VeloDocumentStore,
        filters: dict[str, Any] | None,
        top_k: int,
        return_embedding: bool,
        filter_policy: FilterPolicy,
        named: dict[str, Any],
        options: dict[str, Any],
    ) -> None:
        if not isinstance(document_store, VeloDocumentStore):
            raise ValueError("document_store must be a VeloDocumentStore")
        if top_k <= 0:
            raise ValueError(f"top_k must be above 0, not {top_k}")
        self.document_store = document_store
        self.filters = filters
        self.top_k = top_k
        self.return_embedding = return_embedding
        self.filter_policy = (
            FilterPolicy.from_str(filter_policy) if isinstance(filter_policy, str) else filter_policy
        )
        #: Parameters of one kind of retriever, as written to a dict; and options passed to searches.
        self._named = named
        self._options = options

    def to_dict(self) -> dict[str, Any]:
        """Write the retriever and its store as a dict.

        Returns
        -------
        dict
        """
        return dict(
            default_to_dict(
                self,
                document_store=self.document_store.to_dict(),
                filters=self.filters,
                top_k=self.top_k,
                return_embedding=self.return_embedding,
                filter_policy=self.filter_policy.value,
                **self._named,
                **self._options,
            )
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read a retriever from a dict.

        Parameters
        ----------
        data : dict
            What :meth:`to_dict` wrote.

        Returns
        -------
        VeloEmbeddingRetriever or VeloHybridRetriever
        """
        given = dict(data["init_parameters"])
        given["document_store"] = VeloDocumentStore.from_dict(given["document_store"])
        retriever: Self = default_from_dict(cls, {**data, "init_parameters": given})
        return retriever

    def _asked_of_all(self, filters: dict[str, Any] | None, top_k: int | None) -> dict[str, Any]:
        return {
            "filters": apply_filter_policy(self.filter_policy, self.filters, filters),
            "top_k": self.top_k if top_k is None else top_k,
            **self._options,
        }


@component
class VeloEmbeddingRetriever(_Retriever):
    """Finds the documents of a :class:`VeloDocumentStore` whose embeddings are nearest to one.

    Parameters
    ----------
    document_store : VeloDocumentStore
    filters : dict, optional
    top_k : int
    scale_score : bool
        Scores between 0 and 1.
    return_embedding : bool
    filter_policy : FilterPolicy
        Whether filters of a run take the place of these, or both hold.
    recall : float, optional
        The share of true neighbors to aim for; see :meth:`velo.Index.search`.
    exact : bool, optional
        Take scores from the stored vectors instead of codes.
    timeout_s : float, optional
    """

    def __init__(
        self,
        document_store: VeloDocumentStore,
        *,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        scale_score: bool = False,
        return_embedding: bool = False,
        filter_policy: FilterPolicy = FilterPolicy.REPLACE,
        recall: float | None = None,
        exact: bool | None = None,
        timeout_s: float | None = None,
    ) -> None:
        options = {"recall": recall, "exact": exact, "timeout_s": timeout_s}
        named = {"scale_score": scale_score}
        # `component` replaces the class, so super() would be that of another.
        _Retriever.__init__(
            self, document_store, filters, top_k, return_embedding, filter_policy, named, options
        )
        self.scale_score = scale_score

    @component.output_types(documents=list[Document])
    def run(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        scale_score: bool | None = None,
        return_embedding: bool | None = None,
    ) -> dict[str, list[Document]]:
        """Find documents.

        Parameters
        ----------
        query_embedding : list of float
        filters, top_k, scale_score, return_embedding :
            In the place of the retriever's own.

        Returns
        -------
        dict
            ``documents``, the best first.
        """
        asked = self._asked(filters, top_k, scale_score, return_embedding)
        return {"documents": self.document_store.embedding_retrieval(query_embedding, **asked)}

    @component.output_types(documents=list[Document])
    @documented_by(run)
    async def run_async(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        scale_score: bool | None = None,
        return_embedding: bool | None = None,
    ) -> dict[str, list[Document]]:
        """As ``run``, without blocking the event loop."""
        asked = self._asked(filters, top_k, scale_score, return_embedding)
        return {"documents": await self.document_store.embedding_retrieval_async(query_embedding, **asked)}

    def _asked(
        self,
        filters: dict[str, Any] | None,
        top_k: int | None,
        scale_score: bool | None,
        return_embedding: bool | None,
    ) -> dict[str, Any]:
        return {
            **self._asked_of_all(filters, top_k),
            "scale_score": self.scale_score if scale_score is None else scale_score,
            "return_embedding": self.return_embedding if return_embedding is None else return_embedding,
        }


@component
class VeloHybridRetriever(_Retriever):
    """Finds the documents of a :class:`VeloDocumentStore` by their words and by their embeddings.

    Parameters
    ----------
    document_store : VeloDocumentStore
    filters : dict, optional
    top_k : int
    return_embedding : bool
    filter_policy : FilterPolicy
        Whether filters of a run take the place of these, or both hold.
    fusion : {"rrf", "weighted"}
        How both become one list.
    vectors_weight, words_weight : float, optional
        Of both lists in it.
    recall, exact, timeout_s :
        As for :class:`VeloEmbeddingRetriever`.
    """

    def __init__(
        self,
        document_store: VeloDocumentStore,
        *,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        return_embedding: bool = False,
        filter_policy: FilterPolicy = FilterPolicy.REPLACE,
        fusion: FusionName = "rrf",
        vectors_weight: float = 1.0,
        words_weight: float = 1.0,
        recall: float | None = None,
        exact: bool | None = None,
        timeout_s: float | None = None,
    ) -> None:
        if fusion not in ("rrf", "weighted"):
            raise ValueError(f"fusion must be 'rrf' or 'weighted', not {fusion!r}")
        kind = velo.RRF if fusion == "rrf" else velo.Weighted
        self._fusion = kind(vectors=vectors_weight, words=words_weight)
        named = {"fusion": fusion, "vectors_weight": vectors_weight, "words_weight": words_weight}
        options = {"recall": recall, "exact": exact, "timeout_s": timeout_s}
        # `component` replaces the class, so super() would be that of another.
        _Retriever.__init__(
            self, document_store, filters, top_k, return_embedding, filter_policy, named, options
        )

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Find documents.

        Parameters
        ----------
        query : str
            The text whose words are looked for.
        query_embedding : list of float
        filters, top_k :
            In the place of the retriever's own.

        Returns
        -------
        dict
            ``documents``, the best first.
        """
        asked = self._asked(filters, top_k)
        return {"documents": self.document_store.hybrid_retrieval(query, query_embedding, **asked)}

    @component.output_types(documents=list[Document])
    @documented_by(run)
    async def run_async(
        self,
        query: str,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """As ``run``, without blocking the event loop."""
        asked = self._asked(filters, top_k)
        found = await self.document_store.hybrid_retrieval_async(query, query_embedding, **asked)
        return {"documents": found}

    def _asked(self, filters: dict[str, Any] | None, top_k: int | None) -> dict[str, Any]:
        asked = self._asked_of_all(filters, top_k)
        return {**asked, "return_embedding": self.return_embedding, "fusion": self._fusion}


# ---- documents


def _written(document: Document) -> Written:
    kept: dict[str, Any] = {"meta": document.meta}
    if document.blob is not None:
        blob = document.blob
        kept["blob"] = {"data": blob.data, "meta": blob.meta, "mime_type": blob.mime_type}
    if document.sparse_embedding is not None:
        sparse = document.sparse_embedding
        kept["sparse_embedding"] = {"indices": list(sparse.indices), "values": list(sparse.values)}
    if document.score is not None:
        kept["score"] = document.score
    return Written(document.id, document.embedding, document.content, kept, document.meta)


def _document(found: Found, score: float | None = None, vector: Any = None) -> Document:
    kept = found.kept
    vector = found.vector if vector is None else vector
    blob, sparse = kept.get("blob"), kept.get("sparse_embedding")
    return Document(
        id=found.id,
        content=found.text,
        meta=kept["meta"],
        blob=None if blob is None else ByteStream(**blob),
        sparse_embedding=None if sparse is None else SparseEmbedding(**sparse),
        score=kept.get("score") if score is None else score,
        embedding=None if vector is None else vector.tolist(),
    )


def _scores(metric: str, scale: bool) -> Callable[[float], float]:
    """The function from distance to score, which is greater for nearer documents."""
    if metric == "cosine":
        return (lambda distance: 1 - distance / 2) if scale else (lambda distance: 1 - distance)
    if metric == "ip":
        return (lambda distance: 1 / (1 + math.exp(distance / _SCALED_BY))) if scale else lambda d: -d
    return (lambda distance: 1 / (1 + distance)) if scale else lambda d: -d


def _column(table: Any, name: str) -> Any:
    """A column of rows, which call one of the name of ids so."""
    return table["metadata.id" if name == "id" else name]


def _hashable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(sorted((str(key), type(one), _hashable(one)) for key, one in value.items()))
    if isinstance(value, list | tuple):
        return tuple((type(one), _hashable(one)) for one in value)
    return value
