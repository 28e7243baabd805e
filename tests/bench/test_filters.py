"""Filtered search's benchmarks: the cases are what they say, and a small one runs to its report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.commands import filters, filters_cases, filters_sections
from bench.harness import datasets, sections
from bench.harness.curves import RECALL

SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "data"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the index is kept that several tests measure."""
    return tmp_path_factory.mktemp("work")


def context(work: Path, **options: object) -> sections.Context:
    chosen = {"budgets": ["25%"], "budget": "25%", "peers": [], "lists": [32, 96], "ladder": False}
    return sections.Context(str(SAMPLE), str(work), None, 100, 10, 2, chosen | options)


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
            "installed_size": pa.array([10, 20, None, 30]),
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
    assert masks(case("size", "installed_size", [(15, 30)])) == [[False, True, False, True]]


def test_share_is_weighed_by_the_queries_that_ask() -> None:
    asked = case("zipf10", "zipf10", [1, 1, 1, 2])
    masks = [np.array([True, False, False, False]), np.array([True, True, True, True])]
    assert filters_cases.share_of(asked, masks) == pytest.approx((3 * 0.25 + 1) / 4)


def test_over_fetched_answers_keep_what_passes_in_its_order() -> None:
    asked = case("uniform10", "uniform10", [7, 8])
    masks = [np.array([True, False, True, True]), np.array([False, True, False, False])]
    found = np.array([[3, 1, 0, -1], [0, 2, 3, 1]])
    kept = filters_sections.passing(found, asked, masks)
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


def found_of(
    share: float, name: str, qps: float, reads: float, late_reads: float
) -> dict[str, sections.Results]:
    def rows(cost: float) -> list[dict[str, object]]:
        made = ((16, 0.8, 0.8), (64, 0.95, 1.0), (256, 0.99, 1.5))
        return [
            {
                "filter": name,
                "plan": "auto",
                "list_size": size,
                RECALL: recall,
                "reads": cost * factor,
                "rounds": 1.5,
                "estimates": 100.0,
                "qps": qps / factor,
            }
            for size, recall, factor in made
        ]

    setting = rows(reads)[1] | {"list_size": 0}
    result = {
        "share": share,
        "rows": rows(reads),
        "late": rows(late_reads),
        "setting": setting,
        "filter": name,
    }
    return {name: {"section": name, "result": result}}


def test_targets_compare_with_late_filtering_by_share() -> None:
    found = found_of(0.2, "share_0.2", 1000, 20, 100) | found_of(0.1, "share_0.1", 1500, 14, 100)
    found |= found_of(0.01, "share_0.01", 900, 1.0, 100)
    table = {line.what: line for line in filters.target_lines(found)}
    worst = table["reads ÷ (reads filtering late × share), worst of all shares ≥ 1 %"]
    assert worst.value == pytest.approx(1.4)
    slower = table["QPS where fewer than 20 % pass ÷ QPS at 20 %, the least"]
    assert slower.value == pytest.approx(0.9)
    assert slower.verdict == "**missed**"
    assert table["recall@10 at recall=0.95, worst of all filters"].verdict == "met"
    assert table["links in memory, 32 a vertex: bytes"].value is None


def test_a_filter_is_measured_to_its_report(work: Path, tmp_path: Path) -> None:
    only = ["uniform10", "share_0.1", "links", "unfiltered", "predicate", "store", "edges"]
    table = filters.run(context(work), tmp_path / "out", "filters", only)
    found = {line.what: line for line in table}
    assert (found["links in memory, 32 a vertex: bytes"].value or 0) > 10
    assert (found["recall@10 at recall=0.95, worst of all filters"].value or 0) > 0.8
    text = (tmp_path / "out" / "filters.md").read_text()
    assert "| uniform10 |" in text
    assert "not asked for" in text
    early = filters_sections.rows_of(
        {"x": {"result": filters_sections.measure_case("uniform10")(context(work))}}, "x"
    )
    assert early[-1]["reads"] > 0


def test_the_ladder_of_filters_has_every_step(work: Path, tmp_path: Path) -> None:
    asked = context(work, ladder=True)
    assert filters.run(asked, tmp_path / "out", "steps", ["ladder-uniform10"]) == []
    text = (tmp_path / "out" / "steps.md").read_text()
    assert "| uniform10 |" in text
    for plan in filters_sections.FILTER_PLANS:
        assert f"| {plan} |" in text


def test_a_set_without_such_labels_gets_columns_by_chance_and_by_cluster(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    centers = np.eye(10, 16, dtype=np.float32) * 20
    own = random.integers(0, 10, 4000)
    base = (centers[own] + random.normal(0, 0.1, (4000, 16))).astype(np.float32)
    labels = tmp_path / "meta.parquet"
    pq.write_table(pa.table({"section": pa.array(["a"] * 4000)}), labels)
    dataset = datasets.Dataset(
        "made", tmp_path, "l2", base, base[:200], np.zeros((200, 10), np.int64), labels
    )
    columns = filters_cases.table_of(dataset, tmp_path / "work")
    table = pq.read_table(columns)
    assert table.column_names[0] == "section"
    assert float((np.asarray(table["price"]) < 0.1).mean()) == pytest.approx(0.1, abs=0.02)
    follows = filters_cases.mix_case(dataset, 100, columns, count=200)
    # What is in the query's cluster holds its nearest; by chance a tenth of them.
    assert (np.asarray(table["mix100"])[follows.truth_ids] == np.array(follows.values)[:, None]).all()
    nearest = datasets.nearest(base, base[:200], 10, "l2")
    shares = [
        float((np.asarray(table[f"mix{mix}"])[nearest] == np.array(follows.values)[:, None]).mean())
        for mix in (0, 50, 100)
    ]
    assert shares == [pytest.approx(0.1, abs=0.05), pytest.approx(0.55, abs=0.08), 1.0]
    assert filters_sections.tenth(dataset) == "mix0"
