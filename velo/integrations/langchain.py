"""LangChain's vector store over an index of velo: ``pip install 'veloann[langchain]'``."""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import velo
from velo.errors import InvalidArgumentError, MissingDependencyError, VeloError
from velo.integrations.documents import OF_SEARCH, Documents, Found, documented_by
from velo.integrations.documents import Document as Written
from velo.types import FusionName, MetricName, PathLike

try:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.exceptions import LangChainException
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables.config import run_in_executor
    from langchain_core.vectorstores import VectorStore
except ImportError as error:
    raise MissingDependencyError("LangChain is not installed: pip install 'veloann[langchain]'") from error

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["VeloHybridRetriever", "VeloStoreError", "VeloVectorStore"]


Fusion: TypeAlias = velo.RRF | velo.Weighted


class VeloStoreError(LangChainException, ValueError):
    """A call of :class:`VeloVectorStore` failed; ``__cause__`` is the error of velo."""


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except VeloError as error:
        raise VeloStoreError(str(error)) from error


class VeloVectorStore(VectorStore):
    """A vector store in a folder, created with the first documents.

    Metadata is returned as it was given. Filters name its fields in velo's syntaxes: a dict as in MongoDB,
    an expression of :func:`velo.col`, or SQL. A field that a document does not have is missing. The
    index answers filters; none is evaluated in Python.

    Parameters
    ----------
    embedding : langchain_core.embeddings.Embeddings
        What makes vectors of texts.
    path : path, optional
        The folder of the index. One that is there is opened.
    index : velo.Index, optional
        An index that is open already, instead of a path; the store does not close it. One that was
        opened to read is a store to read.
    dim : int, optional
        Dimensions of an index that is to be made. Without it the first documents say so.
    metric : {"cosine", "l2", "ip"}
        Of an index that is to be made.
    filterable : list of str, optional
        The fields that filters may ask for, where metadata has more than are worth a column each; all
        without it.
    writable : bool
        False: open an index to read; processes may write to it meanwhile.
    options :
        What :func:`velo.open` takes: memory, threads, durability, merge_memory, and so on.

    Attributes
    ----------
    index : velo.Index or None
        None before the first documents came.

    Raises
    ------
    VeloStoreError
        As all methods: velo refused; the error says what and why, and nothing was written.
    """

    def __init__(
        self,
        embedding: Embeddings,
        path: PathLike | None = None,
        *,
        index: velo.Index | None = None,
        dim: int | None = None,
        metric: MetricName = "cosine",
        filterable: Sequence[str] | None = None,
        writable: bool = True,
        **options: Any,
    ) -> None:
        self._embedding = embedding
        with _errors():
            self._documents = Documents(
                path,
                index=index,
                dim=dim,
                metric=metric,
                filterable=filterable,
                writable=writable,
                options=options,
            )

    @property
    def embeddings(self) -> Embeddings:
        """The model that embeds texts."""
        return self._embedding

    @property
    def index(self) -> velo.Index | None:
        """The index; None before the first documents came."""
        return self._documents.index

    def close(self) -> None:
        """Close the index that this store opened; further calls do nothing."""
        self._documents.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- writes

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts; each replaces the document that has its id.

        Parameters
        ----------
        texts : iterable of str
        metadatas : list of dict, optional
            One a text.
        ids : list of str, optional
            One a text; None among them, or none at all, are made.
        kwargs :
            Any other keyword is refused.

        Returns
        -------
        list of str
            Their ids.
        """
        _refuse(kwargs)
        listed = list(texts)
        return self._write(listed, metadatas, ids, self._embedding.embed_documents(listed) if listed else [])

    @documented_by(add_texts)
    async def aadd_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """As ``add_texts``, without blocking the event loop."""
        _refuse(kwargs)
        listed = list(texts)
        vectors = await self._embedding.aembed_documents(listed) if listed else []
        return list(await run_in_executor(None, self._write, listed, metadatas, ids, vectors))

    def _write(
        self,
        texts: list[str],
        metadatas: list[dict[str, Any]] | None,
        ids: Sequence[str | None] | None,
        vectors: list[list[float]],
    ) -> list[str]:
        with _errors():
            _check_length("metadatas", metadatas, len(texts))
            _check_length("ids", ids, len(texts))
            _check_length("the embeddings that were made of the texts", vectors, len(texts))
            named = [str(uuid.uuid4()) if one is None else one for one in ids or [None] * len(texts)]
            kept = [one or {} for one in metadatas or [{}] * len(texts)]
            self._documents.write(
                [Written(*one) for one in zip(named, vectors, texts, kept, kept, strict=True)]
            )
        return named

    def delete(self, ids: list[str] | None = None, *, filter: Any = None, **kwargs: Any) -> bool:  # noqa: A002
        """Delete documents by id, those that pass a filter, or all.

        Parameters
        ----------
        ids : list of str, optional
            Ids that no document has are no error.
        filter : dict, expression or SQL, optional
            In the place of ids. Without either all documents go.
        kwargs :
            Any other keyword is refused.

        Returns
        -------
        bool
            True.
        """
        _refuse(kwargs)
        with _errors():
            if ids is not None and filter is not None:
                raise InvalidArgumentError("delete takes ids or a filter, and one of them", argument="ids")
            if ids is not None:
                self._documents.delete(ids)
            elif filter is not None:
                self._documents.delete(condition=self._documents.condition(filter))
            else:
                self._documents.clear()
        return True

    # ---- lookups

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents of some ids, in their order; ids that no document has are left out.

        Parameters
        ----------
        ids : sequence of str

        Returns
        -------
        list of Document
        """
        with _errors():
            return [_document(one) for one in self._documents.get(ids)]

    # ---- searches

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Find the documents that are nearest to a text.

        Parameters
        ----------
        query : str
        k : int
        kwargs :
            ``filter``, and what :meth:`velo.Index.search` takes: recall, list_size, exact, timeout_s, tuning.

        Returns
        -------
        list of Document
        """
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]

    @documented_by(similarity_search)
    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """As ``similarity_search``, without blocking the event loop."""
        return [document for document, _ in await self.asimilarity_search_with_score(query, k, **kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Find the documents that are nearest to a text, with their distances.

        Parameters
        ----------
        query, k, kwargs :
            As for :meth:`similarity_search`.

        Returns
        -------
        list of (Document, float)
            Less is nearer: 1 - cosine, the squared length, or the negated inner product.
        """
        if self.index is None:
            self._asked(k, kwargs)
            return []
        return _scored(self._search(self._embedding.embed_query(query), k, kwargs))

    @documented_by(similarity_search_with_score)
    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """As ``similarity_search_with_score``, without blocking the event loop."""
        if self.index is None:
            self._asked(k, kwargs)
            return []
        return _scored(await self._asearch(await self._embedding.aembed_query(query), k, kwargs))

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        """Find the documents that are nearest to a vector.

        Parameters
        ----------
        embedding : list of float
        k, kwargs :
            As for :meth:`similarity_search`.

        Returns
        -------
        list of Document
        """
        return [_document(one) for one in self._search(embedding, k, kwargs)]

    @documented_by(similarity_search_by_vector)
    async def asimilarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        """As ``similarity_search_by_vector``, without blocking the event loop."""
        return [_document(one) for one in await self._asearch(embedding, k, kwargs)]

    def hybrid_search(
        self, query: str, k: int = 4, *, fusion: Fusion | FusionName = "rrf", **kwargs: Any
    ) -> list[Document]:
        """Find the documents that are nearest to a text, and those that have its words.

        Parameters
        ----------
        query : str
        k : int
        fusion : {"rrf", "weighted"}, velo.RRF or velo.Weighted
            How both become one list.
        kwargs :
            As for :meth:`similarity_search`.

        Returns
        -------
        list of Document
            The best first.
        """
        return [one for one, _ in self.hybrid_search_with_score(query, k, fusion=fusion, **kwargs)]

    @documented_by(hybrid_search)
    async def ahybrid_search(
        self, query: str, k: int = 4, *, fusion: Fusion | FusionName = "rrf", **kwargs: Any
    ) -> list[Document]:
        """As ``hybrid_search``, without blocking the event loop."""
        return [one for one, _ in await self.ahybrid_search_with_score(query, k, fusion=fusion, **kwargs)]

    def hybrid_search_with_score(
        self, query: str, k: int = 4, *, fusion: Fusion | FusionName = "rrf", **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Find documents by words and vectors, with their scores.

        Parameters
        ----------
        query, k, fusion, kwargs :
            As for :meth:`hybrid_search`.

        Returns
        -------
        list of (Document, float)
            More is better.
        """
        if self.index is None:
            self._asked(k, kwargs)
            return []
        found = self._search(self._embedding.embed_query(query), k, kwargs, {"text": query, "fusion": fusion})
        return [(_document(one), one.score or 0.0) for one in found]

    @documented_by(hybrid_search_with_score)
    async def ahybrid_search_with_score(
        self, query: str, k: int = 4, *, fusion: Fusion | FusionName = "rrf", **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """As ``hybrid_search_with_score``, without blocking the event loop."""
        if self.index is None:
            self._asked(k, kwargs)
            return []
        vector = await self._embedding.aembed_query(query)
        found = await self._asearch(vector, k, kwargs, {"text": query, "fusion": fusion})
        return [(_document(one), one.score or 0.0) for one in found]

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Find documents that are near a text and unlike each other.

        Parameters
        ----------
        query : str
        k : int
        fetch_k : int
            How many of the nearest are chosen from.
        lambda_mult : float
            1: only nearness counts; 0: only unlikeness.
        kwargs :
            As for :meth:`similarity_search`.

        Returns
        -------
        list of Document
        """
        return self.max_marginal_relevance_search_by_vector(
            [] if self.index is None else self._embedding.embed_query(query),
            k,
            fetch_k,
            lambda_mult,
            **kwargs,
        )

    @documented_by(max_marginal_relevance_search)
    async def amax_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """As ``max_marginal_relevance_search``, without blocking the event loop."""
        return await self.amax_marginal_relevance_search_by_vector(
            [] if self.index is None else await self._embedding.aembed_query(query),
            k,
            fetch_k,
            lambda_mult,
            **kwargs,
        )

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Find documents that are near a vector and unlike each other.

        Parameters
        ----------
        embedding : list of float
        k, fetch_k, lambda_mult, kwargs :
            As for :meth:`max_marginal_relevance_search`.

        Returns
        -------
        list of Document
        """
        found = self._search(embedding, max(k, fetch_k), kwargs)
        return self._diverse(found, embedding, k, lambda_mult)

    @documented_by(max_marginal_relevance_search_by_vector)
    async def amax_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """As ``max_marginal_relevance_search_by_vector``, without blocking the event loop."""
        found = await self._asearch(embedding, max(k, fetch_k), kwargs)
        return list(await run_in_executor(None, self._diverse, found, embedding, k, lambda_mult))

    def _diverse(self, found: list[Found], vector: Any, k: int, share: float) -> list[Document]:
        with _errors():
            return [_document(one) for one in self._documents.diverse(found, vector, k, share)]

    def _search(
        self, vector: Any, k: int, kwargs: dict[str, Any], words: Mapping[str, Any] | None = None
    ) -> list[Found]:
        condition, options = self._asked(k, kwargs)
        with _errors():
            return self._documents.search(vector, k, condition, {**options, **(words or {})})

    async def _asearch(
        self, vector: Any, k: int, kwargs: dict[str, Any], words: Mapping[str, Any] | None = None
    ) -> list[Found]:
        condition, options = self._asked(k, kwargs)
        with _errors():
            return await self._documents.search_async(vector, k, condition, {**options, **(words or {})})

    def _asked(self, k: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Filter and options of a search, both checked."""
        options = dict(kwargs)
        given = options.pop("filter", None)
        _refuse({name: value for name, value in options.items() if name not in OF_SEARCH})
        with _errors():
            if isinstance(k, bool) or not isinstance(k, int) or k < 0:
                raise InvalidArgumentError(f"k is a number of documents, not {k!r}", argument="k")
            return self._documents.condition(given), options

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        """The function from distance to relevance, which is 1 at best."""
        metric = self._documents.metric
        if metric == "cosine":
            return lambda distance: 1.0 - distance
        if metric == "ip":
            return lambda distance: -distance
        # As LangChain has it of vectors of length 1.
        return lambda distance: 1.0 - math.sqrt(max(0.0, distance)) / math.sqrt(2.0)

    # ---- stores of texts

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> VeloVectorStore:
        """Make a store, or open one, and add texts.

        Parameters
        ----------
        texts : list of str
        embedding : langchain_core.embeddings.Embeddings
        metadatas, ids :
            As for :meth:`add_texts`.
        kwargs :
            What the class takes, ``path`` first of all.

        Returns
        -------
        VeloVectorStore
        """
        store = cls(embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    @documented_by(from_texts)
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> VeloVectorStore:
        """As ``from_texts``, without blocking the event loop."""
        store: VeloVectorStore = await run_in_executor(None, lambda: cls(embedding, **kwargs))
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store


class VeloHybridRetriever(BaseRetriever):
    """Finds the documents of a :class:`VeloVectorStore` by their words and by their vectors.

    Attributes
    ----------
    store : VeloVectorStore
    k : int
    fusion : {"rrf", "weighted"}, velo.RRF or velo.Weighted
        How both become one list.
    search_kwargs : dict
        As for :meth:`VeloVectorStore.similarity_search`.
    """

    model_config: ClassVar[Any] = {"arbitrary_types_allowed": True}

    store: VeloVectorStore
    k: int = 4
    fusion: Any = "rrf"
    search_kwargs: dict[str, Any] = {}  # noqa: RUF012 - each retriever gets one of its own

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return self.store.hybrid_search(query, self.k, fusion=self.fusion, **self.search_kwargs)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        return await self.store.ahybrid_search(query, self.k, fusion=self.fusion, **self.search_kwargs)


def _document(found: Found) -> Document:
    return Document(id=found.id, page_content=found.text or "", metadata=found.kept)


def _scored(found: list[Found]) -> list[tuple[Document, float]]:
    return [(_document(one), one.distance) for one in found]


def _check_length(name: str, given: Sequence[Any] | None, wanted: int) -> None:
    if given is not None and len(given) != wanted:
        raise InvalidArgumentError(f"{name}: {len(given)} for {wanted} texts", argument=name)


def _refuse(kwargs: dict[str, Any]) -> None:
    """Say so of a keyword that would have no effect."""
    for name in kwargs:
        raise VeloStoreError(f"there is no argument {name!r}; a search takes filter, {', '.join(OF_SEARCH)}")
