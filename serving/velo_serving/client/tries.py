"""The client's tries: when an answer counts, when to ask again, and which error it is."""

from __future__ import annotations

import email.utils
import random
import ssl
import time
from collections.abc import Mapping
from typing import Any, Final

from velo import errors as velo_errors
from velo.errors import MissingDependencyError, VeloError
from velo_serving.protocol import errors as serving_errors
from velo_serving.protocol.errors import (
    CertificateError,
    ConnectionsBusyError,
    DeadlineExceededError,
    PartialWriteError,
    QueueFullError,
    RemoteError,
    ServingError,
)

try:
    import httpx as httpx
except ImportError as error:
    raise MissingDependencyError("httpx is not installed; pip install 'veloann[serving]'") from error

RETRY_STATUSES: Final = (429, 503)


class ConnectionFailedError(ServingError, ConnectionError):
    """The gateway cannot be reached, or the connection broke."""


class Tries:
    """Decides after each try: take it, pause and try again, or raise. Both kinds of sending share it."""

    def __init__(
        self, retries: int, timeout_s: float, jitter: random.Random, url: str, request: Mapping[str, Any]
    ) -> None:
        self._request = request
        self._left = retries
        self._made = 0
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._jitter = jitter
        self._url = url

    def arguments(self) -> dict[str, Any]:
        return {**self._request, "timeout": self.left_s()}

    def after(self, outcome: httpx.Response | httpx.HTTPError) -> float | None:
        """Return the pause before the next try, None if this is the answer, or raise."""
        if isinstance(outcome, httpx.HTTPError):
            return self._after_error(outcome)
        return self._after_response(outcome)

    def left_s(self) -> float:
        return max(0.001, self._deadline - time.monotonic())

    def _after_error(self, error: httpx.HTTPError) -> float:
        if isinstance(error, httpx.PoolTimeout):
            raise ConnectionsBusyError(
                f"all connections to {self._url} were in use for {self._timeout_s:g} s: "
                "give the client a larger connections_max, or fewer calls at once"
            ) from error
        if isinstance(error, httpx.TimeoutException):
            raise DeadlineExceededError(f"{self._url} did not answer within {self._timeout_s:g} s") from error
        distrust = _distrust_in(error)
        if distrust is not None:
            raise CertificateError(f"{self._url}: {distrust.verify_message}") from error
        pause_s = self._pause(None)
        if pause_s is None:
            raise ConnectionFailedError(
                f"{self._url} cannot be reached: {str(error) or type(error).__name__}"
            ) from error
        return pause_s

    def _after_response(self, response: httpx.Response) -> float | None:
        if response.is_success:
            return None
        if response.status_code in RETRY_STATUSES:
            pause_s = self._pause(_retry_after_s(response))
            if pause_s is not None:
                return pause_s
        raise _error_of(response)

    def _pause(self, asked_s: float | None) -> float | None:
        if self._left == 0:
            return None
        self._left -= 1
        self._made += 1
        # A little longer than asked, each client differently, so that they do not all come back together.
        base_s = min(0.05 * 2**self._made, 2.0) if asked_s is None else asked_s
        pause_s = base_s * (1.0 + 0.25 * self._jitter.random())
        return pause_s if pause_s < self.left_s() else None


def _distrust_in(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """The certificate error among the causes of a connection error, if any."""
    below: BaseException | None = error
    while below is not None and not isinstance(below, ssl.SSLCertVerificationError):
        below = below.__cause__ or below.__context__
    return below


def _retry_after_s(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after")
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _error_of(response: httpx.Response) -> VeloError:
    try:
        told = response.json()["error"]
        kind, message = str(told["type"]), str(told["message"])
    except (ValueError, KeyError, TypeError):
        return RemoteError(f"the server answered {response.status_code}", status=response.status_code)
    known = getattr(serving_errors, kind, None) or getattr(velo_errors, kind, None)
    if known is QueueFullError:
        return QueueFullError(message, retry_after_s=_retry_after_s(response) or 1.0)
    if not (isinstance(known, type) and issubclass(known, VeloError)) or known is RemoteError:
        error: VeloError = RemoteError(f"{kind}: {message}", status=response.status_code)
    else:
        error = known(message)
    for name in ("argument", "file", "page", "row", "needed_bytes"):
        if told.get(name) is not None:
            setattr(error, name, told[name])
    if isinstance(error, PartialWriteError):
        error.shards, error.rows = tuple(told.get("shards", ())), int(told.get("rows", 0))
    return error
