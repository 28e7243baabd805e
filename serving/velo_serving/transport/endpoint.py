"""The endpoint of the process of a shard, and TLS between gateways and shards."""

from __future__ import annotations

import re
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path

from velo.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The addresses of the process of a shard, and its secret.

    ``host_id`` identifies the kernel: on the same one the Unix socket ``path`` is tried, which is abstract if
    it begins with a zero byte. ``tls`` is a folder of certificates for TCP; None means no encryption.
    """

    token: str
    host_id: str = ""
    path: str | None = None
    host: str | None = None
    port: int = 0
    tls: str | None = None

    def __str__(self) -> str:
        path = (self.path or "").replace("\0", "@")
        return " or ".join(one for one in (path, f"{self.host}:{self.port}" if self.host else "") if one)

    def __repr__(self) -> str:
        return f"Endpoint({self})"  # without the token, for logs


def this_host() -> str:
    """Name the running kernel, the same in all containers on it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def abstract_path(shard: str) -> str:
    """The name of an abstract Unix socket, which leaves no file."""
    return f"\0velo-{secrets.token_hex(8)}-{shard}"


def ports_of(text: str | None) -> range:
    """Parse a range of ports, ``"7100-7199"``, both ends included; None means any free port."""
    if text is None:
        return range(1)
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= first <= last <= 65535:
        raise InvalidArgumentError(f"a range of ports reads '7100-7199', not {text!r}", argument="ports")
    return range(first, last + 1)


#: The files of a TLS folder, in PEM; the authority is that of all machines.
CERTIFICATE, KEY, AUTHORITY = "cert.pem", "key.pem", "ca.pem"


def listens(folder: str) -> ssl.SSLContext:
    """The context of shards: clients need a certificate of the authority."""
    context = _with_files(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), folder)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def asks(folder: str) -> ssl.SSLContext:
    """The context of gateways. Shards are identified by their authority, not by host names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return _with_files(context, folder)


def _with_files(context: ssl.SSLContext, folder: str) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(Path(folder) / CERTIFICATE, Path(folder) / KEY)
        context.load_verify_locations(Path(folder) / AUTHORITY)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            f"{folder}: {CERTIFICATE}, {KEY} or {AUTHORITY} cannot be used: {error}", argument="tls"
        ) from None
    return context
