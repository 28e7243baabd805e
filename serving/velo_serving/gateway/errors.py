"""From exceptions to HTTP: one table of statuses, one shape of body."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from velo import errors as velo_errors
from velo.errors import VeloError
from velo_serving.gateway.logs import note, request_id
from velo_serving.protocol import errors as serving_errors
from velo_serving.protocol.types import ERROR_FIELDS

log = logging.getLogger("velo_serving")


class RequestError(serving_errors.ServingError):
    """A request that is refused before any shard sees it.

    ``path`` is that of the field, ``place`` a position (``line``, ``column`` and ``byte``, or ``query``), and
    ``kind`` the class that a client raises.
    """

    def __init__(
        self,
        message: str = "",
        *,
        status: int = 422,
        path: str = "",
        argument: str | None = None,
        place: Mapping[str, Any] | None = None,
        kind: str = "RequestError",
    ) -> None:
        super().__init__(message, argument=argument or re.split(r"[.\[]", path)[0] or None)
        self.status = status
        self.place = ({"path": path} if path else {}) | dict(place or {})
        self.kind = kind


class BodyTimeoutError(serving_errors.ServingError):
    """The client took too long to send its body."""


#: The first match decides, so subclasses precede their bases.
STATUSES: tuple[tuple[type[BaseException], int], ...] = (
    (serving_errors.AdminKeyError, 403),
    (serving_errors.ApiKeyError, 401),
    (serving_errors.UnknownCollectionError, 404),
    (velo_errors.UnknownIdError, 404),
    (velo_errors.DuplicateIdError, 409),
    (velo_errors.IndexExistsError, 409),
    (velo_errors.ReadOnlyError, 409),
    (serving_errors.NotAcceptableError, 406),
    (BodyTimeoutError, 408),
    (serving_errors.BodyTooLargeError, 413),
    (velo_errors.BudgetTooSmallError, 413),
    (serving_errors.UnsupportedMediaTypeError, 415),
    (serving_errors.MalformedBodyError, 400),
    (velo_errors.FilterError, 400),
    (velo_errors.BusyError, 429),
    (velo_errors.SearchTimeoutError, 504),
    (serving_errors.NoShardAnsweredError, 503),
    (serving_errors.ShardUnavailableError, 503),
    (serving_errors.PartialWriteError, 503),
    (velo_errors.ClosedError, 503),
    (velo_errors.NoSpaceError, 507),
    (velo_errors.DeviceError, 503),
    (serving_errors.PublicationError, 422),
    (velo_errors.InvalidArgumentError, 422),
    (velo_errors.DimensionMismatchError, 422),
    (velo_errors.DtypeError, 422),
    (velo_errors.EmptyError, 422),
    (velo_errors.NotFiniteError, 422),
    (velo_errors.UnsupportedError, 422),
    (VeloError, 500),
)


def status_of(error: BaseException) -> int:
    """The HTTP status of an exception; 500 for unknown ones."""
    if isinstance(error, RequestError):
        return error.status
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def filter_place(message: str, path: str) -> dict[str, Any] | None:
    """The position of a fault in a filter: a path below ``path``, or line and column of SQL text."""
    match = re.search(r"filter at \$(\S*): ", message)
    if match is not None:
        return {"path": f"{path}{match[1]}"}
    match = re.search(r"filter at line (\d+), character (\d+)\S*: ", message)
    return None if match is None else {"path": path, "line": int(match[1]), "column": int(match[2])}


def error_response(error: BaseException) -> Response:
    status = status_of(error)
    headers: dict[str, str] = {}
    if status in (429, 503):
        retry_after_s = getattr(error, "retry_after_s", 1.0)
        headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body: dict[str, Any] = {
        "type": type(error).__name__,
        "message": "the server made a mistake; its log says more",
    }
    if isinstance(error, VeloError):
        body["message"] = error.message
        for name in ERROR_FIELDS:
            value = getattr(error, name)
            if value is not None:
                body[name] = value
    if isinstance(error, serving_errors.PartialWriteError):
        body |= {"shards": list(error.shards), "rows": error.rows}
    if isinstance(error, velo_errors.FilterError):
        place = filter_place(error.message, "$")
        if place is not None and "line" in place:
            place["path"] = "filter"
        if place is not None or error.row is not None:
            body["position"] = (place or {"path": "$"}) | ({} if error.row is None else {"query": error.row})
    note(error=f"{body['type']}: {body['message']}")
    if isinstance(error, RequestError):
        body["type"] = error.kind
        if error.place:
            body["position"] = error.place
    return _response(body, status, headers)


def _response(body: dict[str, Any], status: int, headers: Mapping[str, str] | None = None) -> Response:
    one = request_id.get()
    if one:
        body["request_id"] = one
        headers = {**(headers or {}), "X-Request-Id": one}
    return JSONResponse({"error": body}, status_code=status, headers=headers)


def install(app: FastAPI) -> None:
    async def ours(request: Request, error: Exception) -> Response:
        if status_of(error) == 500:
            log.error("%s %s failed: %s", request.method, request.url.path, error, exc_info=error)
        return error_response(error)

    async def routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind = {404: "NotFound", 405: "MethodNotAllowed"}.get(error.status_code, "HttpError")
        message = f"{request.method} {request.url.path}: {error.detail}"
        return _response({"type": kind, "message": message}, error.status_code, error.headers)

    async def disconnected(request: Request, error: Exception) -> Response:
        return Response(status_code=400)

    app.add_exception_handler(ClientDisconnect, disconnected)
    app.add_exception_handler(VeloError, ours)
    app.add_exception_handler(HTTPException, routing)
    app.add_exception_handler(Exception, ours)
