"""What a type checker knows of the answers, by the arguments that a search is given."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SNIPPET = """
import velo

async def ask(index: velo.Index, by: str | None) -> None:
    reveal_type(index.search([0.0], 5, filter="a = 1"))
    reveal_type(index.search([0.0], group_by=None, timeout_s=1.0))
    reveal_type(index.search([0.0], 5, group_by="brand", group_size=2))
    reveal_type(index.search([0.0], 5, group_by=by))
    reveal_type(index.range_search([0.0], radius=0.5))
    reveal_type(await index.search_async([0.0], recall=0.9))
    reveal_type(await index.search_async([0.0], group_by="brand"))
    reveal_type(await index.range_search_async([0.0], 0.5))

reveal_type(velo.open("a.velo"))
reveal_type(velo.build("a.velo", []))
velo.open("a.velo").search([0.0], serch=1)
"""


def test_answers_and_indexes_are_typed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml")]
    done = subprocess.run(
        [*command, "--python-version", "3.11", str(tmp_path / "snippet.py")],
        capture_output=True,
        text=True,
        cwd=root,
        check=False,
        timeout=300,
    )
    names = re.findall(r'Revealed type is "(?:\w+\.)*(\w+)"', done.stdout)
    plain, grouped, ranges = "SearchResult", "GroupedResult", "RangeResult"
    assert names == [plain, plain, grouped, plain, ranges, plain, grouped, ranges, "Index", "Index"], (
        done.stdout
    )
    assert "serch" in done.stdout
