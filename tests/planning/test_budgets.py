"""What budgets would buy is what they do buy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import velo
from velo.cli.app import app
from velo.planning import budgets
from velo.planning.budgets import Costs, plans

COSTS = Costs(
    round_us=100.0,
    reads_per_s=50_000.0,
    query_us=10.0,
    estimates_least=200.0,
    estimate_ns=50.0,
    page_us=4.0,
    threads=2,
)


def test_a_plan_is_what_an_open_does(sample: Any, sample_path: Any) -> None:
    planned = plans(sample_path, memory="17%", costs=COSTS)
    assert [row.share for row in planned] == sorted(row.share for row in planned)
    assert any(abs(row.share - 0.17) < 1e-4 for row in planned)
    assert {row.plan for row in planned} == {None, "links_on_disk", "links_in_memory"}
    for row in planned:
        if row.plan is None:
            with pytest.raises(velo.errors.BudgetTooSmallError) as raised:
                velo.open(sample_path, memory=row.budget_bytes)
            assert raised.value.needed_bytes == row.needed_bytes
            continue
        with velo.open(sample_path, memory=row.budget_bytes) as index:
            info = index.info()
            assert info["plan"] == row.plan
            # Sizes of shorter lists are an estimate: an open may keep one step less.
            steps = [0, 8, 10, 12, 14, 16, 20, 24, 32]
            assert 0 <= steps.index(row.links_kept) - steps.index(info["links_kept"]) <= 1
            if info["links_kept"] != row.links_kept:
                continue
            assert row.memory_bytes["codes"] == info["memory_bytes"]["codes"]
            assert row.memory_bytes["links"] == pytest.approx(info["memory_bytes"]["links"], rel=0.1)
            found = index.search(sample.queries, recall=0.95)
            assert found.expected.list_size == row.list_size
            if row.plan == "links_in_memory":  # with links on disk the cache takes some
                assert found.stats["reads"].mean() == pytest.approx(row.reads, rel=0.2)
                assert found.stats["estimates"].mean() == pytest.approx(found.expected.estimates, rel=0.2)
        assert row.latency_us > row.rounds * COSTS.round_us
        assert 0 < row.queries_per_s <= COSTS.reads_per_s / row.reads
        assert set(row.more) == {"reads", "rounds", "latency_us", "queries_per_s"}


def test_the_model_adds_up() -> None:
    assert COSTS.latency_us(reads=10, rounds=2, estimates=1000) == pytest.approx(10 + 40 + 40 + 200)
    assert COSTS.latency_us(reads=0, rounds=0, estimates=100) == pytest.approx(10)
    assert COSTS.queries_per_s(reads=10, estimates=1000) == pytest.approx(5000)  # the device
    assert COSTS.queries_per_s(reads=1, estimates=10_000) == pytest.approx(2e6 / 504)  # the workers


def test_info_shows_what_budgets_buy(sample_path: Any) -> None:
    run = CliRunner().invoke(app, ["info", str(sample_path), "--budgets", "--recall", "0.9", "--json"])
    assert run.exit_code == 0, run.output
    shown = json.loads(run.stdout)
    assert shown["costs"]["round_us"] > 0
    assert shown["costs"]["page_us"] > 0
    assert len(shown["budgets"]) == 7
    text = CliRunner().invoke(app, ["info", str(sample_path), "--budgets"])
    assert text.exit_code == 0
    assert "QPS" in text.stdout
    assert "needs" in text.stdout
    # Links in memory whole, at 40 % as at 50 %: nothing more is bought.
    assert "buys nothing more" in text.stdout
    table = text.stdout.split("\n\n")[0].splitlines()
    assert max(map(len, table)) <= 80
    for name in ("in memory", "on disk"):
        assert any(name in line for line in table)


def test_a_probe_is_repeated_until_it_agrees(monkeypatch: Any, sample_index: velo.Index) -> None:
    """What else the machine does falls into some probes: the fastest pair that agrees counts."""
    taken = iter([COSTS.slower(3.0), COSTS.slower(1.02), COSTS.slower(2.0), COSTS, COSTS.slower(9.0)])
    monkeypatch.setattr(budgets, "_probe", lambda index, seed: next(taken))
    found = budgets.measure_costs(sample_index)
    assert found == COSTS
    assert found.agreed
    assert next(taken) == COSTS.slower(9.0)
    apart = iter([COSTS.slower(2.0**number) for number in range(20)])
    monkeypatch.setattr(budgets, "_probe", lambda index, seed: next(apart))
    found = budgets.measure_costs(sample_index)
    assert not found.agreed
    assert found.query_us == COSTS.query_us


def test_an_index_that_was_written_to_is_planned_by_its_largest_part(tmp_path: Any, random: Any) -> None:
    path = tmp_path / "a.velo"
    rows = random.normal(size=(1500, 16)).astype(np.float32)
    velo.build(path, rows[:1200]).close()
    before = plans(path, memory=30_000, costs=COSTS)
    with velo.open(path, writable=True, threads=1) as index:
        index.insert(rows[1200:1201])
    assert plans(path, memory=30_000, costs=COSTS) == before
    assert len(plans(path)) == len(budgets.SHARES)
    with velo.open(path, writable=True, threads=1) as index:
        index.insert(rows[1201:])
        index.flush()
        assert len(index.info()["live"]["parts"]) == 2
        found = {row.budget_bytes: row for row in plans(path, memory=30_000, costs=COSTS)}
        assert set(found) == {row.budget_bytes for row in before} - {30_000} | {30_000 * 1200 // 1500}
    done = CliRunner().invoke(app, ["info", str(path), "--budgets"])
    assert done.exit_code == 0, done.output
    assert "QPS" in done.output


def test_an_index_without_a_part_has_no_plans(tmp_path: Any) -> None:
    path = tmp_path / "a.velo"
    with velo.create(path, dim=4) as index:
        index.insert(np.eye(4, dtype=np.float32))
        with pytest.raises(velo.errors.UnsupportedError, match="flush it first"):
            plans(path)
    done = CliRunner().invoke(app, ["info", str(path), "--budgets"])
    assert done.exit_code != 0
    assert "flush it first" in done.output
