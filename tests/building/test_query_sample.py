"""``queries=`` of a build: what it measures with where queries are unlike rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import velo
from velo import errors
from velo.building.tables import SAMPLE_MAX, query_sample
from velo.cli.app import app
from velo.options import BuildOptions
from velo.testing import brute_force, recall_at_k

DIM = 24
QUICK: dict[str, Any] = {
    "degree": 24,
    "build_list_size": 50,
    "links_kept": 16,
    "record_bits": 6,
    "threads": 1,
}


def easy(count: int, seed: int) -> np.ndarray:
    """Points on a plane of four dimensions: few steps lead to their neighbors."""
    random = np.random.default_rng([14, seed])
    points = np.zeros((count, DIM), np.float32)
    points[:, :4] = random.normal(size=(count, 4))
    points[:, 4:] = random.normal(size=(count, DIM - 4)) * 0.02
    return points


def hard(count: int, seed: int) -> np.ndarray:
    """Points in all dimensions, far from the others."""
    return np.random.default_rng([15, seed]).normal(10, 1, (count, DIM)).astype(np.float32)


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.concatenate([easy(4000, 0), hard(4000, 0)])


@pytest.mark.parametrize(
    "kind",
    [
        hard,
        pytest.param(
            easy,
            marks=pytest.mark.long(
                guarded_by="tests/building/test_query_sample.py::test_a_query_sample_calibrates_for_queries_like_it"
            ),
        ),
    ],
)
def test_a_query_sample_calibrates_for_queries_like_it(kind: Any, rows: np.ndarray, tmp_path: Path) -> None:
    asked = kind(400, 2)
    truth = brute_force(rows, asked, 10).ids
    found = {}
    for name, sample in (("rows", None), ("queries", kind(400, 1))):
        with velo.build(tmp_path / name, rows, queries=sample, **QUICK) as index:
            answer = index.search(asked, recall=0.95)
            assert answer.expected is not None
            found[name] = recall_at_k(answer.ids, truth), answer.expected.list_size
    # 400 queries: the mean deviates by about 0.003.
    assert found["queries"][0] > 0.945
    if kind is easy:
        assert found["queries"][1] < found["rows"][1]
    else:
        assert found["queries"][1] > found["rows"][1]
        assert found["queries"][0] > found["rows"][0]


def test_a_query_sample_comes_from_a_file_and_reaches_every_shard(rows: np.ndarray, tmp_path: Path) -> None:
    many = hard(SAMPLE_MAX + 300, 3)
    options = BuildOptions()
    drawn = query_sample(many, DIM, options)
    assert drawn is not None
    assert drawn.shape == (SAMPLE_MAX, DIM)
    assert len(np.unique(drawn, axis=0)) == SAMPLE_MAX
    np.save(tmp_path / "queries.npy", many)
    from_file = query_sample(tmp_path / "queries.npy", DIM, options)
    assert from_file is not None
    assert np.array_equal(from_file, drawn)
    velo.build_collection(tmp_path / "c", rows, shards=2, queries=tmp_path / "queries.npy", **QUICK)
    for number in range(2):
        table = json.loads((tmp_path / "c" / f"shard-{number:05d}" / "manifest.json").read_bytes())
        assert table["calibration"]["queries"] == SAMPLE_MAX


def test_the_command_takes_a_file_of_queries(rows: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", rows[::4])
    np.save(tmp_path / "queries.npy", hard(70, 4))
    arguments = ["build", str(tmp_path / "rows.npy"), str(tmp_path / "i"), "--queries"]
    done = CliRunner().invoke(app, [*arguments, str(tmp_path / "queries.npy"), "--degree", "16"])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "i" / "manifest.json").read_bytes())["calibration"]["queries"] == 70


@pytest.mark.parametrize(
    ("queries", "options", "error"),
    [
        (easy(59, 0), {}, errors.InvalidArgumentError),
        (easy(70, 0)[:, :-1], {}, errors.DimensionMismatchError),
        (np.where(np.arange(70)[:, None] == 3, np.nan, easy(70, 0)), {}, errors.NotFiniteError),
        (easy(70, 0), {"calibrate": False}, errors.InvalidArgumentError),
        ([["a"] * DIM] * 70, {}, errors.DtypeError),
    ],
)
def test_bad_query_samples_are_refused_before_anything_is_written(
    queries: Any, options: dict[str, Any], error: type[Exception], rows: np.ndarray, tmp_path: Path
) -> None:
    with pytest.raises(error) as raised:
        velo.build(tmp_path / "i", rows, queries=queries, **QUICK, **options)
    assert getattr(raised.value, "argument", None) == "queries"
    assert not (tmp_path / "i").exists()
