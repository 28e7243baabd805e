"""TLS between gateways and shards: both ends show a certificate that one authority vouches for."""

from __future__ import annotations

import ssl
from pathlib import Path

from velo.errors import InvalidArgumentError

#: What lies in the folder, in PEM: this machine's certificate and its key, and who vouches for all machines.
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
