"""Every command of ``python -m bench`` runs over a small set and writes its page, rows and pictures."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as bench
from bench.harness import cgroup, plots
from bench.harness.datasets import DataError
from bench.harness.runs import ROOT
from bench.harness.targets import Line
from bench.peers import install
from tests.bench.small_set import small_set

SAMPLE = ROOT / "examples" / "data"
RESULTS = ROOT / "docs" / "results"


@dataclass(frozen=True)
class Ran:
    """The outcome of a command."""

    page: str
    found: dict[str, Any]
    lines: list[Line]
    pictures: list[str]

    def rows(self, section: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.found[section]["result"]["rows"]
        return rows


@dataclass(frozen=True)
class Case:
    """The arguments of a command beside its data, its sections, and a check of what it wrote."""

    only: list[str]
    arguments: list[str]
    check: Callable[[Ran], object]
    data: Callable[[Path], Path] = small_set
    pictures: list[str] = field(default_factory=list)


def run(command: str, data: list[str], case: Case, folder: Path) -> Ran:
    where = ["--work", str(folder / "work"), "--out", str(folder / "out"), "--name", "small"]
    arguments = [command, *data, *where, *case.arguments, "--only", *case.only]
    described = bench.report_of(command)
    lines = described.main(bench.parser().parse_args(arguments))
    page = (folder / "out" / "small.md").read_text()
    kept = described.kept(folder / "out", "small")
    errors = {
        name: told["error"] for name, told in kept.found.items() if name in case.only and "error" in told
    }
    assert errors == {}
    pictures = sorted(file.name for file in (folder / "out").glob("*.png"))
    for name in pictures:
        assert f"({name})" in page
        assert (folder / "out" / name).stat().st_size > 5000
    return Ran(page, dict(kept.found), lines, pictures)


def values(ran: Ran) -> dict[str, float]:
    return {line.what: line.value for line in ran.lines if line.value is not None}


def check_report(ran: Ran) -> None:
    assert values(ran)["recall@10 reachable by list size alone"] > 0.9
    assert values(ran)["QPS on two threads ÷ on one"] > 0
    assert "| reads at 0.95, 25 % | ≤ 8.5 | not measured: not asked for | not measured |" in ran.page


def check_speed(ran: Ran) -> None:
    rows = ran.rows("velo:20%")
    assert sorted(row["list_size"] for row in rows) == [16, 200]  # of two passes the better one
    assert all(row["cpu_us_per_query"] > 0 and row["reads"] > 0 for row in rows)
    assert "| velo 20% 4+6 |" in ran.page


def check_sweep(ran: Ran) -> None:
    (exact,) = ran.rows("peer:numpy")
    assert exact["recall_at_10"] == 1
    narrow, wide = ran.rows("velo:20%")
    assert wide["recall_at_10"] >= max(0.8, narrow["recall_at_10"])
    assert wide["sigma"] == 1
    assert wide["budget_bytes"] == 3000 * 32 * 4 // 5
    assert wide["bytes_read"] >= wide["reads"] * 4096
    assert all(row["latency_p50_us"] <= row["latency_p99_us"] and row["qps"] > 0 for row in (narrow, wide))
    assert "numpy, exact" in ran.page


def check_budgets(ran: Ran) -> None:
    assert "codes of pages" in ran.page
    assert "| section | why |" not in ran.page
    assert "| 8.0% | 1+7 |" in ran.page
    assert ran.found["memory:45%:4+6"]["error"] == "not asked for"


def check_filters(ran: Ran) -> None:
    told = values(ran)
    assert told["recall@10 at recall=0.95, worst of all filters"] > 0.8
    assert "| uniform10 |" in ran.page


def check_hard(ran: Ran) -> None:
    rows, exact = ran.rows("velo:made"), ran.found["velo:made"]["result"]["exact"]
    assert [row["asked"] for row in rows][:2] == [{"recall": 0.8}, {"recall": 0.9}]
    assert all(row["reads"] > 0 and row["list_size"] >= 10 for row in rows)
    assert next(row for row in exact if row["asked"] == {"recall": 1.0})["recall_at_10"] == 1
    filters = ran.rows("filters:made")
    by_chance = {row["matches"] for row in filters if row["label"].startswith("random")}
    assert by_chance == {750, 150, 30, 15, 2}
    assert next(row for row in filters if row["label"] == "random 0.001")["recall"] == 1
    assert values(ran)["recall@10 at recall=0.95 under filters, the worst"] > 0.5


def check_live(ran: Ran) -> None:
    told = values(ran)
    assert told["insert, batches of 1,000, `interval`: rows a second of processor"] > 0
    assert told["recall after the last turnover (rows that lie together) less a fresh build's"] > -0.1
    assert len(ran.found["churn:clusters"]["result"]["steps"]) == 2
    assert ran.found["upserts"]["result"]["4"]["calls"] > 0


def check_confined(ran: Ran) -> None:
    assert ran.page.count("The process ended well") == 3
    assert "Error" not in ran.page
    assert "insert of 60 rows in one call" in ran.page
    assert not list(cgroup.ROOT.glob("*/velo-bench-*"))


SIZES = ["--limit", "1000", "--queries", "40", "--single", "3"]
CASES = {
    "report": Case(
        ["velo20", "scaling"],
        [*SIZES, "--lists", "24", "96", "--peers", "none"],
        check_report,
        lambda _: SAMPLE,
        ["memory", "qps", "latency", "reads"],
    ),
    "speed": Case(
        ["velo:20%"],
        ["--budgets", "20%", "--lists", "16", "200", "--passes", "2", "--peers", "none", "--single", "5"],
        check_speed,
        pictures=["memory", "recall"],
    ),
    "sweep": Case(
        ["velo:20%", "peer:numpy"],
        ["--lists", "24", "200@1", "--peers", "numpy", "--single", "5"],
        check_sweep,
        pictures=["memory", "qps"],
    ),
    "budgets": Case(
        ["memory:4%:1+7", "memory:8%:1+7"],
        ["--lists", "16", "800", "--single", "3", "--threads", "1"],
        check_budgets,
        lambda folder: small_set(folder, n=2000, dim=64),
        [""],
    ),
    "filters": Case(
        ["uniform10", "share_0.1"],
        ["--queries", "100", "--lists", "32", "96", "--peers", "none"],
        check_filters,
        lambda _: SAMPLE,
    ),
    "hard": Case(
        ["velo:made", "filters:made"],
        ["--sets", "made", "--peers", "none", "--threads", "1"],
        check_hard,
        lambda folder: small_set(folder / "made", n=1500, metric="ip", queries=40).parent,
        [""],
    ),
    "live": Case(
        ["insert", "upserts", "churn:clusters"],
        [
            "--memory",
            "40%",
            "--burst",
            "1000",
            "--callers",
            "4",
            "--seconds",
            "0.2",
            "--turnovers",
            "1",
            "--single",
            "5",
        ],
        check_live,
        lambda folder: small_set(folder, dim=16),
        ["churn", "insert"],
    ),
    "confined": Case(
        ["index", "reads", "writes", "optimize"],
        ["--memory", "40%", "--queries", "20", "--threads", "1"],
        check_confined,
        lambda folder: small_set(folder, dim=16),
    ),
}


@pytest.mark.parametrize(
    "command",
    [
        "report",
        pytest.param(
            "hard",
            marks=pytest.mark.long(guarded_by="tests/bench/test_hard.py::test_truth_under_filters_is_exact"),
        ),
        pytest.param(
            "speed",
            marks=pytest.mark.long(
                guarded_by="tests/bench/test_commands.py::test_a_command_measures_and_writes"
            ),
        ),
        pytest.param(
            "sweep",
            marks=pytest.mark.long(
                guarded_by="tests/bench/test_commands.py::test_a_command_measures_and_writes"
            ),
        ),
        pytest.param(
            "budgets",
            marks=pytest.mark.long(
                guarded_by="tests/bench/test_commands.py::test_kept_rows_make_a_page_again"
            ),
        ),
        pytest.param(
            "filters",
            marks=pytest.mark.long(
                guarded_by="tests/bench/test_filters.py::test_truth_that_is_made_is_exact_among_the_rows_that_pass"
            ),
        ),
        pytest.param(
            "live",
            marks=pytest.mark.long(
                guarded_by="tests/bench/test_live.py::test_many_segments_are_compared_with_one"
            ),
        ),
        pytest.param(
            "confined",
            marks=pytest.mark.long(
                guarded_by="tests/bench/test_commands.py::test_kept_rows_make_a_page_again"
            ),
        ),
    ],
)
def test_a_command_measures_and_writes(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The one peer that needs no environment of its own: this one has numpy.
    monkeypatch.setattr(install, "interpreter", lambda name, work: Path(sys.executable))
    if command == "confined":
        try:
            with (
                cgroup.limited(64 << 20) as group,
                group.popen([sys.executable, "-c", "b'x' * (200 << 20)"]) as one,
            ):
                assert one.wait() == -9
        except DataError as refused:
            pytest.skip(str(refused))
    case = CASES[command]
    ran = run(command, ["--data", str(case.data(tmp_path / "small"))], case, tmp_path)
    case.check(ran)
    if case.pictures and plots.available():
        assert ran.pictures == sorted(f"small-{name}.png" if name else "small.png" for name in case.pictures)


def test_serve_measures_one_index_and_shards(tmp_path: Path) -> None:
    case = Case(["one process"], ["--seconds", "0.1"], lambda _: None)
    data = ["--data", str(small_set(tmp_path / "small"))]
    rows = run("serve", data, case, tmp_path).rows("one process")
    assert [row["what"] for row in rows] == [
        "one index",
        "four shards in one process",
        "FastAPI over one index",
    ]
    assert all(row["queries_per_s"] > 0 and row["all_us"] > 0 and row["recall"] > 0.8 for row in rows)


@pytest.mark.long(guarded_by="tests/bench/test_commands.py::test_serve_measures_one_index_and_shards")
@pytest.mark.timeout(900)
def test_every_line_of_serve_is_measured(tmp_path: Path) -> None:
    every = ["processes", "one process", "heavy", "overload", "events"]
    data = ["--data", str(small_set(tmp_path / "small"))]
    ran = run("serve", data, Case(every, ["--seconds", "0.4"], lambda _: None), tmp_path)
    assert [line.what for line in ran.lines if line.value is None] == []
    rows = {row["what"]: row for name in every for row in ran.rows(name)}
    assert rows["JSON, 32 connections"]["refused"] == 0
    assert rows["JSON, 32 connections"]["shards_us"] > 0
    assert rows["a shard is killed"]["partial"] > 0
    assert ran.pictures == ["small.png"]


# ---- rows that are kept ----


@pytest.mark.parametrize("name", sorted(file.stem for file in RESULTS.glob("*.jsonl")))
def test_kept_rows_make_a_page_again(name: str, tmp_path: Path) -> None:
    """The rows of every result whose command is a report give the targets that its page says."""
    command = name.split("-")[0]
    if command not in bench.REPORTS:
        assert command in ("capped", "outside", "soak")  # finished results, and rows without sections
        return
    for file in RESULTS.glob("report-*.jsonl"):  # beside budgets
        shutil.copy(file, tmp_path)
    shutil.copy(RESULTS / f"{name}.jsonl", tmp_path)
    described = bench.report_of(command)
    kept = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
    lines = described.write(described.kept(tmp_path, name))
    now = {line.what: line.value for line in lines}
    for row in kept:
        if "line" in row and row["line"]["value"] is not None and row["line"]["what"] in now:
            assert now[row["line"]["what"]] == pytest.approx(row["line"]["value"]), row["line"]["what"]
    assert "Measured at" in (tmp_path / f"{name}.md").read_text()
