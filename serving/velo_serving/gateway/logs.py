"""The log: one line for each event, in text or JSON, with the id of the request."""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from contextvars import ContextVar
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Of the request that is being answered, "" where there is none.
request_id: ContextVar[str] = ContextVar("velo_request_id", default="")

#: Facts about the present request, for the log line of a slow one.
_notes: ContextVar[dict[str, Any] | None] = ContextVar("velo_notes", default=None)

#: Ids of others are taken over where they are harmless in a header and a line.
_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")

log = logging.getLogger("velo_serving.requests")


def note(**facts: Any) -> None:
    notes = _notes.get()
    if notes is not None:
        notes.update(facts)


class StatusWatch:
    """A ``send`` that keeps the status of the answer, and adds a header to it."""

    def __init__(self, send: Send, request_id: str = "") -> None:
        self._send = send
        self._request_id = request_id
        self.status = 500

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._request_id:
                MutableHeaders(scope=message)["X-Request-Id"] = self._request_id
        await self._send(message)


class Logged:
    """Middleware: gives each request an id; logs those that change something, and those that take ``slow_s``.

    A handler marks the former with the fact ``audit``, the name of what it does.
    """

    def __init__(self, app: ASGIApp, slow_s: float | None) -> None:
        self._app = app
        self._slow_s = slow_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        trace = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
        given = headers.get("x-request-id", "")
        one = given if _ID.fullmatch(given) else trace[1] if trace is not None else secrets.token_hex(16)
        facts: dict[str, Any] = {}
        # Never taken back: a request has a context of its own, and a mistake of ours is answered further out.
        request_id.set(one)
        _notes.set(facts)
        started = time.perf_counter()
        watched = StatusWatch(send, one)
        try:
            await self._app(scope, receive, watched)
        finally:
            took_s = time.perf_counter() - started
            is_slow = self._slow_s is not None and took_s >= self._slow_s
            if is_slow or "audit" in facts:
                extra: dict[str, Any] = {
                    "method": scope["method"],
                    "path": scope["path"],
                    "client": (scope.get("client") or ("",))[0],
                    "status": watched.status,
                    "took_ms": round(took_s * 1000, 3),
                    **facts,
                }
                if trace is not None:
                    extra |= {"trace_id": trace[1], "parent_id": trace[2]}
                if is_slow:
                    log.warning("slow request", extra={"velo": extra})
                else:
                    log.info("audit", extra={"velo": extra})


class Lines(logging.Formatter):
    """A record as one line with its facts: text, or JSON."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id.get():
            line["request_id"] = request_id.get()
        line |= getattr(record, "velo", {})
        if record.exc_info is not None and record.exc_info[0] is not None:
            line["trace"] = self.formatException(record.exc_info)
        if self._as_json:
            return json.dumps(line, default=str)
        head = f"{line.pop('time')} {line.pop('level')} {line.pop('message')}"
        del line["logger"]
        trace = line.pop("trace", "")
        facts = "".join(f" {name}={json.dumps(value, default=str)}" for name, value in line.items())
        return head + facts + ("\n" + trace if trace else "")


def log_to_stderr(*, as_json: bool) -> None:
    """Write the log to stderr; text only where the program itself has no handler."""
    ours = logging.getLogger("velo_serving")
    ours.setLevel(logging.INFO)
    if not as_json and ours.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(as_json=as_json))
    for logger in (ours, logging.getLogger("uvicorn")) if as_json else (ours,):
        logger.handlers = [handler]
        logger.propagate = False
