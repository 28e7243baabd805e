"""The report, the ladder and the tables of the cache over a small set."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.commands import cache_and_layout, ladder, report, report_sections
from bench.harness import device, sections
from tests.long import count

SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "data"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where indexes are kept that several tests measure."""
    return tmp_path_factory.mktemp("work")


def context(work: Path, **options: object) -> sections.Context:
    chosen = {"budgets": ["20%"], "peers": [], "budget": "20%", "bits": "4+4", "lists": [24, 96]}
    return sections.Context(str(SAMPLE), str(work), count(1500, 4000), 60, 10, 2, chosen | options)


def test_single_numbers_of_the_report(work: Path) -> None:
    asked = context(work)
    used = report_sections.used(asked)
    assert 0 < used["share"] < 1
    assert used["records_used"] < used["records_scored"]
    assert 1 <= report_sections.true_pages(asked)["mean"] <= 10


def test_a_page_is_found_for_every_vertex(work: Path) -> None:
    asked = context(work)
    dataset = asked.dataset()
    pages = report_sections.page_of_vertex(report_sections.index_path(asked, dataset, "20%") / "pages.bin")
    assert len(pages) == dataset.n
    assert (pages[1:] - pages[:-1]).min() >= 0
    assert pages[0] == 0


def test_report_with_one_section_measured(work: Path, tmp_path: Path) -> None:
    table = report.run(context(work), tmp_path / "out", "small", ["velo20"])
    by_name = {line.what: line for line in table}
    assert (by_name["recall@10 reachable by list size alone"].value or 0) > 0.9
    assert by_name["reads at 0.95, 25 %"].note == "not asked for"
    text = (tmp_path / "out" / "small.md").read_text()
    assert "not measured: not asked for" in text
    again = report.run(context(work), tmp_path / "out", "again", [])
    assert [line.value for line in again] == [line.value for line in table]


def test_ladder_and_caches_over_a_small_set(work: Path, tmp_path: Path) -> None:
    asked = context(work, list_size=32)
    names = [step.name for step in ladder.steps()]
    rungs = ladder.run(asked, tmp_path / "out", "ladder", [names[0], names[-1]])
    assert rungs[0]["reads"] > 0
    assert rungs[-1]["reads"] > 0
    cache_and_layout.run_cache(asked, tmp_path / "out", "cache", ["cache-page-lru"])
    assert "whole pages, lru" in (tmp_path / "out" / "cache.md").read_text()
    cache_and_layout.run_layout(asked, tmp_path / "out", "layout", ["layout-10"])
    assert "| τ = 10 % |" in (tmp_path / "out" / "layout.md").read_text()


def test_plain_reads_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pages"
    file.write_bytes(bytes(1 << 20))
    monkeypatch.setattr(device.shutil, "which", lambda name: None)
    try:
        found = device.reads_per_s(file, seconds=0.2)
    except OSError as error:
        pytest.skip(f"LOUD: no O_DIRECT or no kernel AIO here: {error}")
    assert found["reads_per_s"] > 0
