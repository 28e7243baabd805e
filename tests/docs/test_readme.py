"""What the README shows runs as it stands, and it is as short and as linked as it should be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.runner import ROOT, environment

README = (ROOT / "README.md").read_text()


def block(title: str, language: str) -> str:
    section = README.split(f"\n### {title}\n", 1)[1].split("\n#", 1)[0]
    (found,) = re.findall(rf"```{language}\n(.*?)```", section, flags=re.DOTALL)
    return str(found)


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env or environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder that was empty before the first example ran in it, and what that printed."""
    folder = tmp_path_factory.mktemp("readme")
    return folder, run(sys.executable, "-c", block("As a library", "python"), cwd=folder)


def test_library(shop: tuple[Path, str]) -> None:
    folder, printed = shop
    assert "brand" in printed
    assert (folder / "shop.velo" / "manifest.json").exists()


def test_http(shop: tuple[Path, str]) -> None:
    no_server_stays = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
    out = run("bash", "-euc", no_server_stays + block("Over HTTP", "sh"), cwd=shop[0])
    assert len(re.findall(r"\d+", out.split("[[", 1)[1])) == 15


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(targets) > 10
    for target in targets:
        assert "://" in target or (ROOT / target).exists(), target


def test_the_first_commands_are_the_door_s() -> None:
    first = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)[0]
    commands = [line.split("#")[0].split() for line in first.splitlines()]
    assert commands == [["./dev", "demo"], ["./dev", "test"]]
    door = (ROOT / "dev").read_text()
    for _, command in commands:
        assert re.search(rf"^{command}\)", door, flags=re.MULTILINE), command


def test_it_is_short() -> None:
    """120 lines, a chart, the window, one table of eight rows: what else was measured is in docs/results."""
    assert len(README.splitlines()) <= 120
    pictures = re.findall(r"!\[[^\]]*\]\((.*?)\)", README)
    assert pictures == ["docs/pictures/window.png", "docs/results/report-sift100k-memory.png"]
    assert (ROOT / pictures[0]).stat().st_size < 150_000
    tables = re.findall(r"(?:^\|.*\n)+", README, flags=re.MULTILINE)
    assert [len(table.splitlines()) - 2 for table in tables] == [8]


def test_its_numbers_are_those_of_the_report() -> None:
    """Recall and rate of each row stand in one row of the report."""
    (name,) = set(re.findall(r"docs/results/(report-\w+)\.md", README))
    report = (ROOT / "docs" / "results" / f"{name}.md").read_text().splitlines()
    rows = [line.split("|")[2:6] for line in README.splitlines() if re.match(r"\| .*\d ms \|", line)]
    assert len(rows) == 8
    for recall, rate, _, _ in rows:
        # The report has a digit more, which was rounded, too.
        assert any(abs(float(recall) - _recall(line)) < 0.0006 and rate in line for line in report), recall


def _recall(line: str) -> float:
    cells = [cell.strip() for cell in line.split("|")]
    found = [cell for cell in cells if re.fullmatch(r"[01]\.\d{4}", cell)]
    return float(found[0]) if found else -1.0
