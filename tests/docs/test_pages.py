"""What the pages show runs as they show it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.runner import ROOT, blocks_of, matches, run_blocks

DOCS = ROOT / "docs"

#: A page about a checkout, and one that the examples of docstrings begin with.
NOT_RUN = {"HACKING.md", "reference/index.md"}


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of the tutorial, before its last steps; not to be changed."""
    folder = tmp_path_factory.mktemp("shop")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        blocks = blocks_of(DOCS / "tutorial.md")
        build = next(number for number, block in enumerate(blocks) if "velo.build(" in block.text)
        names: dict[str, object] = {}
        run_blocks(blocks[: build + 1], names)
        names["index"].close()  # type: ignore[attr-defined]
    return folder


def pages() -> list[str]:
    found = [str(page.relative_to(DOCS)) for page in sorted(DOCS.rglob("*.md"))]
    return [name for name in found if name not in NOT_RUN and blocks_of(DOCS / name)]


@pytest.mark.parametrize("name", pages())
def test_page(name: str, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page starts in a folder that holds the index of the tutorial; the tutorial builds it itself."""
    if name != "tutorial.md":
        shutil.copytree(shop / "shop.velo", tmp_path / "shop.velo")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    run_blocks(blocks_of(DOCS / name), names)


def test_a_page_that_shows_something_else_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.runner.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    with pytest.raises(AssertionError, match=r"page.md:2 shows"):
        run_blocks(blocks_of(page), {})
    assert matches("a … c", "a b c")
    assert not matches("a … c", "a b")
