"""Rows drawn at random, and what codes tell of vectors: built, written to, of shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import errors
from velo.testing import synthetic_vectors

ROWS, DIM, DELETED = 400, 16, 40
VECTORS = synthetic_vectors(ROWS, DIM, seed=3)
OPTIONS: dict[str, Any] = {"metadata": {"even": [row % 2 == 0 for row in range(ROWS)]}, "threads": 1}
OPTIONS |= {"degree": 16, "record_bits": 8}


def built(folder: Path) -> velo.Index:
    return velo.build(folder, VECTORS, **OPTIONS)


def sharded(folder: Path) -> velo.Index:
    return velo.open(velo.build_collection(folder, VECTORS, shards=3, **OPTIONS), threads=1)


def written(folder: Path) -> velo.Index:
    """With rows in the segment and in memory, and rows that were deleted."""
    few = {**OPTIONS, "metadata": {"even": OPTIONS["metadata"]["even"][: ROWS - 100]}}
    velo.build(folder, VECTORS[:-100], **few).close()
    index = velo.open(folder, writable=True, threads=1, durability="process")
    index.insert(VECTORS[-100:], metadata={"even": OPTIONS["metadata"]["even"][-100:]})
    index.delete(list(range(DELETED)))
    return index


@pytest.mark.parametrize("made", [built, sharded, written])
def test_a_sample_is_of_rows_that_live_and_pass(made: Callable[[Path], velo.Index], tmp_path: Path) -> None:
    with made(tmp_path / "i") as index:
        first = DELETED if made is written else 0
        one, again = index.sample(50), index.sample(50)
        assert one.equals(again)
        assert one["id"].to_pylist() != index.sample(50, seed=1)["id"].to_pylist()
        ids = one["id"].to_pylist()
        assert len(set(ids)) == 50
        assert min(ids) >= first
        assert max(ids) > ROWS / 2  # of all of them, and not of the head
        assert one["even"].to_pylist() == [row % 2 == 0 for row in ids]
        all_of_them = index.sample(10 * ROWS, columns=False)
        assert sorted(all_of_them["id"].to_pylist()) == list(range(first, ROWS))
        some = index.sample(20, filter={"even": True}, columns=["even"])
        assert len(some) == 20
        assert set(some["even"].to_pylist()) == {True}
        assert len(index.sample(filter=[first, first + 1])) == 2
        assert len(index.sample(filter={"$or": []})) == 0
        for wrong in ({"limit": 0}, {"seed": -1}, {"limit": 1.5}):
            with pytest.raises(errors.InvalidArgumentError, match=next(iter(wrong))):
                index.sample(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("made", [built, sharded, written])
def test_codes_tell_nearly_the_vector(made: Callable[[Path], velo.Index], tmp_path: Path) -> None:
    with made(tmp_path / "i") as index:
        ids = [ROWS - 150, ROWS - 1, DELETED + 5]
        with pytest.raises(errors.UnsupportedError):
            index.get_vectors(ids)
        told = index.get_vectors(ids, decoded=True)
        wrong = np.linalg.norm(told - VECTORS[ids], axis=1) / np.linalg.norm(VECTORS[ids], axis=1)
        assert wrong.max() < 0.05
        if made is written:
            np.testing.assert_array_equal(told[1], VECTORS[ROWS - 1])  # it is no code yet
        with pytest.raises(errors.UnknownIdError):
            index.get_vectors([ROWS + 5], decoded=True)


def test_vectors_that_are_stored_are_told_as_they_are(tmp_path: Path) -> None:
    with velo.build(tmp_path / "i", VECTORS, **OPTIONS, store_vectors=True) as index:
        np.testing.assert_array_equal(index.get_vectors([7, 3], decoded=True), VECTORS[[7, 3]])
