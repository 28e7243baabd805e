"""The site builds without a warning, leads nowhere that is not there, and loads nothing from elsewhere."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import velo
from tests.docs.conftest import build_site
from tests.docs.public import PublicName, public_names
from tests.docs.runner import ROOT


class Page(HTMLParser):
    """What a page names, and what it leads to or loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.names |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") != "canonical":
            self.loads.append(values.get("href", ""))
        elif "src" in values:
            self.loads.append(values["src"])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path.relative_to(site): Page(path) for path in site.rglob("*.html")}


@pytest.mark.long(guarded_by="tests/docs/test_pages.py::test_links_between_pages_lead_somewhere")
def test_every_link_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    """MkDocs checks what pages write; this looks at what came of it, the theme's own links included."""
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links begin at the root of a server
            continue
        for link in page.links + page.loads:
            target = urlsplit(link)
            if target.scheme in ("http", "https", "mailto", "data"):
                continue
            file = (site / path.parent / unquote(target.path)).resolve() if target.path else site / path
            if file.is_dir():
                file /= "index.html"
            known = pages.get(file.relative_to(site)) if file.suffix == ".html" and file.exists() else None
            if not file.exists() or (
                known is not None and target.fragment and unquote(target.fragment) not in known.names
            ):
                broken.append(f"{path}: {link}")
    assert not broken


@pytest.mark.long(guarded_by="tests/docs/test_pages.py::test_links_between_pages_lead_somewhere")
def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 30
    away = [f"{path}: {load}" for path, page in pages.items() for load in page.loads if "//" in load]
    assert not away
    for sheet in site.rglob("*.css"):
        text = sheet.read_text()
        assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//", text), sheet


@pytest.mark.long(guarded_by="tests/docs/test_pages.py::test_includes_bring_what_they_name")
def test_pages_show_the_examples_that_they_include(site: Path) -> None:
    page = re.sub(r"<[^>]+>", "", (site / "howto" / "ray.html").read_text())
    for name in ("ray_job.py", "ray_data_batch.py"):
        section = (
            (ROOT / "examples" / name).read_text().split("# --8<-- [start:")[1].split("# --8<-- [end:")[0]
        )
        for line in section.splitlines()[1:]:
            assert html.unescape(line.strip()) in html.unescape(page), line
    assert not [path for path in site.rglob("*.html") if "8 &lt; " in path.read_text()]


@pytest.mark.long(guarded_by="tests/docs/test_pages.py::test_links_between_pages_lead_somewhere")
def test_each_page_has_a_twin_in_markdown_and_guides_are_named(site: Path, pages: dict[Path, Page]) -> None:
    for path in pages.keys() - {Path("404.html")}:
        twin = (site / path.with_suffix(".md")).read_text()
        assert twin.startswith("# ") or "\n# " in twin, path
        assert "Permanent link" not in twin, path
    named = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): (\S.*)$", (site / "llms.txt").read_text(), re.MULTILINE)
    assert len(named) > 25
    assert all((site / path).is_file() for path, _ in named)
    assert {"tutorial.md", "howto/ray.md", "reference/searching.md"} <= {path for path, _ in named}
    assert "`recall`" in (site / "reference" / "searching.md").read_text()


@pytest.mark.long(guarded_by="tests/docs/test_docstrings.py::test_the_reference_lists_every_public_name")
def test_every_public_name_is_shown_in_the_reference(pages: dict[Path, Page]) -> None:
    shown = set().union(*(page.names for path, page in pages.items() if path.parts[0] == "reference"))
    wanted = public_names()
    assert PublicName("velo.Index.search", velo.Index.search) in wanted
    assert not [one.path for one in wanted if not one.paths & shown]


def test_a_broken_link_ends_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Page\n\n[away](nowhere.md) and [here](#nothing)\n")
    config = tmp_path / "mkdocs.yml"
    validation = (ROOT / "mkdocs.yml").read_text().split("\nvalidation:\n")[1]
    config.write_text(f"site_name: x\nvalidation:\n{validation}")
    done = build_site(config, tmp_path / "site")
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr
    assert "#nothing" in done.stderr
