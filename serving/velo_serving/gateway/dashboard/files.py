"""The files of the page, by their paths."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "page"

#: Of each file its kind; the page itself is the first.
FILES: Final = {
    "index.html": "text/html",
    "window.css": "text/css",
    "icon.svg": "image/svg+xml",
    "api.js": "text/javascript",
    "dom.js": "text/javascript",
    "map.js": "text/javascript",
    "tables.js": "text/javascript",
    "window.js": "text/javascript",
}

#: What loads without a key: files that are the same everywhere, and tell nothing of any collection.
WINDOW_PATHS: Final = ("/ui", "/ui/", *(f"/ui/{name}" for name in FILES))
