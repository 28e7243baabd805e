"""docs/ARCHITECTURE.md names every module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


@pytest.mark.parametrize("package", ["velo", "serving/velo_serving", "bench"])
def test_the_table_lists_every_module(root: Path, package: str) -> None:
    text = (root / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    name = Path(package).name
    table = re.search(rf"^\| (?:module|room) \(`{name}/…`\).*?\n\n", text, re.MULTILINE | re.DOTALL)
    assert table
    modules = {
        path.stem
        for path in (root / package).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert set(re.findall(r"^\| `(\w+)` ", table[0], re.MULTILINE)) == modules - {"__init__"} | {name}
