"""The cases of ``bench filters``: masks, shares, truth, and the targets over them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.commands import filters, filters_cases
from bench.harness import datasets
from bench.harness.curves import RECALL
from bench.harness.report import Page
from tests.bench.small_set import made


def case(
    name: str, column: str, values: list[object], truth: list[list[int]] | None = None
) -> filters_cases.Case:
    ids = np.array(truth if truth is not None else [[-1] * datasets.K] * len(values))
    return filters_cases.Case(name, column, values, np.zeros((len(values), 2), np.float32), ids)


def test_masks_follow_the_predicate_and_nulls_never_pass(tmp_path: Path) -> None:
    table = pa.table(
        {
            "price": pa.array([0.1, 0.5, None, 0.9], pa.float32()),
            "section": pa.array(["a", "b", None, "a"]).dictionary_encode(),
            "tags": pa.array([["x", "y"], ["y"], None, ["y", "z", "x"]]),
        }
    )
    path = tmp_path / "columns.parquet"
    pq.write_table(table, path)

    def masks(asked: filters_cases.Case) -> list[list[bool]]:
        return [mask.tolist() for mask in filters_cases.masks_of(asked, path)]

    assert masks(case("share_0.5", "price", [0.6])) == [[True, True, False, False]]
    assert masks(case("section", "section", ["a", "b", "a"])) == [
        [True, False, False, True],
        [False, True, False, False],
    ]
    assert masks(case("tags2", "tags", [("x", "y"), ("y", "absent")])) == [
        [True, False, False, True],
        [False] * 4,
    ]


def test_share_is_weighed_by_the_queries_that_ask() -> None:
    asked = case("zipf10", "zipf10", [1, 1, 1, 2])
    masks = [np.array([True, False, False, False]), np.array([True, True, True, True])]
    assert filters_cases.share_of(asked, masks) == pytest.approx((3 * 0.25 + 1) / 4)


def test_over_fetched_answers_keep_what_passes_in_its_order() -> None:
    asked = case("uniform10", "uniform10", [7, 8])
    masks = [np.array([True, False, True, True]), np.array([False, True, False, False])]
    found = np.array([[3, 1, 0, -1], [0, 2, 3, 1]])
    kept = filters.passing(found, asked, masks)
    assert kept[0].tolist() == [3, 0, *[-1] * 8]
    assert kept[1].tolist() == [1, *[-1] * 9]


def test_truth_that_is_made_is_exact_among_the_rows_that_pass(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    base, queries = random.integers(0, 256, (300, 8), np.uint8), random.integers(0, 256, (6, 8), np.uint8)
    dataset = datasets.Dataset("made", tmp_path, "l2", base, queries, np.zeros((6, 10), np.int64))
    few, many = np.zeros(300, bool), random.random(300) < 0.5
    few[[5, 7, 11]] = True
    parts = [(few, np.array([0, 3])), (many, np.array([1, 2, 4, 5]))]
    truth = filters_cases.made_truth(dataset, queries, "x", tmp_path, parts)
    distances = ((base[None].astype(int) - queries[:, None].astype(int)) ** 2).sum(axis=2)
    assert sorted(truth[0][:3].tolist()) == [5, 7, 11]
    assert (truth[0][3:] == -1).all()
    allowed = np.flatnonzero(many)
    expected = allowed[np.argsort(distances[1, allowed], kind="stable")[: datasets.K]]
    assert truth[1].tolist() == expected.tolist()
    assert np.array_equal(filters_cases.made_truth(dataset, queries, "x", tmp_path, []), truth)


def found_of(share: float, name: str, qps: float, reads: float, late_reads: float) -> dict[str, Any]:
    def rows(cost: float) -> list[dict[str, Any]]:
        made = ((16, 0.8, 0.8), (64, 0.95, 1.0), (256, 0.99, 1.5))
        return [
            {"list_size": size, RECALL: recall, "reads": cost * factor, "qps": qps / factor}
            for size, recall, factor in made
        ]

    told = {"share": share, "rows": rows(reads), "late": rows(late_reads), "setting": rows(reads)[1]}
    return {name: {"section": name, "result": told}}


def test_targets_compare_with_late_filtering_by_share() -> None:
    found = found_of(0.2, "share_0.2", 1000, 20, 100) | found_of(0.1, "share_0.1", 1500, 14, 100)
    found |= found_of(0.01, "share_0.01", 900, 1.0, 100)
    page = Page(Path(), "made", {}, found)
    table = {target.what: target.line(found) for target in filters.targets(page)}
    worst = table["reads ÷ (reads filtering late × share), worst of all shares ≥ 1 %"]
    assert worst.value == pytest.approx(1.4)
    slower = table["QPS where fewer than 20 % pass ÷ QPS at 20 %, the least"]
    assert slower.value == pytest.approx(0.9)
    assert slower.verdict == "**missed**"
    assert table["recall@10 at recall=0.95, worst of all filters"].verdict == "met"


def test_a_set_without_columns_gets_prices_by_chance(tmp_path: Path) -> None:
    dataset = made("l2", n=4000)
    columns = filters_cases.table_of(dataset, tmp_path)
    share = filters_cases.share_case(dataset, 0.1, columns, count=20)
    masks = filters_cases.masks_of(share, columns)
    assert filters_cases.share_of(share, masks) == pytest.approx(0.1, abs=0.02)
    assert masks[0][share.truth_ids].all()
    assert filters.tenth(replace(dataset, folder=tmp_path)) == "share_0.1"
