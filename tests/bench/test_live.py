"""``bench live``: runbooks are read as they are meant, and its sections run over a small set."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.commands import (
    live,
    live_churn,
    live_indexes,
    live_many,
    live_pictures,
    live_runbook,
    live_sections,
)
from bench.harness.datasets import DataError, Dataset, nearest
from bench.harness.sections import Context, Results
from bench.peers import install

_BOOK = """
other:
  max_pts: 10
  1: {operation: search}
random-clustered:
  max_pts: 1000
  gt_url: "https://example.org/truth"
  1: {operation: "insert", start: 0, end: 700}
  2: {operation: "search"}
  3: {operation: "replace", tags_start: 0, tags_end: 100, ids_start: 700, ids_end: 800}
  4: {operation: "delete", start: 100, end: 300}
  5: {operation: "search"}
"""


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.yaml"
    path.write_text(_BOOK)
    return path


@pytest.fixture
def context(tmp_path: Path, book: Path) -> Context:
    """3,000 rows of 16 dimensions, as bench's own sets lie on disk."""
    random = np.random.default_rng(3)
    folder = tmp_path / "small"
    folder.mkdir()
    base = random.normal(size=(3000, 16)).astype(np.float32)
    queries = random.normal(size=(60, 16)).astype(np.float32)
    np.save(folder / "base.npy", base)
    np.save(folder / "query.npy", queries)
    np.savez(folder / "truth.npz", ids=nearest(base, queries, 10, "l2"))
    (folder / "set.json").write_text(json.dumps({"metric": "l2"}))
    options = {
        "memory": "40%",
        "burst": 1000,
        "deletes": 500,
        "callers": 4,
        "seconds": 0.2,
        "turnovers": 2,
        "peers": [],
        "runbook": f"{book}:random-clustered",
    }
    return Context(str(folder), str(tmp_path / "work"), None, 40, 10, 2, options)


def test_a_runbook_is_read_step_by_step(book: Path) -> None:
    points, steps = live_runbook.read(book, "random-clustered")
    assert points == 1000
    assert [step.operation for step in steps] == ["insert", "search", "replace", "delete", "search"]
    assert (steps[2].ids, steps[2].rows) == (range(100), range(700, 800))
    assert live_runbook.scaled(steps[2], points, 3000).rows == range(2100, 2400)
    assert live_runbook.scaled(steps[3], points, 3000).ids == range(300, 900)


@pytest.mark.parametrize(
    "text",
    [
        "a: {max_pts: 10, 1: {operation: jump}}",
        "a: {max_pts: 10, 1: {operation: insert, start: 0, end: 11}}",
        "a: {max_pts: 10, 1: {operation: replace, tags_start: 0, tags_end: 2, ids_start: 0, ids_end: 1}}",
        "a: {1: {operation: search}}",
        "b: {max_pts: 10}",
        "a: [",
    ],
)
def test_what_is_no_runbook_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "book.yaml"
    path.write_text(text)
    with pytest.raises(DataError, match="no runbook with a set 'a'"):
        live_runbook.read(path, "a")


@pytest.mark.parametrize("kind", live_churn.KINDS)
def test_a_turnover_takes_a_tenth_and_brings_as_many(kind: str, context: Context) -> None:
    dataset: Dataset = context.dataset()
    order = live_churn.along(dataset)
    before = np.sort(order[:2400])
    for gone, come, lives in live_churn.turns(kind, dataset, order, 12):
        assert len(gone) == len(come) == 240
        assert np.isin(gone, before).all()
        assert not np.isin(come, before).any()
        assert (lives == np.setdiff1d(np.union1d(before, come), gone)).all()
        before = lives


def test_its_sections_run_and_are_drawn(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_sections, "_REST_S", 0.5)
    sections = live_sections.sections_of(context)
    found: dict[str, Results] = {}
    for name in ("insert", "double", "merge", "churn:norms", "runbook"):
        found[name] = {"result": json.loads(json.dumps(sections[name].measure(context)))}
    searches = found["runbook"]["result"]["searches"]
    assert [(one["step"], one["rows"]) for one in searches] == [(2, 2100), (5, 1500)]
    assert min(one["recall"] for one in searches) > 0.9
    assert len(found["churn:norms"]["result"]["steps"]) == 3
    table = live.lines_of(found, context)
    assert sum(line.value is not None for line in table) >= 10
    (tmp_path / "out").mkdir()
    pictures = live_pictures.draw(tmp_path / "out", "live", found)
    for _, file in pictures:
        assert (tmp_path / "out" / file).read_bytes().startswith(b"\x89PNG")
    assert len(pictures) == 8


_EXACT = """
import sys
import numpy as np
sys.path.insert(0, {peers!r})
from live import K, LiveSystem, run

class Exact(LiveSystem):
    ladder = (0, 1, 2)

    def __init__(self, request):
        super().__init__(request)
        self.rows = {{}}

    def insert(self, rows, ids):
        assert not self.rows.keys() & set(ids.tolist())
        self.rows.update(zip(ids.tolist(), rows))

    build = insert

    def delete(self, ids):
        for one in ids.tolist():
            del self.rows[one]

    def search(self, queries):
        ids, rows = np.array(list(self.rows)), np.stack(list(self.rows.values()))
        distances = ((rows[None] - queries[:, None]) ** 2).sum(axis=2)
        found = ids[np.argsort(distances, axis=1)[:, :K]]
        return found if self.setting else np.full_like(found, -1)

run(Exact)
"""


def test_a_peer_takes_the_steps_of_a_runbook(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exact").mkdir()
    (tmp_path / "exact" / "live.py").write_text(_EXACT.format(peers=str(install.HERE)))
    monkeypatch.setattr(install, "HERE", tmp_path)
    monkeypatch.setattr(install, "interpreter", lambda *_: sys.executable)
    told = live_runbook.peer("exact", context)
    assert (told["setting"], told["setting_recall"], told["rows_max"]) == (1, 1.0, 2100)
    assert [(one["step"], one["rows"], one["recall"]) for one in told["searches"]] == [
        (2, 2100, 1.0),
        (5, 1500, 1.0),
    ]
    assert {what: one["rows"] for what, one in told["writes"].items()} == {
        "insert": 2100,
        "replace": 300,
        "delete": 600,
    }
    monkeypatch.setattr(live_runbook, "PEERS", ("exact",))
    mine = {"result": live_runbook.runbook(context), "load": 1.0}
    text = "\n".join(live_runbook.text({"runbook": mine, "runbook:exact": {"result": told, "load": 2.0}}))
    assert "| exact | 1 (1.0000) | 1.0000; 1.0000; 1.0000 |" in text


def test_an_unknown_peer_is_refused(context: Context) -> None:
    context.options["peers"] = ["hnswlib", "nobody"]
    with pytest.raises(DataError, match="no peer 'nobody'"):
        live_sections.sections_of(context)


def test_many_parts_stand_beside_one(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_many, "_PARTS", (0, 2, 6))
    monkeypatch.setattr(live_many, "_DELTA_ROWS", (0, 200))
    monkeypatch.setattr(live_many, "_ROUNDS", 1)
    told = json.loads(json.dumps(live_many.many(context)))
    assert [one["count"] for one in told["parts"]] == [0, 2, 6]
    assert [one["count"] for one in told["delta"]] == [0, 200]
    assert [one["rows"] for one in told["parts"]] == [1800, 1920, 2160]
    for state in (*told["parts"], *told["delta"]):
        for row in state["recalls"]:
            assert row["state"]["recall"] > 0.9
            assert row["state"]["cpu_us"] > 0

    rows = tmp_path / "other.jsonl"
    measured = {"section": "many", "result": told, "load": 1.0, "library": {"commit": "c0ffee"}}
    rows.write_text(json.dumps(measured) + "\n")
    found = {"many": measured | {"load": 2.0}, live_many.FORMER: live_many.former(rows)}
    text = "\n".join(live_many.text(found))
    assert "1.0 (before)" in text
    assert text.count("| before |") == text.count("| now |") == 5
    assert len(live_pictures.draw(tmp_path, "live", found)) == 6


def test_a_set_of_too_few_rows_is_refused(context: Context) -> None:
    with pytest.raises(DataError, match="3,000 rows are too few for states of up to 7,800"):
        live_many.many(context)


def test_a_state_that_something_merged_is_not_measured(context: Context, tmp_path: Path) -> None:
    dataset = context.dataset()
    path = live_indexes.fresh_build(context, dataset, np.arange(500), tmp_path / "a.velo")
    live_many.expect(path, [500], 0)
    with pytest.raises(DataError, match="something merged"):
        live_many.expect(path, [400, 100], 0)


def test_rows_without_that_section_are_refused(tmp_path: Path) -> None:
    rows = tmp_path / "other.jsonl"
    rows.write_text(json.dumps({"section": "many", "error": "stopped"}) + "\n")
    with pytest.raises(DataError, match="no rows of the section 'many'"):
        live_many.former(rows)
