"""Filters of a set: a predicate a query, the rows that pass it, and the exact nearest among them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

import velo
from bench.harness import datasets
from bench.harness.datasets import Dataset, K
from velo.formats import read_truth

#: Shares of the rows that pass, asked as ``price < s``.
SHARES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0001)
#: Share of rows whose label follows the vector, in per cent; the others' is drawn by chance.
MIXES = (0, 25, 50, 75, 100)
LABELS = ("uniform10", "zipf10", "cluster10", "far", "norm", "tags2")
COLUMNS = {"far": "far10", "norm": "norm_decile", "tags2": "tags"}
TEXT_CASES = ("section", "size", "tags2")
#: Clusters whose number is the label of a mix, as in the sets that bring such labels.
CLUSTERS = 10
CLUSTER_SAMPLE = 10_000
CLUSTER_ROUNDS = 15


@dataclass(frozen=True)
class Case:
    """One filter.

    Attributes
    ----------
    name : str
    column : str
    values : list
        What each query asks for; equal ones are one predicate.
    queries : ndarray
        The queries that ask, a row each.
    truth_ids : ndarray of shape (nq, k)
        Rows of the base, padded with -1.
    """

    name: str
    column: str
    values: list[Any]
    queries: datasets.Vectors
    truth_ids: NDArray[np.int64]

    def groups(self) -> Iterator[tuple[Any, NDArray[np.int64]]]:
        """Each predicate's value with the queries that share it."""
        members: dict[str, list[int]] = {}
        for query, value in enumerate(self.values):
            members.setdefault(repr(value), []).append(query)
        for queries in members.values():
            yield self.values[queries[0]], np.array(queries)

    @cached_property
    def filters(self) -> list[Any]:
        """One expression a query."""
        return [predicate(self, value) for value in self.values]


def predicate(case: Case, value: Any) -> Any:
    """The expression that asks for ``value``."""
    column = velo.col(case.column)
    if case.name.startswith(("range_", "share_")):
        return column < value
    if case.name == "size":
        return column.between(*value)
    if case.name == "tags2":
        return column.contains_all(list(value))
    return column == value


def names_of(folder: Path) -> list[str]:
    """The filters whose truth the set brings, in a file each (or, for texts, in one)."""
    if (folder / "truth.npz").exists():
        return list(TEXT_CASES)
    names = {path.name.split("truth_", 1)[1].removesuffix(".bin") for path in folder.glob("*truth_*.bin")}
    return sorted(names)


def load(dataset: Dataset, name: str, *, count: int = 1000) -> Case:
    """A filter of the set with the truth that came with it."""
    if (dataset.folder / "truth.npz").exists():
        return _text_case(dataset, name, count)
    folder = dataset.folder
    sample = "sample_" if (folder / "sample.u8bin").exists() else ""
    table = pq.read_table(folder / f"{sample}query_filters.parquet")
    truth = read_truth(folder / f"{sample}truth_{name}.bin").ids[:count]
    count = min(len(truth), len(dataset.queries))
    values: list[Any]
    column = COLUMNS.get(name, name)
    if name.startswith("range_"):
        column, values = "price", [float(name.removeprefix("range_"))] * count
    elif name == "tags2":
        pairs = (table["tag_a"].to_pylist()[:count], table["tag_b"].to_pylist()[:count])
        values = list(zip(*pairs, strict=True))
    else:
        values = table[column].to_pylist()[:count]
    return Case(name, column, values, dataset.queries[:count], truth[:count])


def _text_case(dataset: Dataset, name: str, count: int) -> Case:
    table = pq.read_table(dataset.folder / "query_meta.parquet").slice(0, count)
    with np.load(dataset.folder / "truth.npz") as arrays:
        truth = arrays[f"{name}_ids"][:count].astype(np.int64)
    values: list[Any]
    if name == "section":
        column, values = "section", table["section"].to_pylist()
    elif name == "size":
        column = "installed_size"
        bounds = (table["filter_size_lo"].to_pylist(), table["filter_size_hi"].to_pylist())
        values = list(zip(*bounds, strict=True))
    else:
        column = "tags"
        tags = (table["filter_tag_a"].to_pylist(), table["filter_tag_b"].to_pylist())
        values = list(zip(*tags, strict=True))
    rows = [row for row, value in enumerate(values) if value is not None and value != (None, None)]
    rows = [row for row in rows if row < len(dataset.queries)]
    return Case(name, column, [values[row] for row in rows], dataset.queries[rows], truth[rows])


def share_name(share: float) -> str:
    """``share_0.1``: 10 % pass."""
    return f"share_{share:g}"


def table_of(dataset: Dataset, work: Path) -> Path:
    """The set's columns with those that only these filters need, as a Parquet file in ``work``."""
    assert dataset.labels is not None
    table = pq.read_table(dataset.labels).slice(0, dataset.n)
    path = work / "columns" / f"{dataset.name}-{dataset.n}.parquet"
    if path.exists():
        return path
    random = np.random.default_rng(15)
    rank = random.random(dataset.n)
    if {"cluster10", "uniform10"} <= set(table.column_names):
        near, chance = np.asarray(table["cluster10"]), np.asarray(table["uniform10"])
    else:
        near, chance = clusters(dataset, dataset.base), random.integers(0, CLUSTERS, dataset.n)
    for mix in MIXES:
        column = np.where(rank < mix / 100, near, chance).astype(np.uint8)
        table = table.append_column(mix_name(mix), pa.array(column))
    if "price" not in table.column_names:
        table = table.append_column("price", pa.array(random.random(dataset.n, np.float32)))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(table, unfinished)
    unfinished.replace(path)
    return path


def mix_name(mix: int) -> str:
    return f"mix{mix}"


def clusters(dataset: Dataset, vectors: datasets.Vectors) -> NDArray[np.int64]:
    """The nearest of ten centroids for each vector: a label that follows the vectors."""
    drawn = np.sort(np.random.default_rng(16).permutation(dataset.n)[:CLUSTER_SAMPLE])
    sample = datasets.for_peers(dataset.base[drawn], dataset.metric).astype(np.float32)
    centroids = sample[:CLUSTERS].copy()
    for _ in range(CLUSTER_ROUNDS):
        own = nearest_centroid(sample, centroids)
        for cluster in np.unique(own):
            centroids[cluster] = sample[own == cluster].mean(axis=0)
    return nearest_centroid(datasets.for_peers(vectors, dataset.metric).astype(np.float32), centroids)


def nearest_centroid(rows: NDArray[np.float32], centroids: NDArray[np.float32]) -> NDArray[np.int64]:
    square = np.einsum("ij,ij->i", centroids, centroids)
    near: NDArray[np.int64] = np.argmin(square[None, :] - 2 * (rows @ centroids.T), axis=1)
    return near


def share_case(dataset: Dataset, share: float, columns: Path, *, count: int) -> Case:
    """``price < share``, with truth made here."""
    queries = dataset.queries[:count]
    mask = matching(columns, "price", lambda column: pc.less(column, pa.scalar(share, column.type)))
    truth = made_truth(dataset, queries, share_name(share), columns.parent, [(mask, np.arange(len(queries)))])
    return Case(share_name(share), "price", [share] * len(queries), queries, truth)


def mix_case(dataset: Dataset, mix: int, columns: Path, *, count: int) -> Case:
    """Label == the cluster of the query, where ``mix`` per cent of the labels follow the vectors."""
    name = mix_name(mix)
    brought = dataset.folder / "query_filters.parquet"
    if brought.exists():
        values = pq.read_table(brought, columns=["cluster10"])["cluster10"].to_pylist()
    else:
        values = clusters(dataset, dataset.queries).tolist()
    queries = dataset.queries[: min(count, len(values))]
    values = values[: len(queries)]
    case = Case(name, name, values, queries, np.empty((0, K), np.int64))
    parts = [
        (masks, members) for masks, (_, members) in zip(masks_of(case, columns), case.groups(), strict=True)
    ]
    return Case(name, name, values, queries, made_truth(dataset, queries, name, columns.parent, parts))


def made_truth(
    dataset: Dataset,
    queries: datasets.Vectors,
    name: str,
    folder: Path,
    parts: Sequence[tuple[NDArray[np.bool_], NDArray[np.int64]]],
) -> NDArray[np.int64]:
    """Exact nearest rows among those that pass, for each part's mask and queries; kept in ``folder``."""
    own = hashlib.sha256(np.ascontiguousarray(queries).tobytes()).hexdigest()[:8]
    path = folder / f"truth-{dataset.name}-{dataset.n}-{name}-{own}.npy"
    if path.exists():
        truth: NDArray[np.int64] = np.load(path)
        return truth
    truth = np.full((len(queries), K), -1, np.int64)
    for mask, members in parts:
        rows = np.flatnonzero(mask)
        if len(rows):
            near = datasets.nearest(dataset.base[rows], queries[members], min(K, len(rows)), dataset.metric)
            truth[members, : near.shape[1]] = rows[near]
    np.save(path, truth)
    return truth


def matching(columns: Path, name: str, test: Callable[[Any], Any]) -> NDArray[np.bool_]:
    column = pq.read_table(columns, columns=[name]).column(0).combine_chunks()
    return np.asarray(pc.fill_null(test(column), False))


def masks_of(case: Case, columns: Path) -> list[NDArray[np.bool_]]:
    """For each group of the case, which rows pass; by pyarrow, not by the engine under test."""
    column: Any = pq.read_table(columns, columns=[case.column]).column(0).combine_chunks()
    if case.name == "tags2":
        return _tag_masks(case, column)
    masks = []
    for value, _ in case.groups():
        if case.name.startswith(("range_", "share_")):
            mask = pc.less(column, pa.scalar(value, column.type))
        elif case.name == "size":
            mask = pc.and_kleene(pc.greater_equal(column, value[0]), pc.less_equal(column, value[1]))
        else:
            kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
            mask = pc.equal(column, pa.scalar(value, kind))
        masks.append(np.asarray(pc.fill_null(mask, False)))
    return masks


def _tag_masks(case: Case, column: Any) -> list[NDArray[np.bool_]]:
    """Rows whose list holds both words, by an index from word to rows."""
    parents = np.asarray(pc.list_parent_indices(column))
    words = pc.list_flatten(column).dictionary_encode()
    codes = np.asarray(words.indices)
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(words.dictionary) + 1))
    code_of = {word: code for code, word in enumerate(words.dictionary.to_pylist())}

    def rows_with(word: str) -> NDArray[np.int64]:
        code = code_of.get(word)
        return np.unique(parents[order[bounds[code] : bounds[code + 1]]]) if code is not None else parents[:0]

    masks = []
    for value, _ in case.groups():
        mask = np.zeros(len(column), dtype=bool)
        mask[np.intersect1d(rows_with(value[0]), rows_with(value[1]))] = True
        masks.append(mask)
    return masks


def score(dataset: Dataset, case: Case, ids: NDArray[np.int64]) -> float:
    """Mean recall against the true matches, over the queries that have any."""
    counts = (case.truth_ids >= 0).sum(axis=1)
    exact = datasets.exact_distances(dataset.base, case.queries, case.truth_ids, dataset.metric)
    bound = np.where(np.isinf(exact), -np.inf, exact).max(axis=1)
    some = counts > 0
    shares = datasets.recall_within(dataset, case.queries[some], ids[some], bound[some], counts[some])
    return float(shares.mean())


def share_of(case: Case, masks: Sequence[NDArray[np.bool_]]) -> float:
    """Mean share of the rows that pass, over the queries."""
    sizes = [len(members) for _, members in case.groups()]
    return float(np.average([mask.mean() for mask in masks], weights=sizes))
