"""Where a shard's process listens."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Endpoint", "abstract_path", "this_host"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a shard's process listens, and the secret that it asks for.

    Attributes
    ----------
    token : str
    host_id : str
        Of the running kernel: on the same one the Unix socket may be tried.
    path : str or None
        Of the Unix socket; one that begins with a zero byte is abstract: it has no file, and ends with its
        process.
    host : str or None
    port : int
        For everybody else.
    """

    token: str
    host_id: str = ""
    path: str | None = None
    host: str | None = None
    port: int = 0

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
