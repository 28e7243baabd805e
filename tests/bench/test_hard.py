"""``bench hard``: labels, truth and tables are right, and a small set goes all the way."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.commands import hard, hard_filters, hard_labels, hard_rows, hard_tables
from bench.harness import datasets, plots, runs

SEED = 20261122
METRICS = ("l2", "ip", "cosine")


def made(
    metric: str, n: int = 2000, dim: int = 12, queries: int = 30, *, whole: bool = False
) -> datasets.Dataset:
    """Rows whose lengths vary; small whole numbers where ties are wanted."""
    random = np.random.default_rng(SEED)
    base = random.normal(size=(n, dim)) * np.exp(random.normal(size=(n, 1)))
    asked = random.normal(size=(queries, dim))
    if whole:
        base, asked = (
            random.integers(1, 6, (n, dim)).astype(float),
            random.integers(1, 6, (queries, dim)).astype(float),
        )
    base, asked = base.astype(np.float32), asked.astype(np.float32)
    truth = np.argsort(directly(base, asked, metric), axis=1, kind="stable")[:, :10]
    return datasets.Dataset("made", Path(), metric, base, asked, truth, slack=datasets.EXACT_SLACK)


def directly(base: np.ndarray, queries: np.ndarray, metric: str) -> np.ndarray:
    """Distances pair by pair, without any of the bench's code."""
    rows, wanted = base.astype(np.float64), queries.astype(np.float64)
    if metric == "ip":
        return -(wanted[:, None] * rows[None]).sum(axis=2)
    if metric == "cosine":
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    return ((wanted[:, None] - rows[None]) ** 2).sum(axis=2)


def write_set(folder: Path, dataset: datasets.Dataset) -> Path:
    folder.mkdir(parents=True)
    np.save(folder / "base.npy", dataset.base)
    np.save(folder / "query.npy", dataset.queries)
    np.savez(folder / "truth.npz", ids=dataset.truth_ids, kth=np.zeros(len(dataset.queries)))
    shape = {"metric": dataset.metric, "n": dataset.n, "dim": dataset.dim}
    (folder / "set.json").write_text(json.dumps(shape))
    return folder


# ---- sets ----


@pytest.mark.parametrize("metric", METRICS)
def test_a_set_is_scored_in_its_own_metric(tmp_path: Path, metric: str) -> None:
    dataset = made(metric)
    loaded = datasets.load(write_set(tmp_path / "made", dataset))
    assert (loaded.metric, loaded.n, loaded.slack) == (metric, 2000, datasets.EXACT_SLACK)
    assert datasets.recall(loaded, dataset.truth_ids).tolist() == [1.0] * 30
    assert np.array_equal(datasets.nearest(loaded.base, loaded.queries, 10, metric), dataset.truth_ids)
    behind = np.argsort(directly(dataset.base, dataset.queries, metric), axis=1)[:, 5:15]
    assert datasets.recall(loaded, behind).tolist() == [0.5] * 30


def test_exact_truth_forgives_no_near_miss() -> None:
    """A query far outside sees all rows at almost the same distance; only equals may count as found."""
    base = np.arange(20, dtype=np.float32)[:, None]
    exact = datasets.Dataset(
        "made", Path(), "l2", base, np.float32([[-1e6]]), np.arange(10)[None], slack=datasets.EXACT_SLACK
    )
    assert datasets.recall(exact, np.arange(5, 15)[None])[0] == 0.5
    assert datasets.recall(replace(exact, slack=datasets.DISTANCE_SLACK), np.arange(5, 15)[None])[0] == 1.0


def test_sets_are_named_and_large_ones_come_last(tmp_path: Path) -> None:
    for name, n in (("a", 300_000), ("b", 10), ("c", 20)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "set.json").write_text(json.dumps({"metric": "l2", "n": n, "dim": 192}))
    assert hard.chosen_names(tmp_path, None) == ["b", "c", "a"]
    assert hard.chosen_names(tmp_path, ["c"]) == ["c"]
    with pytest.raises(datasets.DataError, match="no set 'd'"):
        hard.chosen_names(tmp_path, ["d"])
    with pytest.raises(datasets.DataError, match=r"no folder with a set\.json"):
        hard.chosen_names(tmp_path / "a", None)


# ---- labels ----


@pytest.mark.parametrize("parts", [2, 10, 50, 1000])
def test_labels_have_equal_shares_and_follow_the_vectors(parts: int) -> None:
    vectors = np.random.default_rng(SEED).normal(size=(3001, 6)).astype(np.float32)
    labels = hard_labels.leaf_labels(vectors, parts, 1)
    counts = np.bincount(labels, minlength=parts)
    assert len(counts) == parts
    assert counts.max() - counts.min() <= 1 + (parts > 2)
    means = np.stack([vectors[labels == label].mean(axis=0) for label in range(parts)])
    assert ((vectors - means[labels]) ** 2).sum() < 0.95 * ((vectors - vectors.mean(axis=0)) ** 2).sum()


def test_labels_of_equal_rows_have_equal_shares() -> None:
    labels = hard_labels.leaf_labels(np.ones((100, 4), np.float32), 10, 1)
    assert np.bincount(labels).tolist() == [10] * 10


@pytest.mark.parametrize("metric", METRICS)
def test_near_and_far_are_told_by_the_metric(metric: str) -> None:
    dataset = made(metric)
    base = dataset.base
    if metric == "cosine":
        base = base / np.linalg.norm(base, axis=1, keepdims=True)
    labels = hard_labels.leaf_labels(base, 20, 1)
    means = np.stack([base[labels == label].mean(axis=0, dtype=np.float64) for label in range(20)])
    wanted = dataset.queries.astype(np.float64)
    if metric == "cosine":
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    order = np.argsort(directly(means, wanted, "ip" if metric == "ip" else "l2"), axis=1)
    near, far = hard_labels.near_and_far(dataset, dataset.queries, labels, 1)
    assert np.array_equal(near, order[:, 0])
    assert all(label in row[-2:] for label, row in zip(far, order, strict=True))
    assert len(np.unique(far == order[:, -1])) == 2  # not always the farthest of all


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("whole", [False, True])
def test_truth_under_filters_is_exact(metric: str, whole: bool) -> None:
    dataset = made(metric, dim=5, whole=whole)
    random = np.random.default_rng(SEED)
    few = [np.sort(random.choice(dataset.n, size, replace=False)) for size in random.integers(0, 40, 30)]
    many = [np.flatnonzero(random.random(dataset.n) < 0.3)] * 30
    straight = directly(dataset.base, dataset.queries, metric)
    for rows, truth in zip(
        (few, many), hard_labels.truths(dataset, dataset.queries, [few, many]), strict=True
    ):
        for query, (passing, found) in enumerate(zip(rows, truth, strict=True)):
            kept = min(10, len(passing))
            assert (found >= 0).sum() == kept
            assert set(found[:kept]) <= set(passing)
            best = np.sort(straight[query, passing])[:kept]
            assert straight[query, found[:kept]] == pytest.approx(best, rel=1e-9, abs=1e-9)
        assert hard_labels.recalls(dataset, dataset.queries, truth, truth).tolist() == [1.0] * 30


def test_recall_under_filters_counts_ties_and_only_what_could_be_found() -> None:
    base = np.float32([[0], [1], [1], [5], [6]])
    dataset = datasets.Dataset(
        "made", Path(), "l2", base, np.float32([[0]] * 4), np.zeros((4, 10), int), slack=datasets.EXACT_SLACK
    )
    nothing = [-1] * 10
    truth = np.array([[0, 1, *nothing[2:]]] * 3 + [nothing])
    ids = np.array([[0, 2, *nothing[2:]], [3, 0, *nothing[2:]], nothing, nothing])
    assert hard_labels.recalls(dataset, dataset.queries, truth, ids).tolist() == [1.0, 0.5, 0.0, 1.0]


def test_tags_pass_what_holds_all_of_them() -> None:
    dataset, columns, cases = hard_filters.zipf_tags()
    tags = columns["tags"].to_pylist()
    assert (dataset.n, len(cases), cases[0].asked, cases[1].asked) == (100_000, 2, 0.9, 0.95)
    for query in range(4):
        asked = set(cases[0].filters[query].values)
        expected = [row for row, own in enumerate(tags) if asked <= set(own)]
        assert cases[0].rows[query].tolist() == expected


# ---- rows and tables ----


def row(
    dataset: str,
    got: float,
    *,
    label: str = "velo",
    recall: float | None = 0.95,
    size: int = 100,
    **other: Any,
) -> dict[str, Any]:
    asked = {"recall": recall} if recall else {"list_size": size}
    return {
        "dataset": dataset,
        "label": label,
        "system": label.split()[0],
        "metric": "l2",
        "n": 20_000,
        "dim": 64,
        "recall_at_10": got,
        "list_size": size,
        "asked": asked,
        "facts": {"expected": {"recall": 0.96, "list_size": size}},
        "reads": 7.0,
        "rounds": 1.5,
        "qps": 1000.0,
    } | other


def filtered(dataset: str, label: str, got: float) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "metric": "l2",
        "label": label,
        "asked": 0.95,
        "matches": 200.0,
        "recall": got,
        "expected": 0.96,
        "reads": 3.0,
    }


def test_fresh_rows_replace_those_of_their_set_and_system(tmp_path: Path) -> None:
    old = [row("a", 0.1), row("a", 0.2, recall=0.9), row("a", 0.3, label="velo exact"), row("b", 0.4)]
    rows = hard_rows.replaced(old, [row("a", 0.9)])
    assert [(one["dataset"], one["recall_at_10"]) for one in rows] == [("a", 0.3), ("b", 0.4), ("a", 0.9)]
    file = tmp_path / "new" / "hard.jsonl"
    hard_rows.keep_rows(file, {"version": "0"}, rows)
    assert hard_rows.load_rows(file) == rows
    assert hard_rows.load_rows(tmp_path / "none.jsonl") == []
    assert [hard_rows.filters_name(name) for name in ("hard", "hard-before")] == [
        "hard-filters",
        "hard-filters-before",
    ]
    assert [hard_rows.peers_name(name) for name in ("hard", "hard-before")] == ["hard-peers"] * 2


def table_cells(text: str, heading: str, first: str) -> list[str]:
    part = text.split(heading, 1)[1]
    line = next(line for line in part.splitlines() if line.startswith(f"| {first}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_before_stands_beside_after(tmp_path: Path) -> None:
    head = {"machine": {"cpu": "c", "cores": 2, "memory_gib": 1, "kernel": "k", "device": "d", "python": "3"}}
    before = [row("tight", 0.86, recall=recall) for recall in (0.9, 0.95)] + [row("uniform", 0.97)]
    after = [row("tight", 0.951, reads=9.0), row("tight", 0.998, label="velo exact", recall=None, size=4096)]
    peers = [row("tight", 0.5, label="hnswlib", recall=None, size=40, qps=2000.0)]
    kept = {
        "hard-before": before,
        "hard": after,
        "hard-peers": peers,
        "hard-filters-before": [filtered("tight", "far 0.01", 0.79), filtered("tight", "far 0.5", 0.96)],
        "hard-filters": [{"dataset": "tight", "label": "filters", "error": "stopped after 5 s"}],
    }
    for name, rows in kept.items():
        hard_rows.keep_rows(tmp_path / f"{name}.jsonl", head, rows)
    text = hard_tables.write(tmp_path, "hard", "hard-before").read_text()
    assert table_cells(text, "## `recall=0.95`", "tight")[1:3] == ["**0.860**", "0.951"]
    assert table_cells(text, "## `recall=0.95`", "tight")[7:9] == ["7.0", "9.0"]
    assert table_cells(text, "## `recall=0.95`", "uniform")[1:3] == ["0.970", "–"]
    assert table_cells(text, "## Got", "tight")[1:] == ["0.860", "–", "0.860", "0.951"]
    assert "0.998, 7" in table_cells(text, "## By list", "tight")
    assert table_cells(text, "## Beside others", "tight")[1:] == ["0.951, 1,000", "0.500, 2,000"]
    assert table_cells(text, "far from the query", "tight")[1:] == ["0.960", "–", "**0.790**", "–"]
    assert "Before: 0.860 at worst (tight), 0.915 on average; 1 of 2 sets below 0.945." in text
    assert "- tight, filters after: stopped after 5 s" in text
    worst = table_cells(text, "| what |", "recall@10 at recall=0.95, the worst set")
    assert worst[1:5] == ["≥ 0.945", "0.860", "0.951", "met"]
    exact = table_cells(text, "| what |", "the same with stored vectors")
    assert exact[1:5] == ["≥ 0.999", "–", "0.998", "**missed**"]
    assert (tmp_path / "hard.png").exists() == plots.available()


def test_one_state_has_one_column(tmp_path: Path) -> None:
    hard_rows.keep_rows(tmp_path / "hard.jsonl", {}, [])
    (tmp_path / "hard.jsonl").unlink()
    machine = {"cpu": "c", "cores": 2, "memory_gib": 1, "kernel": "k", "device": "d", "python": "3"}
    hard_rows.keep_rows(tmp_path / "hard.jsonl", {"machine": machine}, [row("tight", 0.96)])
    text = hard_tables.write(tmp_path, "hard", "hard-before").read_text()
    assert "| set | recall | expected | list | reads | rounds | QPS |" in text
    assert "before" not in text


def test_what_was_asked_is_told_from_what_it_led_to() -> None:
    facts = {"expected": {"recall": 0.9, "list_size": 77}}
    by_recall = hard.asked_of({"recall": 0.9, "facts": facts, "open_tuning": {}})
    assert by_recall == {"facts": facts, "asked": {"recall": 0.9}, "list_size": 77}
    by_list = hard.asked_of({"list_size": 1000, "facts": {}})
    assert by_list == {"facts": {}, "asked": {"list_size": 1000}, "list_size": 1000}


def test_names_beside_lines_do_not_overlap() -> None:
    places = plots.apart([0.2, 0.201, 0.5, 0.99, 0.995, 1.0])
    assert places[2] == 0.5
    assert places[-1] == 1.0
    assert all(high - low >= 0.0239 for low, high in itertools.pairwise(places))


# ---- all the way ----


def test_a_small_set_goes_all_the_way(tmp_path: Path) -> None:
    write_set(tmp_path / "data" / "made", made("ip", dim=32))
    run = hard.Run(tmp_path / "data", tmp_path / "work", tmp_path / "out", "hard", 1, peers=())
    rows = hard.run_sets(run, ["made"])
    plain = [one for one in rows if one["label"] == "velo"]
    assert [one["asked"] for one in plain] == [
        *({"recall": recall} for recall in hard.ASKED),
        *({"list_size": size} for size in hard_rows.LISTS),
    ]
    assert all(one["query_count"] == 30 and one["reads"] > 0 and one["list_size"] >= 10 for one in plain)
    hard_filters.run(run, ["made"])
    found = hard_rows.load_rows(tmp_path / "out" / "hard-filters.jsonl")
    assert len(found) == len(hard_labels.SHARES) * len(hard_filters.KINDS)
    assert {one["matches"] for one in found} == {1000, 200, 40, 20, 2}
    assert all(0 <= one["recall"] <= 1 for one in found)
    assert next(one for one in found if one["label"] == "random 0.001")["recall"] == 1.0
    text = hard_tables.write(tmp_path / "out", "hard", "hard-before").read_text()
    assert table_cells(text, "A column by chance", "made")[-1] == "1.000"


def test_an_index_of_another_library_is_built_again(tmp_path: Path) -> None:
    dataset = made("l2", dim=32)
    job = hard.velo_jobs(dataset)[0]
    path = runs.built_index(job, dataset, tmp_path, tmp_path / "log", threads=1)
    assert runs.ready_index(job, dataset, tmp_path) == path
    mark = path.parent / "built.json"
    told = json.loads(mark.read_text())
    mark.write_text(json.dumps(told | {"built_by": "another"}))
    assert runs.ready_index(job, dataset, tmp_path) is None
    assert not path.exists()
    assert runs.built_index(job, dataset, tmp_path, tmp_path / "log", threads=1) == path
    assert json.loads(mark.read_text())["built_by"] == told["built_by"]
