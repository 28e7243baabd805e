"""The endpoint of a shard's process."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from velo.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The addresses of a shard's process, and the secret that it asks for.

    Attributes
    ----------
    host_id : str
        Of the running kernel: on the same one the Unix socket may be tried.
    path : str or None
        Of the Unix socket; one that begins with a zero byte is abstract: it has no file, and ends with its
        process.
    port : int
        For everybody else.
    tls : str or None
        Folder with the certificates for TCP, the same on all machines; without it nothing is encrypted.
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
        return f"Endpoint({self})"  # without the token: this may stand in a log


def this_host() -> str:
    """Name the running kernel, the same in all containers on it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def abstract_path(shard: str) -> str:
    """Make a name for a Unix socket that leaves no file behind, however its process ends."""
    return f"\0velo-{secrets.token_hex(8)}-{shard}"


def ports_of(text: str | None) -> range:
    """Read a range of ports, ``"7100-7199"``, both ends included; without one, any free port."""
    if text is None:
        return range(1)
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= first <= last <= 65535:
        raise InvalidArgumentError(f"a range of ports reads '7100-7199', not {text!r}", argument="ports")
    return range(first, last + 1)
