"""Text forms of values, sizes and tables."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["html_table", "kept_text", "size_text", "value_text"]


def value_text(value: Any) -> str:
    """Return a cell's text: floats with six digits, at most 40 characters."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def html_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table as HTML for notebooks."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(value))}</td>" for value in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def kept_text(info: Mapping[str, Any]) -> str:
    """Describe the links, or page codes, that an open index has in memory, from its ``info()``."""
    codes = info["page_codes_kept"]
    if codes:
        return f"{codes} codes per page" if codes > 1 else "1 code per page"
    return f"{info['links_kept']} links per vertex"


def size_text(count: float) -> str:
    """Format bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
