"""Access control: API keys from a file, TLS, browsers' origins."""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import re
import ssl
from collections.abc import Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from velo.errors import InvalidArgumentError
from velo_serving.gateway.dashboard.pages import DASHBOARD_PATHS
from velo_serving.gateway.errors import RequestError, error_response
from velo_serving.gateway.watched import WatchedFile, read_lines
from velo_serving.protocol.errors import AdminKeyError, ApiKeyError, ApiKeyFileError

Role: TypeAlias = Literal["read", "admin"]

#: What answers without a key: whether the server is well, and what may be asked of it.
HEALTH_PATHS: Final = frozenset(("/livez", "/healthz", "/readyz"))
OPEN_PATHS: Final = HEALTH_PATHS | {"/", "/docs", "/openapi.json", *DASHBOARD_PATHS}

#: The path of the script and the style of the page at ``/docs``.
DOCS_FILES: Final = "/docs-files"

KEY_LENGTH_MIN: Final = 16

_ROLES: Final[tuple[Role, ...]] = ("read", "admin")
_KEY: Final = re.compile(r"[!-~]+")
_ORIGIN: Final = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+")

#: Of the key that the request under way was made with; admin where no keys are asked for.
_role: ContextVar[Role] = ContextVar("velo_role", default="admin")


@dataclass(frozen=True, slots=True)
class Access:
    """Access control of a gateway.

    Attributes
    ----------
    api_keys, cors_origins, trusted_hosts, publish_from, aliases
        As in ``ServeOptions``.
    ssl_certfile, ssl_keyfile, ssl_keyfile_password, ssl_ca_certs
        As in ``ServeOptions``.
    """

    api_keys: str | None = None
    cors_origins: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    publish_from: tuple[str, ...] = ()
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_keyfile_password: str | None = None
    ssl_ca_certs: str | None = None
    aliases: str | None = None

    def check(self) -> None:
        """Refuse what cannot be, before anything is opened.

        Raises
        ------
        ApiKeyFileError, InvalidArgumentError
        """
        if self.api_keys is not None:
            ApiKeys(self.api_keys)
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise InvalidArgumentError(
                    f"an origin reads 'https://example.com' or '*', not {origin!r}", argument="cors_origins"
                )
        if self.ssl_certfile is None:
            if self.ssl_keyfile is not None or self.ssl_ca_certs is not None:
                raise InvalidArgumentError("TLS needs a certificate: ssl_certfile", argument="ssl_certfile")
            return
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.load_certificate(context)
            if self.ssl_ca_certs is not None:
                context.load_verify_locations(self.ssl_ca_certs)
        except (OSError, ValueError) as error:
            named = (self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs)
            files = ", ".join(one for one in named if one is not None)
            raise InvalidArgumentError(
                f"certificate or key cannot be used: {error} ({files})", argument="ssl_certfile"
            ) from None

    def load_certificate(self, context: ssl.SSLContext) -> None:
        """Give a context the certificate as its file is now; connections that come see it.

        Parameters
        ----------
        context : ssl.SSLContext
        """
        assert self.ssl_certfile is not None
        context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, lambda: self.ssl_keyfile_password or "")

    @property
    def uvicorn_options(self) -> dict[str, Any]:
        """Keywords of uvicorn's configuration."""
        if self.ssl_certfile is None:
            return {}
        options: dict[str, Any] = {
            "ssl_certfile": self.ssl_certfile,
            "ssl_keyfile": self.ssl_keyfile,
            "ssl_keyfile_password": self.ssl_keyfile_password,
        }
        if self.ssl_ca_certs is not None:
            options |= {"ssl_ca_certs": self.ssl_ca_certs, "ssl_cert_reqs": ssl.CERT_REQUIRED}
        return options


class ApiKeys:
    """The keys of a file, with a line ``read KEY`` or ``admin KEY`` for each, read again when it changes."""

    def __init__(self, path: str | Path) -> None:
        self._roles: dict[bytes, Role] = {}
        self._file = WatchedFile(Path(path), "keys", self._take)
        self.reload = self._file.reload
        self._take(Path(path))

    def _take(self, path: Path) -> int:
        self._roles = _read_keys(path)
        return len(self._roles)

    def role_of(self, key: str) -> Role | None:
        """The role of a key. All digests are compared, so that the time taken reveals nothing."""
        self._file.refresh()
        given = _digest(key)
        roles = [role for known, role in self._roles.items() if hmac.compare_digest(known, given)]
        return roles[-1] if roles else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _read_keys(path: Path) -> dict[bytes, Role]:
    def wrong(place: str, why: str) -> ApiKeyFileError:
        return ApiKeyFileError(f"{place}: {why}", file=str(path), argument="api_keys")

    roles: dict[bytes, Role] = {}
    for place, words in read_lines(path, wrong):
        role = next((one for one in _ROLES if one == words[0]), None)
        if role is None or len(words) != 2 or not _KEY.fullmatch(words[1]):
            raise wrong(place, "a line reads 'read KEY' or 'admin KEY'")
        if len(words[1]) < KEY_LENGTH_MIN:
            raise wrong(place, f"a key has {KEY_LENGTH_MIN} characters at least")
        if roles.setdefault(_digest(words[1]), role) != role:
            raise wrong(place, "this key has another role above")
    if not roles:
        raise wrong(str(path), "names no key")
    return roles


class Guarded:
    """Middleware: asks for a key, and remembers what may be done with it."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = _path_in_app(scope) if scope["type"] == "http" else "/"
        if path in OPEN_PATHS or path.startswith(f"{DOCS_FILES}/"):
            await self._app(scope, receive, send)
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        role = self._keys.role_of(key.strip()) if scheme.lower() == "bearer" else None
        if role is None:
            why = "this key is not known here" if key else "this server asks for a key"
            answer = error_response(ApiKeyError(f"{why}: send 'Authorization: Bearer KEY'"))
            await answer(scope, receive, send)
            return
        _role.set(role)
        await self._app(scope, receive, send)


class HostChecked:
    """Middleware: refuses requests to other hosts, except health checks, which know an address only."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = re.compile("|".join(map(fnmatch.translate, hosts)), re.IGNORECASE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = self._app
        if scope["type"] == "http" and _path_in_app(scope) not in HEALTH_PATHS:
            host = re.sub(r":\d+$", "", Headers(scope=scope).get("host", ""))
            if not self._hosts.fullmatch(host):
                app = error_response(RequestError(f"host {host!r} is not served here", status=400))
        await app(scope, receive, send)


def _path_in_app(scope: Scope) -> str:
    """The path relative to the mount point of the app."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def check_may_write() -> None:
    if _role.get() != "admin":
        raise AdminKeyError("this key is for reading: to write takes an admin key")


def describe_security(
    document: MutableMapping[str, Any], writes: Iterable[tuple[str, str]], errors: Mapping[str, Any]
) -> None:
    document["components"]["securitySchemes"] = {
        "apiKey": {"type": "http", "scheme": "bearer", "description": "A key of the server's file."}
    }
    need_admin = set(writes)
    for path, methods in document["paths"].items():
        if path in OPEN_PATHS:
            continue
        for method, operation in methods.items():
            operation["security"] = [{"apiKey": []}]
            responses = operation["responses"]
            responses["401"] = {"description": "No key, or one that is not known.", "content": dict(errors)}
            if (method, path) in need_admin:
                responses["403"] = {"description": "A key that is for reading.", "content": dict(errors)}
