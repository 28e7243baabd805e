"""Options proposed from a sample: what they say is what an index built with them does."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import velo
from velo.cli.app import app
from velo.formats import open_vectors, write_vectors
from velo.formats.files import as_source
from velo.options import BuildOptions, sizes_of
from velo.planning.sample import TunedPoint, at_recall, draw
from velo.planning.tune import _best, _splits
from velo.testing import brute_force, recall_at_k, synthetic_vectors


def quick(vectors: Any, folder: Path, **given: Any) -> velo.Proposal:
    return velo.tune(vectors, scratch=folder, **{"sample": 4_000, "degrees": (16, 48), "threads": 2, **given})


@pytest.fixture(scope="module")
def proposed(sample: Any, tmp_path_factory: pytest.TempPathFactory) -> velo.Proposal:
    """For the whole sample in examples/data, so that nothing has to be reckoned for more rows."""
    folder = tmp_path_factory.mktemp("tune")
    found = velo.tune(sample.folder / "sample.u8bin", scratch=folder, degrees=(24, 48), threads=2)
    assert list(folder.iterdir()) == []
    return found


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> velo.Proposal:
    """For a few rows that are all looked at, where the default degree is among those that are tried."""
    folder = tmp_path_factory.mktemp("small")
    found = quick(_rows(), folder, memory=0.9, recall=0.9, degrees=(16, 48))
    assert list(folder.iterdir()) == []
    return found


def _rows() -> np.ndarray[Any, Any]:
    return synthetic_vectors(1_200, 24, seed=3)


def test_a_small_proposal_is_what_an_index_does(small: velo.Proposal, tmp_path: Path) -> None:
    chosen, rows = small.chosen, _rows()
    assert small.sample_rows + small.query_count == small.n == 1_200
    assert chosen.reached
    with velo.build(tmp_path / "i", rows, threads=2, **small.build_options) as index:
        assert index.metric == small.build_options["metric"] == "l2"
        disk = sum(index.info()["disk_bytes"].values())
    # A build with two threads differs each time, and page counts of so few rows with it.
    assert chosen.disk_bytes_per_vector == pytest.approx(disk / 1_200, rel=0.25)
    with velo.open(tmp_path / "i", threads=2, **small.open_options) as index:
        info = index.info()
        assert (info["plan"], info["degree"], info["memory_bits"]) == (
            chosen.plan,
            chosen.degree,
            chosen.memory_bits,
        )
        assert info["memory_bytes_total"] - info["memory_bytes"]["workers"] <= small.budget_bytes
        queries = synthetic_vectors(1_400, 24, seed=3)[1_200:]
        found = index.search(queries, list_size=math.ceil(chosen.list_size))
        assert recall_at_k(found.ids, brute_force(rows, queries, 10).ids) == pytest.approx(
            chosen.recall, abs=0.08
        )
        # What the cache holds of these few rows when a query asks depends on the order in which threads run.
        assert found.stats["reads"].mean() == pytest.approx(chosen.reads, abs=0.7)
        assert found.stats["estimates"].mean() == pytest.approx(chosen.estimates, rel=0.25)


def test_a_segment_tells_what_more_rows_take_of_memory_and_disk(tmp_path: Path) -> None:
    rows = synthetic_vectors(8_000, 16, seed=3)
    segment = quick(rows, tmp_path, sample=4_000, memory=0.6, recall=0.9, degrees=(16,)).candidates
    whole = quick(rows, tmp_path, sample=8_000, memory=0.6, recall=0.9, degrees=(16,)).candidates
    assert [one.memory_bits for one in segment] == [one.memory_bits for one in whole]
    for one, other in zip(segment, whole, strict=True):
        assert one.memory_bytes == pytest.approx(other.memory_bytes, rel=0.1)
        assert one.disk_bytes_per_vector == pytest.approx(other.disk_bytes_per_vector, rel=0.1)


@pytest.mark.long(guarded_by="tests/planning/test_tune.py::test_a_small_proposal_is_what_an_index_does")
def test_the_proposal_is_what_an_index_does(proposed: velo.Proposal, sample: Any, tmp_path: Path) -> None:
    chosen = proposed.chosen
    assert proposed.n == 20_000
    assert proposed.sample_rows + proposed.query_count == 20_000
    assert chosen.reached
    with velo.build(
        tmp_path / "i", sample.folder / "sample.u8bin", threads=2, **proposed.build_options
    ) as index:
        disk = sum(index.info()["disk_bytes"].values())
    assert chosen.disk_bytes_per_vector == pytest.approx(disk / 20_000, rel=0.05)
    with velo.open(tmp_path / "i", threads=2, **proposed.open_options) as index:
        info = index.info()
        assert info["plan"] == chosen.plan
        assert (info["degree"], info["memory_bits"]) == (chosen.degree, chosen.memory_bits)
        steps = [0, 8, 10, 12, 14, 16, 20, 24, 32]
        assert abs(steps.index(info["links_kept"]) - steps.index(chosen.links_kept)) <= 1
        assert info["memory_bytes_total"] - info["memory_bytes"]["workers"] <= proposed.budget_bytes
        list_size = math.ceil(chosen.list_size)
        for _ in range(20):
            index.search(
                sample.base[::20], list_size=list_size
            )  # fills the cache, as those of the proposal did
            found = index.search(sample.queries, list_size=list_size)
            if found.stats["reads"].mean() <= 1.15 * chosen.reads:
                break
            time.sleep(0.1)
        assert recall_at_k(found.ids, sample.truth[:, :10]) == pytest.approx(0.95, abs=0.03)
        if info["links_kept"] == chosen.links_kept:
            assert found.stats["reads"].mean() == pytest.approx(chosen.reads, rel=0.15)
            assert found.stats["estimates"].mean() == pytest.approx(chosen.estimates, rel=0.15)


def test_the_default_options_are_among_the_candidates(small: velo.Proposal) -> None:
    usual = BuildOptions().degree
    chosen = sizes_of(small.n, small.dim, memory_bytes=small.budget_bytes)
    bits = (chosen.memory_bits, chosen.record_bits)
    (default,) = [
        one for one in small.candidates if (one.degree, one.memory_bits, one.record_bits) == (usual, *bits)
    ]
    assert small.chosen.cost_us <= 1.08 * default.cost_us
    assert small.chosen in small.candidates
    assert {one.degree for one in small.candidates} == {16, 48}


@pytest.mark.long(guarded_by="tests/planning/test_tune.py::test_a_small_proposal_is_what_an_index_does")
@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_every_metric_and_few_rows(metric: str, tmp_path: Path) -> None:
    rows = synthetic_vectors(1_200, 24, seed=3)
    found = quick(rows, tmp_path, metric=metric, memory=0.9, recall=0.9, degrees=(16,))
    assert found.sample_rows + found.query_count == found.n == 1_200
    assert found.chosen.reached
    assert found.build_options["metric"] == metric
    with velo.build(tmp_path / "i", rows, threads=1, **found.build_options) as index:
        assert index.metric == metric
    with velo.open(tmp_path / "i", **found.open_options) as index:
        assert index.info()["plan"] == found.chosen.plan


def test_in_a_small_budget_neighbors_share_links_or_links_go_to_disk(tmp_path: Path) -> None:
    rows = synthetic_vectors(3_000, 64, seed=4)
    least = sizes_of(3_000, 64).codes_least_bytes
    found = quick(rows, tmp_path, memory=least + 3_000)
    assert all(one.links_kept < 8 for one in found.candidates)
    assert all((one.plan == "links_on_disk") == (one.links_kept == 0) for one in found.candidates)
    assert all(one.memory_bytes <= least + 3_000 for one in found.candidates)
    with pytest.raises(velo.errors.BudgetTooSmallError) as raised:
        quick(rows, tmp_path, memory=least - 1)
    assert raised.value.needed_bytes == least
    needed = quick(rows, tmp_path, memory=least, degrees=(16,))
    velo.build(tmp_path / "i", rows, threads=1, **needed.build_options).close()
    velo.open(tmp_path / "i", **needed.open_options).close()


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"recall": 1.0}, "recall"),
        ({"recall": 1.5}, "recall"),
        ({"recall": "most"}, "recall"),
        ({"k": 0}, "k"),
        ({"k": 500}, "k"),
        ({"sample": 10}, "sample"),
        ({"sample": True}, "sample"),
        ({"degrees": ()}, "degrees"),
        ({"degrees": 48}, "degrees"),
        ({"degrees": (2,)}, "degrees"),
        ({"metric": "l1"}, "metric"),
        ({"threads": 0}, "threads"),
        ({"memory": 2.0}, "memory"),
        ({"memory": None}, "memory"),
        ({"memory": 100}, "memory"),
    ],
)
def test_bad_arguments_are_named(given: dict[str, Any], argument: str, tmp_path: Path) -> None:
    with pytest.raises(velo.errors.InvalidArgumentError) as raised:
        quick(synthetic_vectors(1_000, 32), tmp_path, **given)
    assert raised.value.argument == argument
    assert list(tmp_path.iterdir()) == []


def test_bad_vectors_are_named(tmp_path: Path, random: np.random.Generator) -> None:
    with pytest.raises(velo.errors.InvalidArgumentError, match="at least 1,000"):
        quick(synthetic_vectors(999, 16), tmp_path)
    with pytest.raises(velo.errors.EmptyError):
        quick(np.zeros((0, 16), np.float32), tmp_path)
    with pytest.raises(velo.errors.DtypeError):
        quick(np.zeros((2_000, 16), np.int64), tmp_path)
    rows = synthetic_vectors(2_000, 16)
    bad = int(random.integers(2_000))
    rows[bad, 3] = np.nan
    with pytest.raises(velo.errors.NotFiniteError) as raised:
        quick(rows, tmp_path)
    assert raised.value.row == bad
    with pytest.raises(velo.VeloError) as missing:
        quick(synthetic_vectors(1_000, 32), tmp_path / "nowhere")
    assert "nowhere" in str(missing.value)


def test_it_can_be_canceled_and_leaves_nothing(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []

    def watch(doing: str, done: int, total: int) -> bool | None:
        told.append((doing, done, total))
        return False if done == 2 else None

    with pytest.raises(velo.errors.CancelledError):
        quick(synthetic_vectors(3_000, 16), tmp_path, memory="40%", progress=watch)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert told[-1][1] == 2
    assert list(tmp_path.iterdir()) == []


def test_rows_are_drawn_alike_from_arrays_and_files(tmp_path: Path) -> None:
    rows = synthetic_vectors(6_000, 8, seed=2)
    write_vectors(tmp_path / "rows.fbin", rows)
    held = draw(as_source(rows), 5_000, "l2", 10, 7)
    read = draw(open_vectors(tmp_path / "rows.fbin"), 5_000, "l2", 10, 7)
    for name in ("rows", "queries", "truth"):
        np.testing.assert_array_equal(getattr(held, name), getattr(read, name))
    both = np.concatenate([held.rows, held.queries])
    assert len(np.unique(both, axis=0)) == 5_000


def test_points_are_read_off_between_lists() -> None:
    points = [TunedPoint(10, 0.8, 4, 1, 100, 30), TunedPoint(40, 0.9, 6, 2, 300, 50)]
    assert vars(at_recall(points, 0.85)) == pytest.approx(
        {
            "list_size": 20,
            "recall": 0.85,
            "reads": 5,
            "rounds": 1.5,
            "estimates": 200,
            "busy_us": 40,
            "gpu_us": 0,
        }
    )
    assert at_recall(points, 0.7) == points[0]
    assert at_recall(points, 0.95) == points[1]


def test_the_cost_is_that_of_the_busier(small: velo.Proposal) -> None:
    for one in small.candidates:
        assert [point.list_size for point in one.points] == sorted(point.list_size for point in one.points)
        assert one.cost_us >= one.busy_us / small.threads > 0
        assert one.cost_us >= one.reads * 1e6 / small.reads_per_s
        assert one.cost_us in (
            pytest.approx(one.busy_us / small.threads),
            pytest.approx(one.reads * 1e6 / small.reads_per_s),
        )


def test_a_proposal_shows_a_table(small: velo.Proposal) -> None:
    heads, *rows, build_line, open_line = repr(small).splitlines()
    assert heads.split()[:2] == ["degree", "bits"]
    assert len(rows) == len(small.candidates)
    assert [row.startswith("*") for row in rows].count(True) == 1
    assert (build_line, open_line) == (small.build_line(), small.open_line())
    assert small._repr_html_().count("<tr>") == len(rows) + 1


def test_defaults_win_where_a_sample_shows_no_difference(small: velo.Proposal) -> None:
    bits = (4, 6)
    one = replace(small.chosen, reached=True, cost_us=100.0, degree=48, memory_bits=4, record_bits=6)
    alike = replace(one, degree=24, cost_us=95.0)
    assert _best([alike, one], bits) is one
    better = replace(alike, cost_us=85.0)
    assert _best([better, one], bits) is better
    other_bits = replace(one, memory_bits=5, record_bits=5, cost_us=95.0, rounds=0.5)
    assert _best([one, other_bits], bits) is one
    assert _best([one, replace(other_bits, cost_us=85.0)], bits).memory_bits == 5
    short = replace(better, reached=False, recall=0.9)
    assert _best([short, one], bits) is one
    assert _best([short, replace(short, recall=0.91)], bits).recall == 0.91


def test_bits_around_what_a_budget_chooses() -> None:
    for share in (0.1, 0.15, 0.2, 0.25, 0.3, 0.5):
        budget = int(share * 1_000_000 * 128 * 4)
        around = _splits(budget, 1_000_000, 128)
        chosen = sizes_of(1_000_000, 128, memory_bytes=budget)
        assert (chosen.memory_bits, chosen.record_bits) in around
        assert 1 <= len(around) <= 3
    least = sizes_of(1_000_000, 128).codes_least_bytes
    assert _splits(least - 1, 1_000_000, 128) == []
    assert _splits(least, 1_000_000, 128) == [(1, 7)]


def test_the_command_prints_candidates_and_lines_that_run(sample: Any, tmp_path: Path) -> None:
    given = ["tune", str(sample.folder / "sample.u8bin"), "--memory", "30%", "--sample", "4000"]
    given += ["--degree", "16", "--threads", "2", "--scratch", str(tmp_path)]
    shown = CliRunner().invoke(app, given)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count("*") == 1
    assert "degree 16" in shown.stderr
    told = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)
    assert told["chosen"] in told["candidates"]
    assert told["reads_per_s"] > 0
    assert told["open_options"] == {"memory": "30%"}
    assert list(tmp_path.iterdir()) == []
    program, *line = shlex.split(told["lines"]["build"].replace("INDEX", str(tmp_path / "i")))
    assert program == "velo"
    assert CliRunner().invoke(app, line).exit_code == 0
    expression = told["lines"]["open"].replace("INDEX", str(tmp_path / "i"))
    with eval(expression, {"velo": velo}) as index:
        assert index.info()["degree"] == told["chosen"]["degree"] == 16


def test_errors_of_the_command_are_one_line(sample: Any, tmp_path: Path) -> None:
    given = ["tune", str(sample.folder / "sample.u8bin"), "--scratch", str(tmp_path), "--memory", "1000"]
    done = CliRunner().invoke(app, [*given, "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"]["needed_bytes"] == sizes_of(20_000, 128).codes_least_bytes


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    write_vectors(tmp_path / "rows.fbin", synthetic_vectors(20_000, 48))
    process = subprocess.Popen(
        [sys.executable, "-m", "velo", "tune", tmp_path / "rows.fbin", "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    while not list(tmp_path.glob(".velo-tune-*/*/codes.work")):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130
    assert told.endswith("velo: interrupted\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.fbin"]
