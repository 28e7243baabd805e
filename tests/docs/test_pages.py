"""What the pages show runs as they show it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify

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


def included(page: Path) -> list[str]:
    """What the includes of a page bring; an AssertionError names one that brings nothing."""
    brought = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if not re.search(r"-+8\s*<", line):
            continue
        here = f"{page.name}:{number}"
        found = re.fullmatch(r'--8<-- "([^":]+)(?::(\w+))?"', line)
        assert found is not None, f"{here} shows itself, for it is no include: {line}"
        text = (ROOT / found[1]).read_text()
        if found[2] is not None:
            start, end = (f"# --8<-- [{word}:{found[2]}]" for word in ("start", "end"))
            assert start in text, f"{here} names a section that {found[1]} lacks"
            text = text.split(start)[1].split(end)[0]
        assert text.strip(), f"{here} brings nothing"
        brought.append(text)
    return brought


def test_includes_bring_what_they_name(tmp_path: Path) -> None:
    assert len(included(DOCS / "howto" / "ray.md")) == 2
    for page in DOCS.rglob("*.md"):
        included(page)
    for wrong in (
        '--8 < --"examples/ray_job.py:cluster"',
        '--8<-- "examples/ray_job.py:nothing"',
        '  --8<-- "examples/ray_job.py:cluster"',
    ):
        (tmp_path / "page.md").write_text(f"```py\n{wrong}\n```\n")
        with pytest.raises(AssertionError, match=r"page.md:2"):
            included(tmp_path / "page.md")


def anchors(page: Path) -> set[str]:
    """Anchors of a page: of its headings, and those that it names."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    named = re.findall(r"\{ *#([\w-]+) *\}|id=\"([\w-]+)\"", text)
    return {slugify(re.sub(r"[`*]", "", one), "-") for one in headings} | {
        one for pair in named for one in pair
    }


def test_links_between_pages_lead_somewhere() -> None:
    broken, links = [], 0
    # The page docs/changelog.md includes the file at the root: its links begin in docs/, too.
    pages = [(page, page.parent) for page in DOCS.rglob("*.md")] + [(DOCS.parent / "CHANGELOG.md", DOCS)]
    for page, base in pages:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([\w.-]+))?\)", text):
            if "://" in target or target.startswith("mailto:"):
                continue
            links += 1
            file = (base / target).resolve() if target else page
            if file.suffix == ".md" and "reference" not in file.parts and anchor:
                found = file.exists() and anchor in anchors(file)
            else:
                found = file.exists()
            if not found:
                broken.append(f"{page.relative_to(DOCS.parent)}: {target}#{anchor}")
    assert links > 100
    assert broken == []


def test_a_page_that_shows_something_else_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.runner.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    with pytest.raises(AssertionError, match=r"page.md:2 shows"):
        run_blocks(blocks_of(page), {})
    assert matches("a … c", "a b c")
    assert not matches("a … c", "a b")
