"""External ids: checked on the way in, mapped on the way out."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from velo import errors
from velo.folder.ids import Ids, given_ids, write_ids


@pytest.mark.parametrize("repeats", range(20))
def test_the_first_duplicate_is_named(repeats: int, random: np.random.Generator) -> None:
    numbers = random.integers(0, 60, size=20)
    seen: dict[int, int] = {}
    expected = None
    for row, number in enumerate(numbers.tolist()):
        if number in seen:
            expected = row, seen[number], number
            break
        seen[number] = row
    for ids in (numbers, numbers.tolist(), pa.array(numbers), [f"id-{number}" for number in numbers]):
        if expected is None:
            assert len(given_ids(ids, 20)) == 20
            continue
        with pytest.raises(errors.DuplicateIdError) as caught:
            given_ids(ids, 20)
        row, first, number = expected
        assert caught.value.row == row
        assert f"row {row} was given to row {first} already" in str(caught.value)
        assert str(number) in str(caught.value)


@pytest.mark.parametrize(
    "ids",
    [
        [1.5, 2.5],
        [1, None],
        [True, False],
        [[1], [2]],
        [1, "a"],
        np.array([[1, 2]]),
        np.array([1, 2**63], np.uint64),
        [1, 2, 3],
    ],
)
def test_what_are_no_ids(ids: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        given_ids(ids, 2)
    assert caught.value.argument == "ids"


@pytest.mark.parametrize("kind", ["row", "int64", "string"])
def test_ids_come_back_in_placement_order(kind: str, random: np.random.Generator, tmp_path: Path) -> None:
    n = 500
    rows = random.permutation(n).astype(np.uint32)
    given: Any = None
    expected: Any = np.arange(n) + 1000
    if kind == "int64":
        # Even ones: -1 is no id.
        given = expected = 2 * random.permutation(10 * n)[:n] - 2 * n
    elif kind == "string":
        given = expected = np.array([f"id é {number}" for number in random.permutation(n)], object)
    column = None if given is None else given_ids(given, n)
    assert write_ids(tmp_path, column, rows, first_row=1000) == kind
    ids = Ids(tmp_path, n)
    assert ids.kind == ("string" if kind == "string" else "int64")
    assert np.array_equal(ids.of(np.arange(n)), expected[rows])
    some = random.integers(-1, n, size=(7, 5))
    found = ids.of(some)
    assert found.shape == some.shape
    for place in np.ndindex(some.shape):
        vertex = some[place]
        none = None if kind == "string" else -1
        assert found[place] == (none if vertex < 0 else expected[rows[vertex]])
    asked = expected[random.integers(0, n, size=50)]
    assert np.array_equal(ids.of(ids.vertices(asked)), asked)
    stranger: Any = "nobody" if kind == "string" else 10**9
    with pytest.raises(errors.UnknownIdError, match=str(stranger)) as caught:
        ids.vertices([*asked[:3], stranger])
    assert caught.value.row == 3
    with pytest.raises(errors.InvalidArgumentError):
        ids.vertices([1] if kind == "string" else ["1"])
    assert len(ids.vertices([])) == 0


@pytest.mark.parametrize("order", ["in memory", "in a file", "no room for a file"])
@pytest.mark.parametrize("kind", ["no ids", "consecutive", "int64", "string"])
def test_ids_are_listed_and_found_in_their_order(
    kind: str, order: str, tmp_path: Path, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = int(random.integers(1, 300))
    rows = random.permutation(n).astype(np.uint32)
    given: Any = {
        "no ids": None,
        "consecutive": random.permutation(n) + 33,
        "int64": 2 * random.permutation(5 * n)[:n] - 2 * n,
        "string": np.array([f"id {number:05}" for number in random.permutation(n)], object),
    }[kind]
    write_ids(tmp_path, None if given is None else given_ids(given, n), rows, first_row=70)
    ids = Ids(tmp_path, n, first_row=70, is_released=order != "in memory")
    if order == "no room for a file":

        def full(*_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "posix_fallocate", full)
    found = ids.of(np.arange(n))
    ascending = np.argsort(found, kind="stable")
    ends: list[Any] = [-(2**63), 2**63 - 1] if kind != "string" else ["", "j"]
    between = [] if kind == "string" else (found + 1).tolist()
    for after in [None, *ends, *found.tolist(), *between]:
        later = [vertex for vertex in ascending if after is None or found[vertex] > after]
        assert ids.page(after, 7, None).tolist() == later[:7]
        assert (
            ids.page(after, 7, np.arange(n) % 2 == 0).tolist() == [one for one in later if one % 2 == 0][:7]
        )
    assert np.array_equal(ids.find(found), np.arange(n))
    assert ids.find(ends).tolist() == [-1, -1]
    assert sorted(os.listdir(tmp_path)) == ["ids.arrow"]


def test_a_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(errors.CorruptIndexError, match=r"ids\.arrow"):
        Ids(tmp_path, 3)
    write_ids(tmp_path, None, np.arange(3, dtype=np.uint32))
    with pytest.raises(errors.CorruptIndexError, match="3 ids for 4 vectors"):
        Ids(tmp_path, 4)
    whole = (tmp_path / "ids.arrow").read_bytes()
    (tmp_path / "ids.arrow").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(errors.CorruptIndexError, match=r"ids\.arrow"):
        Ids(tmp_path, 3)


def test_ids_near_the_ends_of_64_bits_come_back_whole(tmp_path: Path) -> None:
    """Numbers that 32 bits, or a float, would make into others."""
    ends = [2**62, 2**62 + 1, -(2**62), -(2**62) - 1, 2**63 - 1, -(2**63), 2**53 + 1, 2**32 + 5, 5, 2**31, 0]
    given = np.array(ends, np.int64)
    rows = np.arange(len(ends), dtype=np.uint32)[::-1].copy()
    for source in (given, ends, pa.array(given)):
        write_ids(tmp_path, given_ids(source, len(ends)), rows)
        ids = Ids(tmp_path, len(ends))
        vertices = np.arange(len(ends))
        assert ids.of(vertices).tolist() == ends[::-1]
        assert ids.of(vertices, complete=True).tolist() == ends[::-1]
        assert ids.find(source).tolist() == vertices[::-1].tolist()
        assert ids.find([2**62 + 2, 2**31 + 1, 2**32]).tolist() == [-1, -1, -1]


def test_an_index_keeps_ids_near_the_ends_of_64_bits(tmp_path: Path) -> None:
    vectors = np.random.default_rng(3).standard_normal((300, 8)).astype(np.float32)
    numbers = 2**62 + np.arange(300, dtype=np.int64) * (1 - 2 * (np.arange(300) % 2)) * 7
    with velo.build(
        tmp_path / "i", vectors, ids=numbers, degree=8, store_vectors=True, calibrate=False
    ) as index:
        found = index.search(vectors, k=1, list_size=100)
        assert (found.ids[:, 0] == numbers).mean() > 0.99
        assert set(found.ids[:, 0].tolist()) <= set(numbers.tolist())
        assert np.array_equal(index.get_vectors(numbers[:5]), vectors[:5])
        only = index.search(vectors[7], k=3, filter=[int(numbers[7]), int(numbers[9])])
        assert set(only.ids.tolist()) == {int(numbers[7]), int(numbers[9]), -1}


@pytest.mark.parametrize("ids", [[3, -1, 5], np.array([3, -1, 5]), pa.array([3, -1, 5])])
def test_the_id_that_means_no_hit_is_refused(ids: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="missing hit") as caught:
        given_ids(ids, 3)
    assert (caught.value.argument, caught.value.row) == ("ids", 1)
    assert len(given_ids(["-1", "a", "b"], 3)) == 3
