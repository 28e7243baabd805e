"""An index that stores no vectors takes merges: its codes are copied, or decoded and made anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.long import count
from velo import errors
from velo.compaction import compactor
from velo.folder.manifest import read_manifest
from velo.testing import brute_force, recall_at_k, synthetic_vectors

DIM = 24
FEW = {"threads": 1, "degree": 24, "build_list_size": 40}


def rows_of(kind: str, dtype: str, count: int, seed: int = 5) -> np.ndarray:
    """Rows like descriptors of pictures, many in clusters, or of a normal cloud; whole numbers if wanted."""
    if kind == "clusters":
        rows = synthetic_vectors(count, DIM, seed=seed)
    else:
        rows = np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)
    if np.dtype(dtype).kind == "f":
        return rows.astype(dtype)
    limits = np.iinfo(dtype)
    middle = 110 if limits.min == 0 else 0
    return np.clip(np.round(middle + rows * (35 / rows.std())), limits.min, limits.max).astype(dtype)


@dataclass
class World:
    """What an index should hold: the vector of each id, and how often its row was written."""

    path: Path
    metric: Any
    vectors: np.ndarray
    queries: np.ndarray
    turns: dict[int, int] = field(default_factory=dict)

    @property
    def ids(self) -> np.ndarray:
        return np.array(sorted(self.turns))

    def write(self, index: velo.Index, ids: np.ndarray) -> None:
        for one in ids.tolist():
            self.turns[one] = self.turns.get(one, -1) + 1
        index.upsert(self.vectors[ids], ids, {"turn": [self.turns[one] for one in ids.tolist()]})

    def delete(self, index: velo.Index, ids: np.ndarray) -> None:
        assert index.delete(ids).rows == len(ids)
        for one in ids.tolist():
            del self.turns[one]

    def recall(self, index: velo.Index, **how: Any) -> float:
        own = self.vectors[self.ids].astype(np.float32)
        near = self.ids[brute_force(own, self.queries.astype(np.float32), 10, metric=self.metric)[0]]
        return recall_at_k(index.search(self.queries, 10, **(how or {"list_size": 400})).ids, near)

    def check(self, index: velo.Index) -> None:
        """Every row that lives, with its columns; no vectors, as the index never had all of them."""
        rows = index.rows(limit=10**6)
        assert dict(zip(rows["id"].to_pylist(), rows["turn"].to_pylist(), strict=True)) == self.turns
        assert len(index) == len(self.turns)
        assert not index.info()["stores_vectors"]
        assert index.info()["dtype"] == str(self.vectors.dtype)
        with pytest.raises(errors.UnsupportedError, match="store_vectors"):
            index.get_vectors(self.ids)
        with pytest.raises(errors.UnsupportedError, match="store_vectors"):
            index.search(self.queries[0], 3, exact=True)


def built(
    path: Path,
    metric: Any,
    kind: str,
    dtype: str,
    count: int,
    of: int,
    *,
    calibrate: bool = False,
    **how: Any,
) -> World:
    """An index of the first rows of `of`, which stores none of them."""
    rows = rows_of(kind, dtype, of + 150)
    numbers = np.arange(count)
    table = {"turn": np.zeros(count, np.int64)}
    made = FEW | {"store_vectors": False, "calibrate": calibrate} | how
    velo.build(path, rows[:count], ids=numbers, metadata=table, metric=metric, **made).close()
    return World(path, metric, rows[:of], rows[of:], dict.fromkeys(numbers.tolist(), 0))


@pytest.fixture
def nothing_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """No merge begins by itself."""
    monkeypatch.setattr(compactor, "_LATER_S", 600.0)


@pytest.mark.parametrize(
    ("metric", "dtype", "kind", "bits"),
    [
        ("l2", "float32", "clusters", {}),
        pytest.param(
            "l2",
            "uint8",
            "clusters",
            {},
            marks=pytest.mark.long(
                guarded_by="tests/live/test_without_vectors.py::test_merges_keep_every_row_and_nearly_all_recall"
            ),
        ),
        pytest.param(
            "l2",
            "float32",
            "cloud",
            {"memory_bits": 3, "record_bits": 1},
            marks=pytest.mark.long(
                guarded_by="tests/live/test_without_vectors.py::test_merges_keep_every_row_and_nearly_all_recall"
            ),
        ),
        ("l2", "float16", "cloud", {"page_links": False}),
        pytest.param(
            "ip",
            "float32",
            "clusters",
            {},
            marks=pytest.mark.long(
                guarded_by="tests/live/test_without_vectors.py::test_merges_keep_every_row_and_nearly_all_recall"
            ),
        ),
        ("ip", "int8", "cloud", {"memory_bits": 2, "record_bits": 4}),
        ("cosine", "float32", "cloud", {"memory_bits": 4, "record_bits": 0}),
        pytest.param(
            "cosine",
            "uint8",
            "clusters",
            {},
            marks=pytest.mark.long(
                guarded_by="tests/live/test_without_vectors.py::test_merges_keep_every_row_and_nearly_all_recall"
            ),
        ),
        pytest.param(
            "cosine",
            "int8",
            "cloud",
            {},
            marks=pytest.mark.long(
                guarded_by="tests/live/test_without_vectors.py::test_merges_keep_every_row_and_nearly_all_recall"
            ),
        ),
    ],
)
def test_merges_keep_every_row_and_nearly_all_recall(
    tmp_path: Path, nothing_later: None, metric: Any, dtype: str, kind: str, bits: dict[str, Any]
) -> None:
    world = built(tmp_path / "i", metric, kind, dtype, 1_500, 2_900, **bits)
    random = np.random.default_rng(8)
    with velo.open(world.path, writable=True, threads=1) as index:
        before = world.recall(index)
        for turn in range(count(3, 5)):
            first = 1_500 + 280 * turn
            world.write(index, np.arange(first, first + 280))
            if turn % 2:
                index.flush()
            world.write(index, random.choice(world.ids, 60, replace=False))
            world.delete(index, random.choice(world.ids, 250, replace=False))
            index.optimize()
            assert len(index.info()["live"]["parts"]) == 1
            world.check(index)
        after = world.recall(index)
        assert after >= before - 0.02, (before, after)
    with velo.open(world.path, writable=True, threads=1) as index:
        world.check(index)
        assert world.recall(index) == pytest.approx(after, abs=0.005)
        world.write(index, world.ids[:5])
        world.check(index)
    assert velo.verify(world.path) > 0


@pytest.mark.parametrize(
    "metric",
    [
        "ip",
        *(
            pytest.param(
                metric,
                marks=pytest.mark.long(
                    guarded_by="tests/live/test_without_vectors.py::test_codes_are_copied_as_they_are"
                ),
            )
            for metric in ("l2", "cosine")
        ),
    ],
)
def test_codes_are_copied_as_they_are(tmp_path: Path, nothing_later: None, metric: Any) -> None:
    """Each row is at the distance that it was at before, to the last bit."""
    bits = {"memory_bits": 2, "record_bits": 1}
    world = built(tmp_path / "i", metric, "cloud", "float32", 1_200, 2_400, **bits)

    def distances(index: velo.Index) -> dict[tuple[int, int], float]:
        found = index.search(world.queries[:20], 2_000, list_size=2_000)
        return {
            (query, one): distance
            for query in range(20)
            for one, distance in zip(found.ids[query].tolist(), found.distances[query].tolist(), strict=True)
            if 0 <= one < 1_200
        }

    with velo.open(world.path, writable=True, threads=1) as index:
        before = distances(index)
        for turn in range(4):
            world.write(index, np.arange(1_200 + 300 * turn, 1_500 + 300 * turn))
            world.delete(index, world.ids[world.ids < 1_200][turn::12])
            index.optimize()
        after = distances(index)
    assert len(after) > 10_000
    assert {one: before[one] for one in after if one in before} == {
        one: distance for one, distance in after.items() if one in before
    }
    assert len(after.keys() - before.keys()) <= 0.01 * len(after)


def test_codes_of_a_segment_that_others_outgrew_are_decoded(tmp_path: Path, nothing_later: None) -> None:
    """The larger segment stores its vectors: nothing is a copy, and whole numbers come back as they were."""
    for metric, dtype in (("l2", "uint8"), ("ip", "int8"), ("cosine", "uint8"), ("cosine", "float32")):
        world = built(tmp_path / f"{metric}-{dtype}", metric, "cloud", dtype, 300, 900)
        if metric == "cosine":
            world.vectors[7] = 0
            world.path = tmp_path / f"{metric}-{dtype}-zero"
            table = {"turn": np.zeros(300, np.int64)}
            how = FEW | {"store_vectors": False, "calibrate": False}
            velo.build(
                world.path, world.vectors[:300], ids=np.arange(300), metadata=table, metric=metric, **how
            ).close()
        with velo.open(world.path, writable=True, threads=1) as index:
            before = world.recall(index)
            world.write(index, np.arange(300, 900))
            index.flush()
            index.optimize()
            world.check(index)
            assert world.recall(index) >= before - 0.02
            found = index.search(world.queries[:4], 900, list_size=900)
            [segment] = index._folders[0].live.seen
            decoded = segment.decoded(np.arange(segment.n))
            ids = segment.ids.of(np.arange(segment.n))
            if metric == "cosine":
                of_zero = found.distances[np.equal(found.ids, 7)]
                assert of_zero == pytest.approx([0.5] * 4, abs=0.01)
                assert not decoded[ids == 7].any()
                assert np.linalg.norm(decoded[ids != 7], axis=1) == pytest.approx(np.ones(899), abs=0.01)
            else:
                assert (decoded == world.vectors[ids]).all()


def test_vectors_are_stored_once_no_row_without_them_is_left(tmp_path: Path, nothing_later: None) -> None:
    world = built(tmp_path / "i", "l2", "clusters", "float32", 400, 700)
    new = np.arange(400, 700)
    with velo.open(world.path, writable=True, threads=1) as index:
        index.insert(world.vectors[new], new, {"turn": np.zeros(300, np.int64)})
        index.flush()
        index.delete(np.arange(400))
        index.optimize()
        assert index.info()["stores_vectors"]
        assert (index.get_vectors(new) == world.vectors[new]).all()
        assert index.search(world.vectors[500], 1, exact=True).ids.tolist() == [500]


def test_young_segments_keep_their_vectors_until_one_is_made_of_all(
    tmp_path: Path, nothing_later: None
) -> None:
    world = built(tmp_path / "i", "cosine", "clusters", "int8", 400, 700)
    new = np.arange(400, 700)
    with velo.open(world.path, writable=True, threads=1) as index:
        world.write(index, new)
        index.flush()
        assert (index.get_vectors(new) == world.vectors[new]).all()
        world.check(index)
        index.optimize()
        world.check(index)
        with pytest.raises(errors.UnsupportedError, match="store_vectors"):
            index.get_vectors(new)


def settle(index: velo.Index) -> list[tuple[int, int]]:
    assert index._folders[0].compactor is not None
    index._folders[0].compactor.join()
    index.refresh()
    return [(segment["n"], segment["dead"]) for segment in index.info()["live"]["parts"]]


def test_segments_without_vectors_are_merged_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compactor, "_LATER_S", 0.0)
    world = built(tmp_path / "i", "l2", "clusters", "float32", 1_000, 1_400)
    with velo.open(world.path, writable=True, threads=1) as index:
        world.delete(index, np.arange(0, 1_000, 4))
        assert settle(index) == [(750, 0)]
        world.write(index, np.arange(1_000, 1_400))
        index.flush()
        assert settle(index) == [(1_150, 0)]
        world.check(index)
    assert velo.verify(world.path) > 0


@pytest.fixture
def of_few_bits(tmp_path: Path, nothing_later: None) -> Iterator[tuple[World, velo.Index, float]]:
    """An index whose codes find some nine of ten, measured; and what they find at most."""
    world = built(
        tmp_path / "i", "l2", "cloud", "float32", 2_000, 4_000, calibrate=True, memory_bits=2, record_bits=1
    )
    calibration = read_manifest(world.path).calibration
    assert calibration is not None
    most = max(
        point["recall"] for curve in calibration["curves"] if curve["k"] == 10 for point in curve["points"]
    )
    most = max(most, calibration["scan"]["recall"])
    with velo.open(world.path, writable=True, threads=1) as index:
        yield world, index, most


@pytest.mark.filterwarnings("ignore::velo.errors.RecallWarning")
def test_merges_keep_the_calibration_of_codes(of_few_bits: tuple[World, velo.Index, float]) -> None:
    """Rows that codes alone tell of seem to be found without a miss; that is not taken for recall."""
    world, index, most = of_few_bits
    assert 0.8 < most < 0.97
    for turn in range(count(3, 7)):
        world.write(index, np.arange(2_000 + 280 * turn, 2_280 + 280 * turn))
        world.delete(index, world.ids[turn::9])
        index.optimize()
        [segment] = index.info()["live"]["parts"]
        told = read_manifest(world.path / segment["path"]).calibration
        assert told is not None
        assert told["codes"] == pytest.approx(most, abs=1e-4)
        assert not told["exact"]
        points = [
            point["recall"] for curve in told["curves"] if curve["k"] == 10 for point in curve["points"]
        ]
        assert max(points) <= most + 1e-4
    wanted = most - 0.06
    assert world.recall(index, recall=wanted) >= wanted - 0.03


def test_an_uncalibrated_index_stays_uncalibrated(tmp_path: Path, nothing_later: None) -> None:
    world = built(tmp_path / "i", "l2", "cloud", "float32", 1_500, 2_000)
    with velo.open(world.path, writable=True, threads=1) as index:
        world.write(index, np.arange(1_500, 2_000))
        index.optimize()
        [segment] = index.info()["live"]["parts"]
        assert read_manifest(world.path / segment["path"]).calibration is None
        assert world.recall(index, recall=0.95) >= 0.93


def test_damaged_pages_end_a_merge_with_an_error(tmp_path: Path, nothing_later: None) -> None:
    world = built(tmp_path / "i", "l2", "cloud", "float32", 1_500, 1_600)
    with velo.open(world.path, writable=True, threads=1) as index:
        world.write(index, np.arange(1_500, 1_600))
        index.flush()
    [pages] = [path for path in world.path.glob("part-*/pages.bin") if path.stat().st_size > 40_000]
    content = bytearray(pages.read_bytes())
    content[3 * 4_096 + 100] ^= 1
    pages.write_bytes(content)
    with (
        velo.open(world.path, writable=True, threads=1) as index,
        pytest.raises(errors.CorruptIndexError, match=r"page 2 of pages\.bin"),
    ):
        index.optimize()
    with velo.open(world.path, threads=1) as index:
        world.check(index)


def test_a_snapshot_without_vectors_is_merged(tmp_path: Path, nothing_later: None) -> None:
    world = built(tmp_path / "i", "ip", "clusters", "uint8", 600, 800)
    with velo.open(world.path, writable=True, threads=1) as index:
        world.write(index, np.arange(600, 800))
        index.optimize()
        index.snapshot(tmp_path / "copy")
    with velo.open(tmp_path / "copy", writable=True, threads=1) as copy:
        copy.add_columns({"color": pa.string()})
        copy.delete([0])
        copy.optimize()
        assert len(copy) == 799
        assert copy.get([5])["color"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("metric", "dtype"),
    [
        ("l2", "float32"),
        ("ip", "float16"),
        ("cosine", "uint8"),
        ("l2", "int8"),
        *(
            pytest.param(
                metric,
                dtype,
                marks=pytest.mark.long(
                    guarded_by="tests/live/test_without_vectors.py::test_an_update_keeps_a_row_close_to_its_vector"
                ),
            )
            for metric, dtype in product(("l2", "ip", "cosine"), ("float32", "float16", "uint8", "int8"))
        ),
    ],
)
def test_an_update_keeps_a_row_close_to_its_vector(
    tmp_path: Path, nothing_later: None, metric: Any, dtype: str
) -> None:
    """Also several times: a row stays nearly where it was."""
    world = built(tmp_path / "i", metric, "clusters", dtype, 600, 600)
    ids = np.arange(0, 600, 3)
    with velo.open(world.path, writable=True, threads=1) as index:
        before = world.recall(index, list_size=600)
        for turn in range(1, 4):
            assert index.update(ids, {"turn": np.full(len(ids), turn)}).rows == len(ids)
            index.optimize()
        world.turns.update(dict.fromkeys(ids.tolist(), 3))
        world.check(index)
        assert world.recall(index, list_size=600) >= before - 0.02
