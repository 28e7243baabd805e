"""A hook of MkDocs: the search puts guides before the reference, and what is for who works on velo last."""

from __future__ import annotations

from typing import Any

#: By what the source begins with; the first that fits. All else is a guide. The theme counts a word of a
#: title a thousand times, so a decision that is named after one is only behind with so much less.
RANKS = {
    "results/": 0.001,
    "decisions/": 0.001,
    "changelog": 0.001,
    "ARCHITECTURE": 0.01,
    "FORMAT": 0.01,
    "HACKING": 0.01,
    "rabitq": 0.01,
    "reference/": 1.0,
}
GUIDE = 4.0


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    source = page.file.src_uri
    rank = next((rank for start, rank in RANKS.items() if source.startswith(start)), GUIDE)
    page.meta.setdefault("search", {}).setdefault("boost", rank)
    return markdown
