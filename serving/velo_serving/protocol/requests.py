"""A search as a request, whose options are declared here and nowhere else.

``SearchOptions`` pass unchanged from a client to the shards. The HTTP body and its checks, the query string
of an Arrow body, the OpenAPI schema, the routed request and the head of its frame derive from them: a new
option of every search is a field here and a keyword of the client.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    TypeAlias,
    TypedDict,
    TypeVar,
    cast,
    get_type_hints,
)

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Meta, Struct, UnsetType

from velo.errors import InvalidArgumentError
from velo.options import RRF, Fusion, Weighted, fusion_of, limit_of

F = TypeVar("F", bound=Callable[..., Any])
Float32Matrix: TypeAlias = npt.NDArray[np.float32]
#: A filter as it travels: a dict, or SQL text.
FilterForm: TypeAlias = Mapping[str, Any] | str


def _within(argument: str) -> Meta:
    low, high = limit_of(argument)
    return Meta(ge=low, le=high)


#: All of one kind (``check_ids``): msgspec has no union of lists.
Ids: TypeAlias = list[int | str]
FilterJson: TypeAlias = dict[str, Any] | str
Positive: TypeAlias = Annotated[float, Meta(gt=0)]
Weight: TypeAlias = Annotated[
    Annotated[float, Meta(ge=0, le=1e6)] | None,
    Meta(description="Weight of this list; 0 leaves it out. Default as in the library."),
]
OneFilter: TypeAlias = Annotated[FilterJson | None, Meta(description="A dict of conditions, or SQL text.")]
NeighborCount: TypeAlias = Annotated[
    Annotated[int, _within("k")], Meta(description="How many neighbors of each query.")
]
AllowPartial: TypeAlias = Annotated[bool, Meta(description="If false, a missing shard is an error.")]
Timeout: TypeAlias = Annotated[Positive | None, Meta(description="Deadline of this request.")]

#: Requests that may bring more hits, or more rows of metadata, are heavy.
LIGHT_HITS_MAX: Final = 8192
LIGHT_ROWS_MAX: Final = 1000

#: Fields that are columns of an Arrow body, or need JSON; all others may be in the query string.
NOT_IN_ARROW: Final = frozenset(("vector", "vectors", "ids", "filters", "text", "fusion"))


class Effort(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """Options that an index takes as keywords of the same names."""

    recall: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="Aim for this recall; 1 reads every stored vector."),
    ] = None
    list_size: Annotated[
        Annotated[int, _within("list_size")] | None, Meta(description="Length of the candidate list.")
    ] = None
    exact: Annotated[bool | None, Meta(description="Exact distances, or estimates.")] = None


class EffortKeywords(TypedDict, total=False):
    """``Effort`` as type checkers and editors see it."""

    recall: float | None
    list_size: int | None
    exact: bool | None


class SearchOptions(Effort, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """Options of a search that pass unchanged from a client to the shards."""

    group_by: Annotated[str | None, Meta(description="Column: answer with the nearest k groups.")] = None
    group_size: Annotated[
        Annotated[int, _within("group_hits")] | None, Meta(description="Rows of a group; default 1.")
    ] = None
    radius: Annotated[float | None, Meta(description="All within this distance, not the nearest k.")] = None
    return_vectors: Annotated[bool, Meta(description="Return the stored vectors of the hits.")] = False
    allow_partial: AllowPartial = True


class FusionBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fusion of full-text and vector search: ``velo.RRF`` or ``velo.Weighted``."""

    method: Annotated[Literal["rrf", "weighted"], Meta(description="By ranks, or by scores.")]
    vectors: Weight = None
    words: Weight = None
    depth: Annotated[
        Annotated[int, _within("k")] | None,
        Meta(description="Hits of each list; at least as many as are asked for."),
    ] = None
    constant: Annotated[
        Annotated[float, Meta(ge=0, le=1e6)] | None,
        Meta(description="Of rrf: a hit scores weight / (constant + rank)."),
    ] = None

    def __post_init__(self) -> None:
        if self.constant is not None and self.method != "rrf":
            raise ValueError("'constant' goes with 'rrf'")
        try:
            self.made()
        except InvalidArgumentError as error:
            raise ValueError(error.message) from None

    def made(self) -> Fusion:
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return RRF(**given) if given.pop("method") == "rrf" else Weighted(**given)


class SearchBody(SearchOptions, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """A search in JSON: one `vector` or several `vectors`."""

    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "vectors": [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]],
        "k": 10,
        "filter": {"year": {"$gte": 2020}},
        "return_metadata": ["title"],
    }

    vector: Annotated[list[float] | None, Meta(description="One query.")] = None
    vectors: Annotated[list[list[float]] | None, Meta(description="Several queries of one length.")] = None
    ids: Annotated[Ids | None, Meta(description="Rows whose vectors are the queries.")] = None
    k: Annotated[
        Annotated[int, _within("k")] | UnsetType,
        Meta(description="How many neighbors of each query: 10 by default, and not with `radius`."),
    ] = UNSET
    limit: Annotated[Annotated[int, _within("limit")] | None, Meta(description="Hits of a query.")] = None
    filter: Annotated[FilterJson | None, Meta(description="A dict of conditions, or SQL text.")] = None
    filters: Annotated[list[FilterJson | None] | None, Meta(description="A filter for each query.")] = None
    return_metadata: Annotated[list[str] | bool | None, Meta(description="Columns; true for all.")] = None
    text: Annotated[
        str | list[str] | None,
        Meta(
            description="Words that rows are found by, too: of all queries, or a text for each. Without "
            "vectors words alone are asked."
        ),
    ] = None
    fusion: Annotated[
        Literal["rrf", "weighted"] | FusionBody | None,
        Meta(
            description="How words and vectors become one list: by ranks, as by default, or by scores; an "
            "object has weights, too."
        ),
    ] = None
    timeout_ms: Timeout = None

    def __post_init__(self) -> None:
        given = sum(one is not None for one in (self.vector, self.vectors, self.ids))
        text = self.text
        check_ids(self.ids)
        finite = all(map(math.isfinite, (self.radius or 0, self.timeout_ms or 0)))
        for name, wrong in (
            ("'radius' and 'timeout_ms' are finite", not finite),
            ("give one of 'vector', 'vectors' and 'ids'", given > 1),
            (
                "'fusion' goes with 'text' and vectors",
                self.fusion is not None and (text is None or not given),
            ),
            (
                "'text' goes without 'group_by' and 'radius'",
                text is not None and (self.group_by is not None or self.radius is not None),
            ),
            ("give one of 'filter' and 'filters'", self.filter is not None and self.filters is not None),
            ("give one of 'radius' and 'group_by'", self.radius is not None and self.group_by is not None),
            ("'radius' goes with 'limit', not with 'k'", self.radius is not None and self.k is not UNSET),
            ("'limit' goes with 'radius'", self.radius is None and self.limit is not None),
            ("'group_size' goes with 'group_by'", self.group_by is None and self.group_size is not None),
        ):
            if wrong:
                raise ValueError(name)
        several: Sequence[Any] | None = self.ids if self.vectors is None else self.vectors
        if not given and isinstance(text, list):
            several = text
        count = 1 if several is None else len(several)
        if isinstance(text, list) and len(text) != count:
            raise ValueError(f"'text' has {len(text)} entries for {count} vectors")
        if self.filters is not None and len(self.filters) != count:
            raise ValueError(f"'filters' has {len(self.filters)} entries for {count} vectors")

    def fuses(self) -> Fusion:
        return self.fusion.made() if isinstance(self.fusion, FusionBody) else fusion_of(self.fusion)


class SearchRequest(SearchOptions, frozen=True, eq=False):
    """Some queries that share all options but the filter.

    ``filters`` has one element for all queries, or one for each. ``ids`` are rows whose vectors are the
    queries; the gateway replaces ``queries`` by these vectors. ``text`` has one element for each query; a
    shard answers it with a full-text search, whose distances are negated scores. ``fusion`` combines both
    lists in the router; None means full text only. With ``radius`` there are at most k hits of each query.
    """

    queries: Float32Matrix
    k: int
    filters: tuple[FilterForm | None, ...] | None = None
    return_metadata: tuple[str, ...] | None = None
    timeout_s: float | None = None
    ids: tuple[int | str, ...] | None = None
    text: tuple[str, ...] | None = None
    fusion: Any = None
    #: Kept by the codec: every shard is sent the same bytes. A changed copy begins without.
    encoded: Any = None
    #: Whether it is a part, or a consequence, of a heavy request.
    of_heavy: bool = False

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "encoded", None)
        assert self.queries.ndim == 2
        assert self.k >= 1
        assert self.group_by is None or self.radius is None
        assert self.filters is None or len(self.filters) in (1, len(self.queries))
        assert self.text is None or len(self.text) == len(self.queries)

    def filter_of(self, query: int) -> FilterForm | None:
        if self.filters is None:
            return None
        return self.filters[0] if len(self.filters) == 1 else self.filters[query]

    def part(self, rows: Sequence[int], **changes: Any) -> SearchRequest:
        """The request of some of its queries, in the class of all."""
        filters, text = self.filters, self.text
        if filters is not None and len(filters) > 1:
            filters = tuple(filters[row] for row in rows)
        return msgspec.structs.replace(
            self,
            queries=self.queries[rows],
            filters=filters,
            text=None if text is None else tuple(text[row] for row in rows),
            of_heavy=self.is_heavy,
            **changes,
        )

    @property
    def group_hits(self) -> int:
        return self.group_size or 1

    @property
    def is_heavy(self) -> bool:
        """Whether it occupies a shard or the gateway for long, and so waits in a queue of its own."""
        hits_max = len(self.queries) * self.k
        return (
            self.of_heavy
            or hits_max > LIGHT_HITS_MAX
            or (self.return_metadata is not None and hits_max > LIGHT_ROWS_MAX)
            or bool(self.exact)
            or self.recall == 1
            or self.group_by is not None
            or self.radius is not None
        )


def options_of(given: SearchOptions) -> dict[str, Any]:
    return {name: getattr(given, name) for name in SearchOptions.__struct_fields__}


def effort_of(given: Effort) -> dict[str, Any]:
    return {name: getattr(given, name) for name in Effort.__struct_fields__}


def shows_effort(function: F) -> F:
    """Let a function take the options of ``Effort`` as ``**effort``, and show each in its signature."""
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    kinds = get_type_hints(EffortKeywords)
    known = {one.name for one in own} | set(kinds)

    @functools.wraps(function)
    def called(*arguments: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name not in known:
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
        return function(*arguments, **keywords)

    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in kinds.items()
    ]
    called.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
    return cast("F", called)


def check_ids(ids: Iterable[int | str] | None, name: str = "ids") -> None:
    if ids is not None and len({isinstance(one, str) for one in ids}) > 1:
        raise ValueError(f"'{name}' are numbers or strings, not both")
