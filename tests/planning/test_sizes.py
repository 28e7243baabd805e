"""What an index will take by its shape, beside what an index of that shape takes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import velo
from tests.rungs import kind_of
from velo import errors
from velo.cli.app import app
from velo.testing import synthetic_vectors


@pytest.mark.parametrize(
    ("dim", "dtype", "memory"),
    [(64, "f32", "30%"), (128, "u8", "20%"), (400, "f16", "15%"), (96, "i8", None)],
)
def test_sizes_are_those_of_an_index(dim: int, dtype: Any, memory: str | None, tmp_path: Path) -> None:
    n = 4000
    rows = synthetic_vectors(n, dim, seed=2)
    kinds = {"f32": np.float32, "f16": np.float16, "u8": np.uint8, "i8": np.int8}
    if dtype in ("u8", "i8"):
        rows = np.clip(rows * 12 + (128 if dtype == "u8" else 0), -128, 255 if dtype == "u8" else 127)
    plan = velo.size_plan(n, dim, memory=memory, dtype=dtype, store_vectors=True)
    with velo.build(
        tmp_path / "i",
        rows.astype(kinds[dtype]),
        search_memory=memory,
        memory=memory,
        store_vectors=True,
        calibrate=False,
        threads=2,
    ) as index:
        info = index.info()
    assert (plan.memory_bits, plan.record_bits) == (info["memory_bits"], info["record_bits"])
    assert (plan.links > 0) == (info["plan"] == "links_in_memory")
    used = info["memory_bytes"]
    assert plan.memory_bytes["codes"] == pytest.approx(used["codes"], rel=0.03, abs=20_000)
    assert plan.memory_bytes["links"] <= 1.5 * used["links"] + 20_000
    assert plan.memory_bytes["links"] >= 0.8 * used["links"]
    sizes = {entry.name: entry.stat().st_size for entry in os.scandir(tmp_path / "i")}
    assert plan.disk_bytes["codes"] == pytest.approx(sizes["codes.bin"], rel=0.03)
    assert plan.disk_bytes["vectors"] == pytest.approx(sizes["vectors.bin"], rel=0.02)
    # Lists in pages are planned as long as they may be.
    assert 0.9 * sizes["pages.bin"] <= plan.disk_bytes["pages"] <= 1.4 * sizes["pages.bin"]
    assert plan.disk_bytes["total"] == pytest.approx(sum(sizes.values()), rel=0.2)


@pytest.mark.parametrize("folder", [".", "earlier"])
def test_a_million_takes_what_was_measured(folder: str, root: Path) -> None:
    lines = (root / "docs" / "results" / folder / "budgets-sift1m.jsonl").read_text().splitlines()
    rows = [row["row"] for row in map(json.loads, lines) if "row" in row]
    # Elsewhere the plan has numbers of its own; rows of the report are of an earlier library.
    rows = [row for row in rows if 0.1 <= row["share"] <= 0.2 and "report" not in row]
    assert len(rows) >= 3
    for row in rows:
        plan = velo.size_plan(1_000_000, 128, memory=f"{row['share']:.2%}")
        assert f"{plan.memory_bits}+{plan.record_bits}" == row["bits"]
        assert kind_of(plan.links) == kind_of(row["links"])
        assert plan.page_codes == 0
        assert plan.memory_bytes["total"] == pytest.approx(row["bytes"] * 1e6, rel=0.05)
        assert plan.reads == pytest.approx(row["reads"], rel=0.03)
        assert plan.rounds == pytest.approx(row["rounds"], rel=0.06)
        if folder == "earlier":  # the plan has processor times of that machine
            assert plan.query_core_us == pytest.approx(row["cpu_us_per_query"], rel=0.1)


def test_a_budget_below_codes_takes_at_most_380_bytes_on_disk() -> None:
    for share in ("0.3%", "1%", "2%", "3%"):
        plan = velo.size_plan(1_000_000, 128, memory=share)
        assert plan.page_codes > 0
        assert 370e6 < plan.disk_bytes["total"] <= 380e6


def test_more_takes_more() -> None:
    plans = [velo.size_plan(rows, 128, memory="20%") for rows in (10**5, 10**6, 10**7, 10**8, 10**9)]
    for name in ("reads", "query_core_us", "build_core_s"):
        values = [getattr(plan, name) for plan in plans]
        assert values == sorted(values)
    assert [plan.measured for plan in plans] == [True, True, True, False, False]
    divided = velo.size_plan(10**9, 128, memory="20%", shards=100)
    assert divided.measured
    assert divided.reads < plans[-1].reads
    assert divided.memory_bytes["total"] <= 10**9 * 128 * 4 * 0.2


def test_impossible_sizes_name_a_possible_one() -> None:
    with pytest.raises(errors.BudgetTooSmallError) as small:
        velo.size_plan(500_000_000, 768, memory="2GB", shards=10)
    needed = small.value.needed_bytes
    assert needed is not None
    assert small.value.argument == "memory"
    assert velo.size_plan(500_000_000, 768, memory=needed + 10_000, shards=10).page_codes == 1
    with pytest.raises(errors.InvalidArgumentError, match="2 shards"):
        velo.size_plan(2**31, 16)
    rows = np.lib.stride_tricks.as_strided(np.zeros(4, np.uint8), (2**31, 4), (0, 1))
    with pytest.raises(errors.InvalidArgumentError, match="2 shards or more") as many:
        velo.build("never made", rows)
    assert many.value.argument == "vectors"
    for wrong in ({"rows": 0, "dim": 8}, {"rows": 10, "dim": 0}, {"rows": 10, "dim": 8, "dtype": "f64"}):
        with pytest.raises(errors.InvalidArgumentError):
            velo.size_plan(**wrong)


def test_the_command_reads_counts_as_people_write_them() -> None:
    def asked(rows: str, *more: str) -> Any:
        done = CliRunner().invoke(app, ["size", "--rows", rows, "--dim", "64", "--json", *more])
        return json.loads(done.stdout) if done.exit_code == 0 else done.exit_code

    assert asked("1.5M")["rows"] == asked("1_500_000")["rows"] == asked("1500k")["rows"] == 1_500_000
    assert asked("2B", "--shards", "4", "--memory", "60GB")["shards"] == 4
    assert asked("many") == 1
    shown = CliRunner().invoke(app, ["size", "--rows", "500M", "--dim", "768", "--shards", "10"])
    assert "10 shards of 50,000,000" in shown.stdout
    assert "drawn on" in shown.stdout.replace("\n", " ")
