"""The files of the dashboard over HTTP: read once, and restricted to this server."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import FastAPI
from fastapi.responses import RedirectResponse, Response

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
DASHBOARD_PATHS: Final = ("/ui", "/ui/", *(f"/ui/{name}" for name in FILES))


#: Scripts, styles and requests of this server alone; no script can make markup of a text.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def add_dashboard(app: FastAPI) -> None:
    texts = {name: (FOLDER / name).read_bytes() for name in FILES}

    def answer(name: str) -> Response:
        return Response(texts[name], media_type=FILES[name], headers=_HEADERS)

    @app.get("/ui", include_in_schema=False)
    async def dashboard() -> Response:
        return answer("index.html")

    @app.get("/ui/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        if name not in texts:
            return Response(status_code=404)
        return answer(name)

    @app.get("/ui/", include_in_schema=False)
    async def folder() -> RedirectResponse:
        return RedirectResponse("../ui")
