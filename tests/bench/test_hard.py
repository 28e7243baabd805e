"""``bench hard``: sets, labels and truth are right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.commands import hard, hard_filters, hard_labels
from bench.harness import datasets, runs
from bench.harness.sections import Context
from tests.bench.small_set import directly, made, write_set

SEED = 20261122
METRICS = ("l2", "ip", "cosine")


# ---- sets ----


@pytest.mark.parametrize("metric", METRICS)
def test_a_set_is_scored_in_its_own_metric(tmp_path: Path, metric: str) -> None:
    dataset = made(metric)
    loaded = datasets.load(write_set(tmp_path / "made", dataset.base, dataset.queries, metric))
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
def test_near_and_far_labels_follow_the_metric(metric: str) -> None:
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


@pytest.mark.long(guarded_by="tests/bench/test_hard.py::test_truth_under_filters_is_exact")
def test_queries_of_zipf_tags_know_the_rows_that_pass() -> None:
    dataset, columns, cases = hard_filters.zipf_tags()
    tags = columns["tags"].to_pylist()
    assert (dataset.n, len(cases), cases[0].asked, cases[1].asked) == (100_000, 2, 0.9, 0.95)
    for query in range(4):
        asked = set(cases[0].filters[query].values)
        expected = [row for row, own in enumerate(tags) if asked <= set(own)]
        assert cases[0].rows[query].tolist() == expected


def test_requested_and_resulting_options_are_separate() -> None:
    facts = {"expected": {"recall": 0.9, "list_size": 77}}
    by_recall = hard.asked_of(
        {"recall": 0.9, "facts": facts, "open_tuning": {}, "reads": 3, "shared_reads": 2}
    )
    assert by_recall == {
        "facts": facts,
        "asked": {"recall": 0.9},
        "list_size": 77,
        "reads": 5,
        "shared_reads": 2,
    }
    by_list = hard.asked_of({"list_size": 1000, "facts": {}})
    assert by_list == {"facts": {"expected": None}, "asked": {"list_size": 1000}, "list_size": 1000}


def test_an_index_of_another_library_is_built_again(tmp_path: Path) -> None:
    dataset = made("l2", n=500, dim=32)
    context = Context(".", str(tmp_path), None, 10, 0, 1, {})
    job = hard._job(dataset, "velo", [])
    path = runs.built_index(context, dataset, job)
    assert runs.ready_index(job, dataset, tmp_path) == path
    mark = path.parent / "built.json"
    told = json.loads(mark.read_text())
    mark.write_text(json.dumps(told | {"built_by": "another"}))
    assert runs.ready_index(job, dataset, tmp_path) is None
    assert not path.exists()
    assert runs.built_index(context, dataset, job) == path
    assert json.loads(mark.read_text())["built_by"] == told["built_by"]
