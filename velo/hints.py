"""Names that other libraries use for what velo calls otherwise; error messages suggest velo's name."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

__all__ = ["FUNCTIONS", "METHODS", "METRICS", "OPTIONS", "hinted", "metric_hint"]

#: Names at the top of other libraries.
FUNCTIONS: Final = {
    **dict.fromkeys(
        ("read_index", "load", "load_index", "connect", "restore", "from_disk"),
        "velo.open(path) opens an index",
    ),
    **dict.fromkeys(
        ("create_index", "create_table", "index_factory", "IndexFlatL2", "IndexHNSWFlat", "Client"),
        "velo.build(path, vectors) makes an index, velo.open(path) opens it",
    ),
    **dict.fromkeys(
        ("write_index", "save", "save_index"), "velo.build(path, vectors) writes the index as it builds it"
    ),
    **dict.fromkeys(("search", "query", "knn"), "index.search(queries, k), where index = velo.open(path)"),
    **dict.fromkeys(("Collection", "create_collection"), "velo.build_collection(path, vectors, shards=10)"),
}

_INSERT: Final = "index.insert(vectors), where index = velo.open(path, writable=True)"
#: Names of methods of an index.
METHODS: Final = {
    **dict.fromkeys(("add_items", "add_with_ids", "add", "append"), _INSERT),
    **dict.fromkeys(("train", "fit"), "nothing is trained: velo.build(path, vectors) makes an index"),
    **dict.fromkeys(("knn_query", "query", "knn", "query_points", "nearest"), "index.search(queries, k)"),
    **dict.fromkeys(("search_by_ids", "retrieve", "fetch"), "index.get(ids) and index.get_vectors(ids)"),
    **dict.fromkeys(("scroll", "iterate", "to_list"), "index.rows(filter, limit=…, after=…)"),
    **dict.fromkeys(("reconstruct", "reconstruct_n", "get_items"), "index.get_vectors(ids)"),
    **dict.fromkeys(("remove_ids", "remove", "mark_deleted"), "index.delete(ids)"),
    **dict.fromkeys(
        ("save", "save_index", "write", "serialize"), "the index is on disk already, in index.path"
    ),
    **dict.fromkeys(("ntotal", "size", "element_count", "count_rows", "shape"), "len(index)"),
    **dict.fromkeys(("d", "dimension", "dimensions", "ndim"), "index.dim"),
    **dict.fromkeys(("set_ef", "nprobe", "hnsw"), "index.search(queries, k, recall=0.95), or list_size="),
}

#: Names of options of build, open, search and the writes; some of one call alone.
OPTIONS: Final = {
    **dict.fromkeys(("top_k", "topk", "limit", "n_neighbors", "n_results", "num_results"), "k"),
    **dict.fromkeys(
        ("ef", "ef_search", "efSearch", "nprobe", "search_k", "num_candidates", "L"), "list_size, or recall"
    ),
    **dict.fromkeys(("where", "filters", "predicate", "query_filter", "prefilter", "expr"), "filter"),
    **dict.fromkeys(("M", "m", "max_degree", "connectivity", "R"), "degree"),
    **dict.fromkeys(("ef_construction", "efConstruction", "expansion_add", "build_ef"), "build_list_size"),
    **dict.fromkeys(("space", "distance", "metric_type", "similarity"), "metric"),
    **dict.fromkeys(("data", "xb", "embeddings", "vectors_path"), "vectors"),
    **dict.fromkeys(("num_threads", "n_jobs", "workers"), "threads"),
    **dict.fromkeys(("payload", "payloads", "metadatas", "attributes"), "metadata"),
    **dict.fromkeys(("with_payload", "include", "output_fields", "columns"), "return_metadata"),
    **dict.fromkeys(("memory_budget", "ram", "cache_size", "search_dram_budget"), "memory"),
    **dict.fromkeys(("timeout", "timeout_ms"), "timeout_s"),
    **dict.fromkeys(
        ("score_threshold", "distance_threshold", "max_distance"), "range_search(queries, radius)"
    ),
    **dict.fromkeys(("d", "dimension", "dim", "dims"), "nothing: the vectors have it"),
    **dict.fromkeys(("exist_ok", "mode", "force"), "overwrite"),
    "update.vectors": "upsert(vectors, ids, metadata): it replaces vectors and columns together",
}

METRICS: Final = {
    "l2": "l2",
    "ip": "ip",
    "cosine": "cosine",
    **dict.fromkeys(("euclidean", "l2sq", "sqeuclidean", "euclid", "l2_squared", "squared_l2"), "l2"),
    **dict.fromkeys(("dot", "dot_product", "inner_product", "inner", "innerproduct", "mips"), "ip"),
    **dict.fromkeys(("cos", "angular", "cosine_similarity"), "cosine"),
}

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def metric_hint(value: object) -> str:
    """The metric that a name of another library stands for, as the end of a message; often empty."""
    known = METRICS.get(value.lower().replace("-", "_").replace(" ", "_")) if isinstance(value, str) else None
    return f"; {value!r} is {known!r} here" if known else ""


def hinted(call: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wrap a call so that its error about an unknown option names velo's word for it.

    A wrapper costs a Python frame a call, so searches and inserts go without.
    """

    @functools.wraps(call)
    def with_hint(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return call(*args, **kwargs)
        except TypeError as error:
            unknown = re.search(r"got an unexpected keyword argument '(\w+)'", str(error))
            if unknown is None or unknown[1] not in kwargs:
                raise
            name = call.__name__.removesuffix("_index").removesuffix("_path")
            word = OPTIONS.get(f"{name}.{unknown[1]}") or OPTIONS.get(unknown[1])
            hint = f"; velo's word is {word}" if word else f"; help({name}) lists them"
            raise TypeError(f"{name}() has no option {unknown[1]!r}{hint}") from None

    return with_hint
