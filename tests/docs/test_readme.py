"""What the README shows runs as it stands, and it is as short and as linked as it should be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.runner import ROOT, environment

README = (ROOT / "README.md").read_text()


def block(language: str) -> str:
    """The only block in that language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)
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
    return folder, run(sys.executable, "-c", block("python"), cwd=folder)


def test_library(shop: tuple[Path, str]) -> None:
    folder, printed = shop
    assert "brand" in printed
    assert (folder / "shop.velo" / "manifest.json").exists()


def test_http(shop: tuple[Path, str]) -> None:
    no_server_stays = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
    out = run("bash", "-euc", no_server_stays + block("sh"), cwd=shop[0])
    assert len(re.findall(r"\d+", out.split("[[", 1)[1])) == 15


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(targets) > 10
    for target in targets:
        assert "://" in target or (ROOT / target).exists(), target


def test_the_readme_begins_with_commands_of_a_checkout_then_installation() -> None:
    _, checkout, _, install, _ = README.split("```", 4)
    assert re.findall(r"\$ (\S+ \w+)", checkout) == ["./dev demo", "./dev test"]
    commands = [line.split("#")[0].strip() for line in install.splitlines()[1:]]
    assert commands[:2] == ["$ sudo apt-get install liburing-dev", "$ pip install ."]
    assert re.search(r"^\$ pip install veloann +# once published$", install, flags=re.MULTILINE)
    assert len(block("python").splitlines()) == 10
    door = (ROOT / "dev").read_text()
    commands = re.findall(r"`\./dev (\w+)`", README)
    assert {"demo", "test", "docs"} == set(commands)
    for command in commands:
        assert re.search(rf"^{command}\)", door, flags=re.MULTILINE), command


def test_the_readme_is_short() -> None:
    """100 lines, a picture of what was measured and one of the window, a table of five rows."""
    assert len(README.splitlines()) <= 100
    pictures = re.findall(r"!\[[^\]]*\]\((.*?)\)", README)
    assert pictures == ["docs/results/report-sift100k-memory.png", "docs/pictures/dashboard.png"]
    tables = re.findall(r"(?:^\|.*\n)+", README, flags=re.MULTILINE)
    assert [len(table.splitlines()) - 2 for table in tables] == [7]


def test_the_numbers_of_the_readme_are_those_of_the_report() -> None:
    """Each row of the table has the numbers of a row of the report."""
    (name,) = set(re.findall(r"docs/results/(report-\w+)\.md", README))
    report = (ROOT / "docs" / "results" / f"{name}.md").read_text().splitlines()
    rows = [line for line in README.splitlines() if re.match(r"\| .*\d MB \|", line)]
    assert len(rows) == 7
    for row in rows:
        _, _, memory, rate, more_rate, alone, more_alone, *_ = (cell.strip() for cell in row.split("|"))
        wanted = [memory.removesuffix(" MB"), rate, alone, more_rate, more_alone]
        found = [[cell.strip() for cell in line.split("|")] for line in report]
        assert any([one[i] for i in (2, 7, 8, 11, 12)] == wanted for one in found if len(one) == 16), row
