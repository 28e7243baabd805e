"""The public test helpers are themselves right."""

from __future__ import annotations

import numpy as np
import pytest

from velo import errors
from velo.testing import brute_force, exact_distances, recall_at_k, synthetic_metadata, synthetic_vectors


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_brute_force_against_a_plain_loop(metric: str, random: np.random.Generator) -> None:
    base, queries = random.normal(size=(200, 7)), random.normal(size=(5, 7))
    mask = random.random(200) < 0.3

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        if metric == "l2":
            return float(((a - b) ** 2).sum())
        if metric == "ip":
            return float(-(a @ b))
        return float(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    for passing in (None, mask, np.broadcast_to(mask, (5, 200))):
        truth = brute_force(base, queries, k=9, metric=metric, mask=passing)  # type: ignore[arg-type]
        for number, query in enumerate(queries):
            rows = [row for row in range(200) if passing is None or mask[row]]
            expected = sorted(rows, key=lambda row: (distance(query, base[row]), row))[:9]
            assert truth.ids[number].tolist() == expected
            assert np.allclose(
                truth.distances[number], [distance(query, base[row]) for row in expected], rtol=1e-5
            )
    ids = brute_force(base, queries, k=4, metric=metric).ids  # type: ignore[arg-type]
    assert np.allclose(
        exact_distances(base, queries, ids, metric=metric),  # type: ignore[arg-type]
        [[distance(query, base[row]) for row in found] for query, found in zip(queries, ids, strict=True)],
    )


def test_fewer_rows_than_k_are_padded() -> None:
    truth = brute_force(np.eye(3), np.eye(3), k=5)
    assert truth.ids[0].tolist() == [0, 1, 2, -1, -1]
    assert np.isinf(truth.distances[0, 3:]).all()


def test_ties_go_by_the_lower_row_across_chunks() -> None:
    truth = brute_force(np.ones((300_000, 2), np.uint8), np.ones((1, 2)), k=4)
    assert truth.ids[0].tolist() == [0, 1, 2, 3]


def test_recall() -> None:
    truth = np.array([[1, 2, 3], [4, 5, -1], [-1, -1, -1]])
    assert recall_at_k(truth, truth) == 1.0
    assert recall_at_k(np.array([[1, 2, 9], [9, 8, 4], [7, 7, 7]]), truth) == pytest.approx(
        (2 / 3 + 1 / 2) / 2
    )
    assert recall_at_k(np.array([[3, 3, 3]]), truth[:1]) == pytest.approx(1 / 3), "one row counts once"
    # Row 9 is as far as the third true neighbor: by distance it is as good an answer.
    tied = recall_at_k(
        np.array([[1, 2, 9]]),
        truth[:1],
        found_distances=np.array([[0.0, 1.0, 2.0]]),
        true_distances=np.array([[0.0, 1.0, 2.0]]),
    )
    assert tied == 1.0
    with pytest.raises(errors.InvalidArgumentError):
        recall_at_k(truth, truth[:, :2])


def test_synthetic_rows_depend_on_seed_and_number_alone() -> None:
    whole = synthetic_vectors(9000, 12, seed=3)
    assert np.array_equal(synthetic_vectors(100, 12, seed=3, start=4050), whole[4050:4150])
    assert not np.array_equal(synthetic_vectors(100, 12, seed=4), whole[:100])
    table = synthetic_metadata(500, seed=3)
    assert table.equals(synthetic_metadata(500, seed=3))
    assert table.num_rows == 500
    assert table.column("brand").null_count > 0


def test_recall_counts_neighbors_at_negative_distances() -> None:
    random = np.random.default_rng(5)
    rows, queries = random.normal(size=(300, 8)), random.normal(size=(4, 8))
    truth = brute_force(rows, queries, 5, metric="ip")
    assert (truth.distances < 0).all()
    exact = exact_distances(rows, queries, truth.ids, metric="ip")
    assert recall_at_k(truth.ids, truth.ids, found_distances=exact, true_distances=truth.distances) == 1.0
    worse = np.roll(truth.ids, 1, axis=0)
    far = exact_distances(rows, queries, worse, metric="ip")
    assert recall_at_k(worse, truth.ids, found_distances=far, true_distances=truth.distances) < 1.0
