"""LlamaIndex's vector store over an index of velo: ``pip install 'veloann[llama-index]'``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import velo
from velo.errors import FilterError, InvalidArgumentError, MissingDependencyError
from velo.filters import And, Compare, Contains, Expr, Ids, IsNotTrue, Like, Or
from velo.integrations.conditions import NOTHING, equal_to_one_of, in_order, is_missing, is_nan
from velo.integrations.documents import OF_SEARCH, Document, Documents, Found, awaited, documented_by
from velo.integrations.values import Columns
from velo.types import MetricName, PathLike

try:
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.schema import BaseNode, MetadataMode
    from llama_index.core.vector_stores.types import (
        BasePydanticVectorStore,
        FilterCondition,
        FilterOperator,
        MetadataFilter,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryMode,
        VectorStoreQueryResult,
    )
    from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
except ImportError as error:
    raise MissingDependencyError("LlamaIndex is not installed: pip install 'veloann[llama-index]'") from error

__all__ = ["VeloVectorStore"]

#: Fields of a node's own: the document that it was cut from.
_REFERENCE: Final = ("ref_doc_id", "doc_id", "document_id")
#: Fields from which a node is restored.
_CONTENT: Final = ("_node_content", "_node_type")
#: Of k nodes that are unlike each other, how many times as many of the nearest are chosen from.
_FETCHED: Final = 4
_DEPTH_MAX: Final = 64


class VeloVectorStore(BasePydanticVectorStore):
    """A vector store in a folder, created with the first nodes. It keeps whole nodes.

    The index answers filters; none is evaluated in Python.

    Parameters
    ----------
    path : path, optional
        The folder of the index. One that is there is opened.
    index : velo.Index, optional
        An index that is open already, instead of a path; the store does not close it.
    dim : int, optional
        Dimensions of an index that is to be made. Without it the first nodes say so.
    metric : {"cosine", "l2", "ip"}
        Of an index that is to be made.
    filterable : list of str, optional
        The fields that filters may ask for, where metadata has more than are worth a column each; all
        without it.
    writable : bool
        False: open an index to read; processes may write to it meanwhile.
    options :
        What :func:`velo.open` takes: memory, threads, durability, merge_memory, and so on.

    Raises
    ------
    VeloError
        As all methods: velo refused, and nothing was written. What has to do with arguments is a ValueError,
        too.
    """

    stores_text: bool = True
    is_embedding_query: bool = True

    _documents: Documents = PrivateAttr()

    def __init__(
        self,
        path: PathLike | None = None,
        *,
        index: velo.Index | None = None,
        dim: int | None = None,
        metric: MetricName = "cosine",
        filterable: Sequence[str] | None = None,
        writable: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(stores_text=True)
        if isinstance(filterable, str):
            raise InvalidArgumentError("filterable is a list of fields", argument="filterable")
        self._documents = Documents(
            path,
            index=index,
            dim=dim,
            metric=metric,
            filterable=None if filterable is None else [*filterable, *_REFERENCE],
            writable=writable,
            options=options,
        )

    @classmethod
    def class_name(cls) -> str:
        """Name the class, for LlamaIndex.

        Returns
        -------
        str
        """
        return "VeloVectorStore"

    @property
    def client(self) -> velo.Index | None:
        """The index; None before the first nodes came."""
        return self._documents.index

    @property
    def index(self) -> velo.Index | None:
        """The index; None before the first nodes came."""
        return self._documents.index

    def close(self) -> None:
        """Close the index; further calls do nothing."""
        self._documents.close()

    # ---- writes

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes, all of them or none; a node replaces the one with its id.

        Parameters
        ----------
        nodes : sequence of BaseNode
            With their embeddings.
        kwargs :
            None has a meaning here.

        Returns
        -------
        list of str
            Their ids.
        """
        self._documents.write([_written(one) for one in nodes])
        return [one.node_id for one in nodes]

    @documented_by(add)
    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """As ``add``, without blocking the event loop."""
        return await asyncio.to_thread(self.add, nodes)

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete the nodes of a document.

        Parameters
        ----------
        ref_doc_id : str
        delete_kwargs :
            None has a meaning here.
        """
        self._documents.delete(condition=_of_documents([ref_doc_id], self._documents.columns()))

    @documented_by(delete)
    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """As ``delete``, without blocking the event loop."""
        await asyncio.to_thread(self.delete, ref_doc_id)

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Delete nodes by id, those that pass filters, or those for which both hold.

        Parameters
        ----------
        node_ids : list of str, optional
        filters : MetadataFilters, optional
        delete_kwargs :
            None has a meaning here.
        """
        condition = self._condition(node_ids, None, filters)
        if condition is None:
            raise InvalidArgumentError(
                "delete_nodes takes node_ids or filters; clear deletes all", argument="node_ids"
            )
        self._documents.delete(condition=condition)

    @documented_by(delete_nodes)
    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """As ``delete_nodes``, without blocking the event loop."""
        await asyncio.to_thread(self.delete_nodes, node_ids, filters)

    def clear(self) -> None:
        """Delete all nodes."""
        self._documents.clear()

    aclear = awaited(clear, "aclear")
    """As ``clear``, without blocking the event loop."""

    def persist(self, persist_path: str = "", fs: Any = None) -> None:
        """Do nothing: every node is in the index once :meth:`add` returns.

        Parameters
        ----------
        persist_path, fs :
            Where other stores write to.
        """

    # ---- lookups

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Return nodes by id, those that pass filters, those for which both hold, or all.

        Parameters
        ----------
        node_ids : list of str, optional
            Ids that no node has are left out.
        filters : MetadataFilters, optional

        Returns
        -------
        list of BaseNode
            With their embeddings, in the order of their ids; with `node_ids` alone in that one.
        """
        if node_ids is not None and filters is None:
            found = self._documents.get(node_ids, with_vectors=True)
        else:
            condition = self._condition(node_ids, None, filters)
            found = list(self._documents.all(condition, with_vectors=True))
        return [_node(one) for one in found]

    aget_nodes = awaited(get_nodes, "aget_nodes")
    """As ``get_nodes``, without blocking the event loop."""

    # ---- searches

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Find the nodes that are nearest to the embedding of a query.

        Parameters
        ----------
        query : VectorStoreQuery
            In the modes DEFAULT and MMR, with filters, node_ids and doc_ids.
        kwargs :
            What :meth:`velo.Index.search` takes: recall, list_size, exact, timeout_s, tuning; and with MMR
            ``mmr_threshold`` and ``mmr_prefetch_k``.

        Returns
        -------
        VectorStoreQueryResult
            Similarities are the cosine, the inner product, or the negated squared length.
        """
        count, condition, options = self._asked(query, kwargs)
        found = self._documents.search(query.query_embedding, count, condition, options)
        return self._answered(query, found, kwargs)

    @documented_by(query)
    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """As ``query``, without blocking the event loop."""
        count, condition, options = self._asked(query, kwargs)
        found = await self._documents.search_async(query.query_embedding, count, condition, options)
        return await asyncio.to_thread(self._answered, query, found, kwargs)

    def _asked(self, query: VectorStoreQuery, kwargs: Mapping[str, Any]) -> tuple[int, Any, dict[str, Any]]:
        """The number of hits, the filter and the options of a search."""
        if query.mode not in (VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.MMR):
            raise InvalidArgumentError(
                f"the query mode {query.mode!r} is not there; DEFAULT and MMR are", argument="query"
            )
        if query.query_embedding is None:
            raise InvalidArgumentError("the query has no embedding", argument="query")
        count = query.similarity_top_k
        if query.mode == VectorStoreQueryMode.MMR:
            count = max(count, kwargs.get("mmr_prefetch_k") or _FETCHED * count)
        options = {name: value for name, value in kwargs.items() if name in OF_SEARCH}
        # A retriever gives an empty list of nodes for an index over a store that keeps them itself.
        condition = self._condition(query.node_ids or None, query.doc_ids or None, query.filters)
        return count, condition, options

    def _answered(
        self, query: VectorStoreQuery, found: list[Found], kwargs: Mapping[str, Any]
    ) -> VectorStoreQueryResult:
        if query.mode == VectorStoreQueryMode.MMR:
            share = kwargs.get("mmr_threshold", query.mmr_threshold)
            share = 0.5 if share is None else share
            found = self._documents.diverse(found, query.query_embedding, query.similarity_top_k, share)
        base = 1.0 if self._documents.metric == "cosine" else 0.0
        return VectorStoreQueryResult(
            nodes=[_node(one) for one in found],
            similarities=[base - one.distance for one in found],
            ids=[one.id for one in found],
        )

    def _condition(
        self, node_ids: Sequence[str] | None, doc_ids: Sequence[str] | None, filters: Any
    ) -> Expr | None:
        """All that is asked of nodes, as a filter over columns; None: nothing is."""
        columns = self._documents.columns()
        parts: list[Expr] = []
        if node_ids is not None:
            parts.append(Ids(tuple(node_ids)) if node_ids else NOTHING)
        if doc_ids is not None:
            parts.append(_of_documents(doc_ids, columns))
        if filters is not None:
            parts.append(_read(filters, columns, 1))
        return And(tuple(parts)) if parts else None


# ---- nodes


def _written(node: BaseNode) -> Document:
    fields = node_to_metadata_dict(node, remove_text=True, flat_metadata=False)
    kept = {name: fields.pop(name) for name in _CONTENT}
    return Document(
        node.node_id, node.get_embedding(), node.get_content(metadata_mode=MetadataMode.NONE), kept, fields
    )


def _node(found: Found) -> BaseNode:
    node = metadata_dict_to_node(found.kept, text=found.text)
    if found.vector is not None:
        node.embedding = found.vector.tolist()
    return node


# ---- filters


def _of_documents(doc_ids: Sequence[str], columns: Columns) -> Expr:
    """The nodes that were cut from some documents."""
    return Or(equal_to_one_of(_REFERENCE[0], list(doc_ids), columns))


def _read(filters: Any, columns: Columns, depth: int) -> Expr:
    """A filter over columns for LlamaIndex's filters, true or false for every node."""
    if depth > _DEPTH_MAX:
        raise FilterError(f"filters are nested deeper than {_DEPTH_MAX}", argument="filters")
    if isinstance(filters, MetadataFilter):
        return _compared(filters, columns)
    if not isinstance(filters, MetadataFilters):
        raise FilterError(f"filters are MetadataFilters, not a {type(filters).__name__}", argument="filters")
    children = tuple(_read(one, columns, depth + 1) for one in filters.filters)
    if not children:
        return And(())
    if filters.condition == FilterCondition.OR:
        return Or(children)
    if filters.condition == FilterCondition.NOT:
        return IsNotTrue(Or(children))
    return And(children)


_ORDERS: Final[dict[Any, Any]] = {
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "ge",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "le",
}


def _compared(one: MetadataFilter, columns: Columns) -> Expr:
    field, operator, value = one.key, one.operator, one.value
    there = columns.of(field)
    if operator == FilterOperator.IS_EMPTY:
        empty = [is_missing(field, columns), *equal_to_one_of(field, [""], columns)]
        if "other" in there:
            empty.append(Compare(there["other"], "eq", False))
        return Or(tuple(empty))
    if operator in (FilterOperator.EQ, FilterOperator.NE):
        if isinstance(value, list):
            raise _refusal(one, "it takes one value, not a list; any and all ask for elements")
        # A value of None is equal to nothing, as a missing one is.
        found: Expr = Or(equal_to_one_of(field, [] if value is None else [value], columns))
        return found if operator == FilterOperator.EQ else IsNotTrue(found)
    if operator in (FilterOperator.IN, FilterOperator.NIN):
        found = Or(equal_to_one_of(field, _listed(one), columns))
        return found if operator == FilterOperator.IN else IsNotTrue(found)
    if operator in _ORDERS:
        if isinstance(value, list) or value is None:
            raise _refusal(one, "it takes a number or a text")
        if isinstance(value, str):
            return Compare(there["text"], _ORDERS[operator], value) if "text" in there else NOTHING
        return NOTHING if is_nan(value) else in_order(field, _ORDERS[operator], value, columns)
    if operator in (FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE):
        if not isinstance(value, str):
            raise _refusal(one, "it takes a text")
        return _holding_text(there, value, any_case=operator == FilterOperator.TEXT_MATCH_INSENSITIVE)
    if operator == FilterOperator.CONTAINS:
        if isinstance(value, list) or value is None:
            raise _refusal(one, "it takes one value")
        return _holding(there, value)
    if operator in (FilterOperator.ANY, FilterOperator.ALL):
        each = tuple(_holding(there, element) for element in _listed(one))
        if operator == FilterOperator.ANY:
            return Or(each)
        return And((*each, IsNotTrue(is_missing(field, columns))))
    raise _refusal(one, "it is unknown")


def _holding(there: Mapping[str, str], value: Any) -> Expr:
    """A list that has an element, or a text that holds another."""
    if isinstance(value, str):
        found = [Contains(there["texts"], (value,), "any")] if "texts" in there else []
        return Or((*found, _holding_text(there, value, any_case=False)))
    if is_nan(value):
        return NOTHING
    lists: list[Expr] = []
    if "ints" in there and int(value) == value:
        lists.append(Contains(there["ints"], (int(value),), "any"))
    if "floats" in there:
        lists.append(Contains(there["floats"], (float(value),), "any"))
    return Or(tuple(lists))


def _holding_text(there: Mapping[str, str], value: str, *, any_case: bool) -> Expr:
    if "text" not in there:
        return NOTHING
    if not value:
        return velo.col(there["text"]).is_valid()
    escaped = "".join(f"\\{one}" if one in "\\%_" else one for one in value)
    return Like(there["text"], f"%{escaped}%", any_case)


def _listed(one: MetadataFilter) -> list[Any]:
    if not isinstance(one.value, list):
        raise _refusal(one, "it takes a list")
    return list(one.value)


def _refusal(one: MetadataFilter, why: str) -> FilterError:
    return FilterError(
        f"filter on {one.key!r}: the operator {one.operator.value!r} is not met by {one.value!r:.80}: {why}",
        argument="filters",
    )
