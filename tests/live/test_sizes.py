"""Which segments become one, and what growing costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import velo
from velo.compaction import compactor
from velo.compaction.compactor import segments_of_a_size, segments_to_merge

DIM = 32


@pytest.mark.parametrize(
    ("rows", "others", "wanted"),
    [
        ([], [], []),
        ([1000], [], []),
        ([100_000, 900, 800, 1000], [], []),
        ([100_000, 900, 800, 1000, 200], [], []),  # 256 and 1,024 are where another size begins
        ([100_000, 900, 800, 1000, 200, 600], [], [1, 2, 3, 5]),
        ([100_000, 900, 5000, 800, 1000, 700], [], [1, 3, 4, 5]),
        ([900, 100_000, 800, 700, 600], [], [0, 2, 3, 4]),
        ([900, 100_000, 800, 700, 600], [1, 3], []),
        ([900, 100_000, 800, 700, 600, 500], [1, 3], [0, 2, 4, 5]),
        ([6_400, 900, 800, 1000, 500], [], []),  # half as many as the largest has
        ([6_400, 900, 800, 1000, 500, 400, 900, 900], [], []),
        ([6_400, 900, 800, 1000, 500, 400, 900, 900, 900], [], [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_segments_of_one_size_are_merged(rows: list[int], others: list[int], wanted: list[int]) -> None:
    assert segments_of_a_size(rows, others) == wanted


@pytest.mark.parametrize(
    ("rows", "dead", "wanted", "wanted_while_rows_come"),
    [
        ([], {}, [], []),
        ([1000], {}, [], []),
        ([100_000, 900, 800, 1000, 600], {}, [], []),
        ([100_000, 19_999], {}, [], []),
        ([100_000, 20_000], {}, [0, 1], []),
        ([100_000, 10_000, 10_000], {}, [0, 1, 2], []),
        ([100_000, 50_000, 50_000], {}, [0, 1, 2], [0, 1, 2]),
        ([100_000, 20_000], {1: 1}, [], []),
        ([100_000, 900], {0: 20_000}, [0], [0]),
        ([100_000, 900], {0: 19_999}, [], []),
        ([100_000, 900], {1: 180}, [1], [1]),
        ([900], {0: 900}, [0], [0]),
        ([100_000, 25_000], {0: 50_000}, [0, 1], [0]),
    ],
)
def test_segments_chosen_for_a_merge(
    rows: list[int], dead: dict[int, int], wanted: list[int], wanted_while_rows_come: list[int]
) -> None:
    alive = [count - dead.get(segment, 0) for segment, count in enumerate(rows)]
    assert segments_to_merge(rows, alive, is_calm=True) == wanted
    assert segments_to_merge(rows, alive, is_calm=False) == wanted_while_rows_come


def test_growing_writes_a_row_few_times(tmp_path: Path) -> None:
    """Every row is found, segments stay few, and no segment is made again and again."""
    vectors = np.random.default_rng(3).normal(size=(3_200, 128)).astype(np.float32)
    made: dict[str, int] = {}
    with velo.create(tmp_path / "i", dim=128, memory="1MiB", durability="process", threads=2) as index:
        for start in range(0, len(vectors), 80):
            index.insert(vectors[start : start + 80])
            for segment in index.info()["live"]["parts"]:
                made[segment["path"]] = segment["n"]
        segments = index.info()["live"]["parts"]
        assert len(segments) <= 3 * 6 + 1
        written = sum(made.values()) / len(vectors)
        assert written <= 8, made
        assert sum(segment["n"] for segment in segments) <= len(vectors)
        found = index.search(vectors[::400], 1, recall=0.99)
        assert found.ids[:, 0].tolist() == list(range(0, len(vectors), 400))


def test_however_often_it_is_flushed_segments_stay_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compactor, "_LATER_S", 0.0)
    vectors = np.random.default_rng(4).normal(size=(9, DIM)).astype(np.float32)
    with velo.create(tmp_path / "i", dim=DIM, durability="process", threads=1) as index:
        for row in range(len(vectors)):
            index.insert(vectors[row : row + 1])
            index.flush()
            assert index._folders[0].compactor is not None
            index._folders[0].compactor.join()
            assert len(index.info()["live"]["parts"]) <= 4
        assert index.search(vectors, 1).ids[:, 0].tolist() == list(range(len(vectors)))
