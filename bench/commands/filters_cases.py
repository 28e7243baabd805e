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
LABELS = ("uniform10", "zipf10", "cluster10", "far", "norm", "tags2")
COLUMNS = {"far": "far10", "norm": "norm_decile", "tags2": "tags"}


@dataclass(frozen=True)
class Case:
    """One filter: the value that each query asks for, and the true rows padded with -1."""

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
    if case.name == "tags2":
        return column.contains_all(list(value))
    return column == value


def names_of(folder: Path) -> list[str]:
    """The filters whose truth the set brings, in a file each."""
    names = {path.name.split("truth_", 1)[1].removesuffix(".bin") for path in folder.glob("*truth_*.bin")}
    return sorted(names)


def load(dataset: Dataset, name: str, *, count: int = 1000) -> Case:
    """A filter of the set with the truth that came with it."""
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


def share_name(share: float) -> str:
    """``share_0.1``: 10 % pass."""
    return f"share_{share:g}"


def table_of(dataset: Dataset, work: Path) -> Path:
    """The set's columns with a price of each row, as a Parquet file in ``work``."""
    path = work / "columns" / f"{dataset.name}-{dataset.n}.parquet"
    if not path.exists():
        prices = pa.array(np.random.default_rng(15).random(dataset.n, np.float32))
        table = pa.table({"price": prices}) if dataset.labels is None else pq.read_table(dataset.labels)
        table = table.slice(0, dataset.n)
        if "price" not in table.column_names:
            table = table.append_column("price", prices)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        pq.write_table(table, unfinished)
        unfinished.replace(path)
    return path


def share_case(dataset: Dataset, share: float, columns: Path, *, count: int) -> Case:
    """``price < share``, with truth made here."""
    queries = dataset.queries[:count]
    mask = matching(columns, "price", lambda column: pc.less(column, pa.scalar(share, column.type)))
    truth = made_truth(dataset, queries, share_name(share), columns.parent, [(mask, np.arange(len(queries)))])
    return Case(share_name(share), "price", [share] * len(queries), queries, truth)


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
