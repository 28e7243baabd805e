"""A hook of MkDocs: beside each page a twin in Markdown, and ``llms.txt``, which names them (llmstxt.org)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from markdownify import markdownify

#: Links from headings to themselves.
ANCHOR = re.compile(r'<a[^>]*class="headerlink".*?</a>', re.DOTALL)
#: Of a section of the navigation that is left out: decisions and results are for who works on velo.
INSIDE = "Inside"

#: By source: where the twin lies, and what it says.
_twins: dict[str, tuple[str, str]] = {}


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Keep what readers see, includes and the reference of the API with it."""
    text = markdownify(ANCHOR.sub("", html), heading_style="ATX", code_language="")
    path = str(Path(page.file.dest_uri).with_suffix(".md"))
    _twins[page.file.src_uri] = path, re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
    return html


def on_post_build(config: Any, **_: Any) -> None:
    site = Path(config["site_dir"])
    for path, text in _twins.values():
        (site / path).write_text(text)
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    lines += ["Paths are beside this file. Each page has a twin in HTML.", ""]
    for entry in config["nav"]:
        ((title, below),) = entry.items()
        if title == INSIDE:
            continue
        if isinstance(below, str):
            lines.append(_line_of(title, below))
            continue
        lines += ["", f"## {title}", ""]
        for one in below:
            lines.append(_line_of(title, one) if isinstance(one, str) else _line_of(*next(iter(one.items()))))
    (site / "llms.txt").write_text("\n".join(lines) + "\n")


def _line_of(title: str, source: str) -> str:
    path, text = _twins[source]
    return f"- [{title}]({path}): {_first_sentence(text)}"


def _first_sentence(text: str) -> str:
    """Of the first paragraph that is neither heading nor table, list, code or picture."""
    for paragraph in text.split("\n\n"):
        if re.match(r"(?!```)[A-Za-z`*\[]", paragraph):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            return re.split(r"(?<=[.:])\s", plain, maxsplit=1)[0].rstrip(":.")
    return ""
