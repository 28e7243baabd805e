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
from velo.planning.budgets import plans


def test_a_plan_is_what_an_open_does(sample: Any, sample_path: Any) -> None:
    planned = plans(sample_path, memory="17%")
    assert [row.share for row in planned] == sorted(row.share for row in planned)
    assert any(abs(row.share - 0.17) < 1e-4 for row in planned)
    assert {row.plan for row in planned} == {None, "links_on_disk", "links_in_memory"}
    least = next(row for row in planned if row.plan)
    assert {row.needed_bytes for row in planned if not row.plan} == {least.budget_bytes}
    bits = [row.build_bits for row in planned if row.build_bits is not None]
    assert bits[0] == (1, 7)
    assert bits == sorted(bits)
    assert any(0 < row.links_kept < 8 for row in planned if row.plan)  # vertices share lists
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
            steps = [0, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32]
            assert 0 <= steps.index(row.links_kept) - steps.index(info["links_kept"]) <= 1
            if info["links_kept"] != row.links_kept:
                continue
            assert row.memory_bytes["codes"] == info["memory_bytes"]["codes"]
            assert row.memory_bytes["links"] == pytest.approx(info["memory_bytes"]["links"], rel=0.15)
            found = index.search(sample.queries, recall=0.95)
            assert found.expected.list_size == row.list_size
            if row.plan == "links_in_memory":  # with links on disk the cache takes some
                if info["memory_bytes"]["cache"]:  # told: of a full one, for new queries
                    again = index.search(sample.queries, recall=0.95)
                    assert again.stats["reads"].mean() <= 1.2 * row.reads + 0.05
                else:
                    assert found.stats["reads"].mean() == pytest.approx(row.reads, rel=0.2)
                assert found.stats["estimates"].mean() == pytest.approx(found.expected.estimates, rel=0.2)
        assert row.reads >= 0.9 * row.more["reads"] >= 0  # shared lists may read a bit less than short ones
        assert set(row.more) == {"reads", "rounds", "estimates"}


def test_info_shows_what_budgets_buy(sample_path: Any) -> None:
    run = CliRunner().invoke(app, ["info", str(sample_path), "--budgets", "--recall", "0.9", "--json"])
    assert run.exit_code == 0, run.output
    shown = json.loads(run.stdout)
    assert len(shown["budgets"]) == len(budgets.SHARES) + 1
    text = CliRunner().invoke(app, ["info", str(sample_path), "--budgets"])
    assert text.exit_code == 0
    assert "rounds" in text.stdout
    assert "does not open this index" in text.stdout
    assert (
        ", shared"
        in CliRunner().invoke(app, ["info", str(sample_path), "--budgets", "--memory", "16%"]).stdout
    )
    # All pages have room.
    assert shown["budgets"][-1]["reads"] == 0
    text = CliRunner().invoke(app, ["info", str(sample_path), "--budgets", "--memory", "90%"])
    assert "buys nothing more" in text.stdout
    table = text.stdout.split("\n\n")[0].splitlines()
    assert max(map(len, table)) <= 80
    assert any("on disk" in line for line in table)


def test_an_index_that_was_written_to_is_planned_by_its_largest_segment(tmp_path: Any, random: Any) -> None:
    path = tmp_path / "a.velo"
    rows = random.normal(size=(1500, 16)).astype(np.float32)
    velo.build(path, rows[:1200]).close()
    before = plans(path, memory=30_000)
    with velo.open(path, writable=True, threads=1) as index:
        index.insert(rows[1200:1201])
    assert plans(path, memory=30_000) == before
    assert len(plans(path)) == len(budgets.SHARES) + 1
    with velo.open(path, writable=True, threads=1) as index:
        index.insert(rows[1201:])
        index.flush()
        assert len(index.info()["live"]["parts"]) == 2
        found = {row.budget_bytes: row for row in plans(path, memory=30_000)}
        assert set(found) == {row.budget_bytes for row in before} - {30_000} | {30_000 * 1200 // 1500}
    done = CliRunner().invoke(app, ["info", str(path), "--budgets"])
    assert done.exit_code == 0, done.output
    assert "rounds" in done.output


def test_an_index_without_a_segment_has_no_plans(tmp_path: Any) -> None:
    path = tmp_path / "a.velo"
    with velo.create(path, dim=4) as index:
        index.insert(np.eye(4, dtype=np.float32))
        with pytest.raises(velo.errors.UnsupportedError, match="flush it first"):
            plans(path)
    done = CliRunner().invoke(app, ["info", str(path), "--budgets"])
    assert done.exit_code != 0
    assert "flush it first" in done.output
