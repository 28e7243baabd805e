"""Documents in an index of velo, the base of all frameworks' stores."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import velo
from velo import errors
from velo.filters import And, Compare, Expr
from velo.filters.compiler import read_condition
from velo.integrations.conditions import of_fields
from velo.integrations.values import OWN, Columns, decoded, encoded, values_of

P = ParamSpec("P")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Any])


def awaited(
    method: Callable[Concatenate[Any, P], R], name: str | None = None
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The method in a thread, so that it does not block the event loop; `name` or ``_async`` names it."""
    blocking = method.__name__

    @functools.wraps(method)
    async def asked(store: Any, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        answer: R = await asyncio.to_thread(getattr(store, blocking), *arguments, **keywords)
        return answer

    asked.__name__ = name or f"{blocking}_async"
    asked.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.{asked.__name__}"
    return documented_by(method)(asked)


def documented_by(blocking: Any) -> Callable[[Function], Function]:
    """Give an asynchronous method the docstring of its blocking form."""
    head, _, rest = (blocking.__doc__ or "").partition("\n")
    text = f"{head.rstrip('.')}, without blocking the event loop; as ``{blocking.__name__}``.\n{rest}"

    def documented(function: Function) -> Function:
        function.__doc__ = text
        return function

    return documented


#: The column of the documents' texts, and that of everything else which they bring along.
TEXT: Final = f"{OWN}text"
KEPT: Final = f"{OWN}metadata"
#: Whether a document has a vector; only where some have none. Their rows have a vector of zeros.
EMBEDDED: Final = f"{OWN}embedded"
#: Options that stores pass to a search.
OF_SEARCH: Final = ("recall", "list_size", "exact", "timeout_s", "tuning")
#: Columns for fields of documents at most.
_COLUMNS_MAX: Final = 512
#: Rows that are read at once.
_PAGE: Final = 10_000
#: How often rows are looked up that others delete meanwhile.
_ATTEMPTS: Final = 5
_OWN_COLUMNS: Final[list[Any]] = [pa.field(TEXT, pa.string()), pa.field(KEPT, pa.binary())]


@dataclass(frozen=True)
class Document:
    """A document to write: `kept` is returned with it, `fields` are for filters."""

    id: str
    vector: Any
    text: str | None
    kept: Mapping[str, Any]
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """A document of the index; a hit has its distance, and a score if text and vectors were searched."""

    id: str
    text: str | None
    kept: dict[str, Any]
    distance: float = 0.0
    vector: npt.NDArray[np.float32] | None = None
    score: float | None = None


class Documents:
    """Documents in the index at a path, which is made when the first of them are written.

    `filterable`: The fields that filters may use; None: all.
    `dates_in_texts`: Whether texts that are dates can be compared as such.
    """

    def __init__(
        self,
        path: Any,
        *,
        index: velo.Index | None = None,
        dim: int | None = None,
        metric: Any = "cosine",
        filterable: Sequence[str] | None = None,
        dates_in_texts: bool = False,
        writable: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if (path is None) == (index is None):
            raise errors.InvalidArgumentError(
                "a path or an open index is needed, and one of them", argument="path"
            )
        if isinstance(filterable, str):
            raise errors.InvalidArgumentError("filterable is a list of fields", argument="filterable")
        self._path = path
        self._dim = dim
        self._metric = metric
        self._filterable = None if filterable is None else frozenset(filterable)
        self._dates_in_texts = dates_in_texts
        self._options = {"unknown_columns": "missing", **(options or {})}
        #: Held while the index is made or columns are added, and rows written.
        self.writing = threading.RLock()
        #: The columns as they were last looked at.
        self._known: tuple[Any, Columns] | None = None
        self._index = index
        if index is None:
            try:
                self._index = velo.open(path, writable=writable, **self._options)
            except errors.NotAnIndexError:
                if not writable or not _is_free(path):
                    raise
        if self._index is not None:
            self._check(self._index)
        if dim is not None and self._index is None:
            self._made(dim)

    def _check(self, index: velo.Index) -> None:
        columns = index.schema
        if len(index) and TEXT not in columns.names:
            raise errors.InvalidArgumentError(
                f"{index.path} was not written by an integration: it has no column {TEXT!r}", argument="path"
            )
        if self._dim is not None and self._dim != index.dim:
            raise errors.DimensionMismatchError(
                f"vectors of {self._dim} dimensions are asked for, and {index.path} has {index.dim}",
                argument="dim",
            )

    def _made(self, dim: int) -> velo.Index:
        keywords = {
            name: value
            for name, value in self._options.items()
            if name in ("memory", "threads", "durability", "merge_memory", "unknown_columns")
        }
        self._index = velo.create(
            self._path, dim=dim, metric=self._metric, metadata=pa.schema(_OWN_COLUMNS), text=TEXT, **keywords
        )
        return self._index

    @property
    def index(self) -> velo.Index | None:
        """The index; None before it was made."""
        return self._index

    @property
    def metric(self) -> str:
        return str(self._metric) if self._index is None else self._index.metric

    def columns(self) -> Columns:
        """The fields that filters can look at."""
        schema = pa.schema([]) if self._index is None else self._index.schema
        known = self._known
        if known is None or known[0] is not schema:
            known = self._known = schema, Columns(_of_fields(schema), self._filterable)
        return known[1]

    # ---- writes

    def write(self, documents: Sequence[Document], *, upsert: bool = True) -> None:
        """Add documents, all or none; of several with one id the last counts."""
        if not documents:
            return
        vectors, are_embedded = self._vectors(documents)
        kept = [encoded(one.kept, f"metadata of {one.id!r}") for one in documents]
        fields = [
            values_of(self._chosen(one.fields), dates_in_texts=self._dates_in_texts) for one in documents
        ]
        texts = [_text(one) for one in documents]
        ids = [_id(one.id) for one in documents]
        with self.writing:
            index = self._index
            if index is None:
                index = self._made(vectors.shape[1])
            schema = self._grown(index, fields, all_embedded=bool(are_embedded.all()))
            columns: dict[str, Any] = {TEXT: pa.array(texts, pa.string()), KEPT: pa.array(kept, pa.binary())}
            if EMBEDDED in schema.names:
                columns[EMBEDDED] = pa.array(are_embedded)
            columns.update(_field_columns(schema, fields))
            call = index.upsert if upsert else index.insert
            call(vectors, ids=ids, metadata=pa.table(columns).select(schema.names))

    def change(self, documents: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]]) -> int:
        """Replace `kept` and the fields of documents, by id, and count them; texts and vectors stay."""
        if not documents:
            return 0
        kept = [encoded(one, f"metadata of {name!r}") for name, one, _ in documents]
        fields = [
            values_of(self._chosen(one), dates_in_texts=self._dates_in_texts) for _, _, one in documents
        ]
        with self.writing:
            index = self._index
            if index is None:
                return 0
            schema = self._grown(index, fields, all_embedded=True)
            columns = {KEPT: pa.array(kept, pa.binary()), **_field_columns(schema, fields)}
            return index.update([name for name, _, _ in documents], pa.table(columns)).rows

    def delete(self, ids: Sequence[str] | None = None, condition: Any = None) -> int:
        """Delete documents by id or by a filter over columns, and count those that were there."""
        if self._index is None:
            return 0
        if ids is not None:
            return self._index.delete([_id(one) for one in ids]).rows if ids else 0
        return self._index.delete(filter=condition).rows

    def clear(self) -> int:
        """Delete all documents, and count them."""
        return self.delete(condition=And(()))

    def _chosen(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._filterable is None:
            return fields
        return {name: value for name, value in fields.items() if name in self._filterable}

    def _vectors(self, documents: Sequence[Document]) -> tuple[Any, npt.NDArray[np.bool_]]:
        """A row a document, zeros where it has none, and whether it has one."""
        dim = self._dim if self._index is None else self._index.dim
        rows = []
        for one in documents:
            if one.vector is None:
                continue
            try:
                row = np.asarray(one.vector, np.float32)
            except (TypeError, ValueError) as error:
                raise errors.DtypeError(
                    f"the embedding of {one.id!r} is not a list of numbers: {error}", argument="vectors"
                ) from error
            dim = len(row) if dim is None and row.ndim == 1 else dim
            if row.shape != (dim,):
                raise errors.DimensionMismatchError(
                    f"the embedding of {one.id!r} has shape {row.shape}, and {dim} numbers are expected",
                    argument="vectors",
                )
            if not np.isfinite(row).all():
                raise errors.NotFiniteError(
                    f"the embedding of {one.id!r} holds NaN or an infinity", argument="vectors"
                )
            rows.append(row)
        if dim is None:
            raise errors.InvalidArgumentError(
                "none of the documents has an embedding, so the number of dimensions is unknown: "
                "give it, or embed them first",
                argument="dim",
            )
        are_embedded = np.array([one.vector is not None for one in documents])
        vectors = np.zeros((len(documents), dim), np.float32)
        if rows:
            vectors[are_embedded] = rows
        return vectors, are_embedded

    def _grown(
        self, index: velo.Index, fields: Sequence[Mapping[tuple[str, str], Any]], *, all_embedded: bool
    ) -> Any:
        """The columns of the index, once it has those that these documents need."""
        schema = index.schema
        columns = Columns(_of_fields(schema))
        wanted = list(dict.fromkeys(key for one in fields for key in one))
        added = columns.missing(wanted)
        if len(added) and len(columns.schema) + len(added) > _COLUMNS_MAX:
            raise errors.InvalidArgumentError(
                f"metadata: the fields of the documents make more than {_COLUMNS_MAX} columns: say which of "
                f"them filters ask for (filterable=[…]); the first too many is {added.names[-1]!r}",
                argument="metadata",
            )
        if len(added):
            index.add_columns(added)
        if not all_embedded and EMBEDDED not in schema.names:
            index.add_columns({EMBEDDED: True})
        return index.schema

    # ---- lookups

    def count(self, condition: Any = None) -> int:
        """Documents, or those that pass a filter over columns."""
        return 0 if self._index is None else self._index.count(condition)

    def get(self, ids: Iterable[str], *, with_vectors: bool = False) -> list[Found]:
        """The documents of some ids, in their order; ids that no document has are left out."""
        wanted = [_id(one) for one in ids]
        if self._index is None or not wanted:
            return []
        table = self._index.get(wanted, columns=self._looked(with_vectors), unknown="skip")
        return list(self._found(table, with_vectors))

    def all(self, condition: Any = None, *, with_vectors: bool = False) -> Iterator[Found]:
        """The documents that pass a filter over columns, in the order of their ids."""
        for table in self.tables(condition, self._looked(with_vectors)):
            yield from self._found(table, with_vectors)

    def tables(self, condition: Any, columns: Sequence[str]) -> Iterator[Any]:
        """Columns of the documents that pass a filter over columns, page by page."""
        if self._index is None:
            return
        after = None
        while True:
            table = self._index.rows(condition, limit=_PAGE, after=after, columns=list(columns))
            if table.num_rows:
                yield table
            if table.num_rows < _PAGE:
                return
            after = table["id"][-1]

    def _found(self, table: Any, with_vectors: bool) -> Iterator[Found]:
        vectors: Any = [None] * table.num_rows
        if with_vectors and table.num_rows:
            there, vectors = self._vectors_of(table["id"])
            table, vectors = table.filter(pa.array(there)), list(vectors)
            if EMBEDDED in table.column_names:
                has_one = table[EMBEDDED].to_pylist()
                vectors = [one if embedded else None for one, embedded in zip(vectors, has_one, strict=True)]
        for name, text, kept, vector in zip(
            table["id"].to_pylist(), table[TEXT].to_pylist(), table[KEPT].to_pylist(), vectors, strict=True
        ):
            yield Found(name, text, decoded(kept), vector=vector)

    def _looked(self, with_vectors: bool) -> list[str]:
        """The columns that a document is made of."""
        return [TEXT, KEPT, *([EMBEDDED] if with_vectors and self._some_lack_vectors() else [])]

    def _some_lack_vectors(self) -> bool:
        return self._index is not None and EMBEDDED in self._index.schema.names

    # ---- searches

    def condition(self, given: Any) -> Any:
        """A filter over columns for a filter of velo that names fields."""
        if given is None:
            return None
        return of_fields(_expression(given), self.columns())

    def embedded(self, condition: Any) -> Any:
        """The same filter, of documents alone that have a vector."""
        if not self._some_lack_vectors():
            return condition
        has_one = Compare(EMBEDDED, "eq", True)
        return has_one if condition is None else And((condition, has_one))

    def search(self, vector: Any, k: int, condition: Any, options: Mapping[str, Any]) -> list[Found]:
        """The documents nearest to a vector that pass a filter over columns, nearest first."""
        if self._index is None or k == 0:
            return []
        return self._hits(
            self._index.search(_query(vector), k, filter=condition, return_metadata=[TEXT, KEPT], **options)
        )

    async def search_async(
        self, vector: Any, k: int, condition: Any, options: Mapping[str, Any]
    ) -> list[Found]:
        """The same without blocking the event loop."""
        if self._index is None or k == 0:
            return []
        return self._hits(
            await self._index.search_async(
                _query(vector), k, filter=condition, return_metadata=[TEXT, KEPT], **options
            )
        )

    @staticmethod
    def _hits(result: Any) -> list[Found]:
        table = result.metadata
        scores = [None] * table.num_rows if result.scores is None else result.scores.tolist()
        return [
            Found(name, text, decoded(kept), float(distance), score=score)
            for name, distance, score, text, kept in zip(
                result.ids[: table.num_rows],
                result.distances[: table.num_rows],
                scores[: table.num_rows],
                table[TEXT].to_pylist(),
                table[KEPT].to_pylist(),
                strict=True,
            )
        ]

    def diverse(self, found: Sequence[Found], vector: Any, k: int, share: float) -> list[Found]:
        """Of some hits k that are near a vector and unlike each other (:func:`most_diverse`)."""
        if self._index is None or not found:
            return []
        there, vectors = self._vectors_of(pa.array([one.id for one in found], pa.string()))
        left = [one for one, is_there in zip(found, there, strict=True) if is_there]
        if not left:
            return []
        return [left[at] for at in most_diverse(np.asarray(vector, np.float32), vectors, k, share)]

    def _vectors_of(self, ids: Any) -> tuple[npt.NDArray[np.bool_], Any]:
        """Which of some documents still exist, and the vectors of those."""
        assert self._index is not None
        there = np.ones(len(ids), bool)
        for _ in range(_ATTEMPTS):
            try:
                return there, self._index.get_vectors(ids.filter(pa.array(there)))
            except errors.UnknownIdError:  # deleted since they were read
                there = np.asarray(self._index.contains(ids))
                if not there.any():
                    return there, []
        raise errors.UnknownIdError("documents are deleted all the time: try again", argument="ids")

    def close(self) -> None:
        """Close the index; further calls do nothing."""
        with self.writing:
            if self._index is not None:
                self._index.close()


def most_diverse(query: Any, vectors: Any, k: int, share: float) -> list[int]:
    """Choose k of some vectors one by one, by maximal marginal relevance.

    With a `share` of 1 each is the nearest to the query, with 0 the least similar to those chosen before.
    Similarity is the cosine.
    """
    if not 0 <= share <= 1:
        raise errors.InvalidArgumentError(
            f"lambda_mult must be between 0 and 1, not {share!r}", argument="lambda_mult"
        )
    unit = _unit(np.asarray(vectors, np.float64))
    relevance = unit @ _unit(np.asarray(query, np.float64)[None])[0]
    likeness = np.full(len(unit), -np.inf)
    chosen: list[int] = []
    for _ in range(min(k, len(unit))):
        gain = relevance if not chosen else share * relevance - (1 - share) * likeness
        gain = gain.copy()
        gain[chosen] = -np.inf
        best = int(np.argmax(gain))
        chosen.append(best)
        likeness = np.maximum(likeness, unit @ unit[best])
    return chosen


def _unit(rows: Any) -> Any:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def _query(vector: Any) -> Any:
    try:
        return np.asarray(vector, np.float32)
    except (TypeError, ValueError) as error:
        raise errors.DtypeError(f"the query is not a list of numbers: {error}", argument="queries") from error


def _id(given: Any) -> str:
    if not isinstance(given, str) or not given:
        raise errors.InvalidArgumentError(
            f"an id is a text of one character at least, not {given!r:.80}", argument="ids"
        )
    return given


def _text(document: Document) -> str | None:
    if document.text is not None and not isinstance(document.text, str):
        kind = type(document.text).__name__
        raise errors.InvalidArgumentError(f"the text of {document.id!r} is a {kind}", argument="texts")
    return document.text


def _of_fields(schema: Any) -> Any:
    """A schema without the columns of the store's own."""
    return pa.schema([one for one in schema if not one.name.startswith(OWN)])


def _field_columns(schema: Any, fields: Sequence[Mapping[tuple[str, str], Any]]) -> dict[str, Any]:
    """All columns of fields, a row a document."""
    columns = Columns(_of_fields(schema))
    made = {}
    for field in columns.fields:
        for kind, name in columns.of(field).items():
            made[name] = pa.array([one.get((field, kind)) for one in fields], schema.field(name).type)
    return made


def _expression(given: Any) -> Expr:
    """A filter as users give it to velo."""
    condition = read_condition(given)
    if isinstance(condition, Expr):
        return condition
    if callable(given):
        raise errors.FilterError(
            "filter: an index asks no function: give a dict, an expression of velo.col or SQL",
            argument="filter",
        )
    raise errors.FilterError(
        f"filter: a dict, an expression of velo.col or SQL is expected, not a {type(given).__name__}",
        argument="filter",
    )


def _is_free(path: Any) -> bool:
    """Whether an index can be made there."""
    from pathlib import Path

    folder = Path(path)
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
