"""Options of a new index: one set for Python, for collections and for the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, NamedTuple, TypedDict, TypeVar, get_args, get_origin, get_type_hints

from velo.errors import InvalidArgumentError
from velo.options.checks import (
    SHARE_FLOOR_BYTES,
    UINT32_MAX,
    in_range,
    is_share,
    limit_of,
    memory_bytes,
    real_number,
    whole_number,
)
from velo.options.codes import METRIC_CODES, code_of, gpu_code
from velo.options.sizes import SHARD_ROWS_MAX, sizes_of
from velo.types import Memory, MetricName

__all__ = ["BuildKeywords", "BuildOptions", "build_options", "shows_build_options"]

Built = TypeVar("Built", bound=Callable[..., Any])


class BuildKeywords(TypedDict, total=False):
    """The public keywords of :class:`BuildOptions`, for type checkers of ``velo.build(**options)``."""

    metric: MetricName
    search_memory: Memory | None
    memory_bits: int | None
    record_bits: int | None
    degree: int
    build_list_size: int
    alpha: float
    links_kept: int | None
    page_links: bool | None
    page_codes: bool | None
    record_code_bytes: int | None
    threads: int | None
    seed: int
    store_vectors: bool | None
    calibrate: bool
    device: str


class PublicField(NamedTuple):
    """An option that users name."""

    name: str
    default: Any
    type: Any
    help: str


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Options of a new index; see :func:`velo.build` for the meaning of each.

    The text beside a field is its help in ``velo build --help``, before its limit. Fields without one are for
    experiments: records of a page belong to one color, which a cache keeps together, if they are within
    `affinity_percent` of the distances to a cluster's centroid (VeloANN, §3.4).
    """

    metric: Annotated[str, "l2, ip or cosine."] = "l2"
    search_memory: Annotated[
        Memory | None, "Budget that searches will have; it chooses the bits that you leave open."
    ] = None
    memory_bits: Annotated[int | None, "Bits a dimension in memory; usually 4."] = None
    record_bits: Annotated[int | None, "Further bits a dimension on disk; usually 10 in all."] = None
    degree: Annotated[int, "Links of a vertex."] = 48
    build_list_size: Annotated[int, "Candidates kept while a vertex is linked."] = 100
    alpha: Annotated[float, "Pruning; above 1 keeps longer links."] = 1.2
    links_kept: Annotated[
        int | None,
        "Links a vertex that can be kept in memory; 32, or the degree if that is less. "
        "8 if --search-memory has no room for codes.",
    ] = None
    page_links: Annotated[
        bool | None,
        "Pages hold links, too: an index needs them that is opened in less memory than links take. "
        "Left open, they do unless --search-memory has room for links.",
    ] = None
    page_codes: Annotated[
        bool | None,
        "Pages hold whole codes and list neighbors with their codes, and a few codes of each page are "
        "stored beside them: an index needs both to open in less memory than codes take. Left open, they do "
        "if --search-memory has no room for codes.",
    ] = None
    record_code_bytes: Annotated[
        int | None,
        "With --page-codes: bytes of a product code of each row, stored beside the codes of pages; 0: none. "
        "Left open, the longest for which --search-memory has room, if it has none for codes and links.",
    ] = None
    threads: Annotated[int | None, "Worker threads; all cores without it."] = None
    seed: Annotated[int, "Seed of everything random."] = 0
    store_vectors: Annotated[
        bool | None, "Keep the vectors themselves, for exact distances; else only where codes miss a recall."
    ] = None
    calibrate: Annotated[bool, "Measure which list each recall takes."] = True
    device: Annotated[str, "cpu, cuda (or cuda:1, …) to link vertices with a GPU, or auto."] = "cpu"
    affinity_percent: int = 5
    #: Seconds at least between two times that the state of a long stage is saved, for a build that is killed.
    checkpoint_s: float = 30.0

    def __post_init__(self) -> None:
        code_of(METRIC_CODES, self.metric, "metric")
        gpu_code(self.device)
        memory_bytes(self.search_memory, 1_000_000, 1_000, "search_memory")
        for name in ("degree", "build_list_size", "affinity_percent"):
            in_range(getattr(self, name), name)
        for name in ("memory_bits", "record_bits", "threads"):
            if getattr(self, name) is not None:
                in_range(getattr(self, name), name)
        if self.record_code_bytes is not None:
            whole_number(self.record_code_bytes, "record_code_bytes", *limit_of("record_code_bytes"))
        if self.links_kept is not None:
            whole_number(self.links_kept, "links_kept", limit_of("links_kept").low, self.degree)
        if self.links_kept == 0 and self.page_links is False:
            raise InvalidArgumentError(
                "links_kept is 0, and pages shall hold no links either: nothing could be searched",
                argument="links_kept",
            )
        whole_number(self.seed, "seed", 0, 2**64 - 1)
        real_number(self.alpha, "alpha", *limit_of("alpha"))
        least, most = limit_of("checkpoint_ms")
        real_number(self.checkpoint_s, "checkpoint_s", least / 1000, most / 1000)

    def for_vectors(self, row_count: int, dim: int) -> BuildOptions:
        """These options with open ones chosen: bits, and the number and place of links.

        Raises
        ------
        BudgetTooSmallError
            Not even page centroids would fit in `search_memory`, so that the index could not be opened in it.
        InvalidArgumentError
            One index does not hold this many vectors; the error tells how many shards do.
        """
        if row_count > SHARD_ROWS_MAX:
            raise InvalidArgumentError(
                f"an index holds up to {SHARD_ROWS_MAX:,} vectors, and these are {row_count:,}: "
                f"divide them into {-(-row_count // SHARD_ROWS_MAX)} shards or more (build_collection)",
                argument="vectors",
            )
        sizes = sizes_of(
            row_count,
            dim,
            memory_bytes=memory_bytes(self.search_memory, row_count, dim, "search_memory"),
            memory_floor_bytes=SHARE_FLOOR_BYTES if is_share(self.search_memory) else 0,
            degree=self.degree,
            memory_bits=self.memory_bits,
            record_bits=self.record_bits,
            links_kept=self.links_kept,
            page_links=self.page_links,
            page_codes=self.page_codes,
            record_code_bytes=self.record_code_bytes,
        )
        return replace(
            self,
            memory_bits=int(sizes.memory_bits),
            record_bits=int(sizes.record_bits),
            links_kept=int(sizes.links_built),
            page_links=bool(sizes.page_links),
            page_codes=bool(sizes.page_codes),
            record_code_bytes=int(sizes.record_code_bytes),
        )

    def fill(self, struct: Any) -> None:
        """Write these into a ``velo_build_options``; what was left open must be chosen (`for_vectors`)."""
        struct.metric = METRIC_CODES[self.metric]
        struct.memory_bits = self.memory_bits
        struct.record_bits = self.record_bits
        struct.degree = self.degree
        struct.build_list_size = self.build_list_size
        struct.alpha = self.alpha
        struct.links_kept = UINT32_MAX if self.links_kept is None else self.links_kept
        struct.no_page_links = int(not self.page_links)
        struct.page_codes = int(bool(self.page_codes))
        struct.record_code_bytes = self.record_code_bytes or 0
        struct.threads = self.threads or 0
        struct.seed = self.seed
        struct.store_vectors = int(bool(self.store_vectors))
        struct.affinity_percent = self.affinity_percent
        struct.checkpoint_ms = int(self.checkpoint_s * 1000)

    @classmethod
    def public_fields(cls) -> tuple[PublicField, ...]:
        """The options that users name, in Python and on the command line."""
        types = get_type_hints(cls, include_extras=True)
        return tuple(
            PublicField(one.name, one.default, *get_args(types[one.name]))
            for one in fields(cls)
            if get_origin(types[one.name]) is Annotated
        )


def build_options(function: str, keywords: Mapping[str, Any]) -> BuildOptions:
    """The checked options of a call of `function`; TypeError for an unknown keyword, as Python raises it."""
    names = {one.name for one in BuildOptions.public_fields()}
    for name in keywords:
        if name not in names:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    return BuildOptions(**keywords)


def shows_build_options(function: Built) -> Built:
    """Let ``help`` and editors see each option where a function takes ``**options``, with its default."""
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    shown = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
        for one in BuildOptions.public_fields()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
    return function
