"""``bench live``: turnovers, states of segments, and the merge of everything."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.commands import live, live_fresh, live_indexes, live_many, live_processes, live_sections
from bench.harness import plots
from bench.harness.datasets import DataError
from bench.harness.report import Page
from bench.harness.sections import Context, Results
from tests.bench.small_set import small_set


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """3,000 rows of 16 dimensions."""
    options = {"memory": "40%", "seconds": 0.2, "turnovers": 2}
    folder = small_set(tmp_path / "small", dim=16, queries=60)
    return Context(str(folder), str(tmp_path / "work"), None, 40, 10, 2, options)


@pytest.mark.parametrize("kind", live_sections.KINDS)
def test_a_turnover_takes_a_tenth_and_brings_as_many(kind: str, context: Context) -> None:
    dataset = context.dataset()
    before = np.arange(2400)
    for gone, come, lives in live_sections.turns(kind, dataset, 12):
        assert len(gone) == len(come) == 240
        assert np.isin(gone, before).all()
        assert not np.isin(come, before).any()
        assert (lives == np.setdiff1d(np.union1d(before, come), gone)).all()
        before = lives


@pytest.mark.long(guarded_by="tests/bench/test_live.py::test_many_segments_are_compared_with_one")
def test_single_queries_are_timed_around_a_merge(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_indexes, "_REST_S", 0.5)
    told = json.loads(json.dumps(live_sections.merge(context)))
    assert min(told[when]["calls"] for when in ("idle", "busy")) > 0
    assert told["merge_s"][0] < told["merge_s"][1]


def test_many_segments_are_compared_with_one(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_many, "_PARTS", (0, 2, 6))
    monkeypatch.setattr(live_many, "_DELTA_ROWS", (0, 200))
    monkeypatch.setattr(live_many, "_ROUNDS", 1)
    told: Results = json.loads(json.dumps(live_many.many(context)))
    assert [one["count"] for one in told["parts"]] == [0, 2, 6]
    assert [one["rows"] for one in told["parts"]] == [1800, 1920, 2160]
    assert [one["rows"] for one in told["delta"]] == [1800, 2000]
    for state in (*told["parts"], *told["delta"]):
        for row in state["recalls"]:
            assert row["state"]["recall"] > 0.9
            assert row["state"]["cpu_us"] > 0
    head = {"options": {"callers": 4}}
    page = Page(tmp_path, "live", head, {"many": {"section": "many", "result": told}})
    lines = {target.what: target.line(page.found) for target in live.targets(page)}
    assert lines["rounds, two young segments"].value is not None
    assert lines["rounds, six young segments"].note.startswith("one segment: ")
    pictures = [part for part in live.content(page) if isinstance(part, plots.Picture)]
    assert [picture.name for picture in pictures] == ["many-parts", "many-delta"]


def test_fresh_rows_are_compared_with_one_segment(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_indexes, "_REST_S", 0.5)
    monkeypatch.setattr(live_fresh, "_TURNS", 3)
    monkeypatch.setattr(live_many, "_ROUNDS", 1)
    found = {
        measure.__name__: {"section": measure.__name__, "result": json.loads(json.dumps(measure(context)))}
        for measure in (live_fresh.half, live_fresh.full_rate, live_fresh.rewritten)
    }
    assert found["rewritten"]["result"]["upserts"] == 4500
    page = Page(tmp_path, "live", {"options": {"callers": 4}}, found)
    lines = [target.line(page.found) for target in live.targets(page)]
    assert [line.value is not None and line.value > 0 for line in lines].count(True) == len(
        live_fresh.TARGETS
    )


def test_several_processes_write_to_one_index(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_processes, "PROCESSES", 2)
    monkeypatch.setattr(live_processes, "_LOOKS", 100)
    context.options["burst"] = 600
    found = {
        name: {"section": name, "result": json.loads(json.dumps(measure(context)))}
        for name, measure in (("processes", live_processes.processes), ("rest", live_processes.rest))
    }
    told = found["processes"]["result"]
    assert min(*told["sync"].values(), *told["process"].values(), *told["alone"].values()) > 0
    assert told["upserts"]["calls"] >= 2
    page = Page(tmp_path, "live", {"options": {"callers": 4}}, found)
    lines = {target.what: target.line(page.found) for target in live.targets(page)}
    left = lines["bytes on disk after upserts by 4 processes ÷ a fresh build"]
    assert left.value is not None
    assert "3,000 upserts of 600 rows" in left.note


def test_a_set_of_too_few_rows_is_refused(context: Context) -> None:
    with pytest.raises(DataError, match="3,000 rows are too few for states of up to 7,800"):
        live_many.many(context)


def test_a_state_changed_by_a_merge_is_not_measured(context: Context, tmp_path: Path) -> None:
    dataset = context.dataset()
    path = live_indexes.fresh_build(context, dataset, np.arange(500), tmp_path / "a.velo")
    live_many.expect(path, [500], 0)
    with pytest.raises(DataError, match="something merged"):
        live_many.expect(path, [400, 100], 0)
