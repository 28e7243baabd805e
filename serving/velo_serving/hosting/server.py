"""One gateway: a backend served over HTTP at a bound socket, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import math
import os
import resource
import signal
import socket
import stat
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from velo.errors import InvalidArgumentError, MissingDependencyError, VeloError
from velo_serving.protocol.limits import GatewayLimits

try:
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    from velo_serving.gateway import create_app
    from velo_serving.gateway.access import Access
    from velo_serving.gateway.admission import ARRIVED
    from velo_serving.gateway.dashboard.embedding import load_embedding
    from velo_serving.gateway.logs import log_to_stderr as log_to_stderr
    from velo_serving.gateway.tracing import provider_of_environment
except ImportError as error:
    raise MissingDependencyError("the server needs: pip install 'veloann[serving]'") from error

from velo_serving.protocol.errors import PortInUseError
from velo_serving.protocol.loops import short_pauses
from velo_serving.protocol.options import ServeOptions
from velo_serving.routing.backend import Backend

#: Connections above what the gateway's own limits count. Beyond these uvicorn refuses what is asked, with a
#: 503 that has neither type nor id; so our own limits, which say more, must be reached first.
CONNECTIONS_SPARE = 256

#: How long running requests may take after the drain, at least; longer ones get a 503.
GRACE_S = 10

BACKLOG = 256

#: Descriptors that a process needs beside its connections: files of indexes, shards, logs.
DESCRIPTORS_SPARE = 1024

log = logging.getLogger("velo_serving")


def access_of(options: ServeOptions) -> Access:
    """Check access control and that the embedding function can be imported."""
    if options.embed is not None:
        load_embedding(options.embed)
    given = options.of_gateway
    access = Access(**{one.name: given[one.name] for one in dataclasses.fields(Access)})
    access.check()
    return access


def bind(host: str, port: int, uds: str | Path | None = None) -> socket.socket:
    if not 0 <= port <= 65535:
        raise InvalidArgumentError(f"a port is between 0 and 65535, not {port}", argument="port")
    where: Any = str(uds)
    family, what = socket.AF_UNIX, f"{uds} is in use"
    if uds is not None:
        _remove_abandoned(str(uds))
    else:
        what = f"port {port} of {host} is in use; choose another with --port"
        try:
            family, _, _, _, where = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
        except OSError as error:
            raise InvalidArgumentError(f"{host!r} is no local address: {error}", argument="host") from None
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        # Listening now, not when the index is open, makes a second server fail before it opens anything.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(what) from None
        raise PortInUseError(f"cannot serve at {uds or f'{host} port {port}'}: {error.strerror}") from None
    return listener


def _remove_abandoned(path: str) -> None:
    """Remove the Unix socket of a server that was killed."""
    with socket.socket(socket.AF_UNIX) as other, contextlib.suppress(FileNotFoundError):
        try:
            other.connect(path)
        except ConnectionRefusedError:
            if stat.S_ISSOCK(os.stat(path).st_mode):
                os.unlink(path)


def run(
    backend: Backend,
    listener: socket.socket,
    options: ServeOptions | None = None,
    *,
    signals: Sequence[int] = (signal.SIGINT, signal.SIGTERM),
) -> None:
    """Serve a backend at a bound socket until a signal arrives; SIGTERM drains it first."""
    how = options or ServeOptions()
    who = access_of(how)
    provider = provider_of_environment()
    app = create_app(
        backend,
        limits=how.gateway_limits,
        ready_shards=how.ready_shards,
        slow_s=how.slow_s,
        access=who,
        tracer_provider=provider,
        embed=how.embed,
    )
    log_to_stderr(as_json=how.log_json)
    reload: Callable[[], None] = app.state.reload
    bounds = how.gateway_limits or GatewayLimits()
    connections_max = bounds.connections_waiting_max + bounds.requests_max + CONNECTIONS_SPARE
    _raise_descriptor_limit(connections_max + DESCRIPTORS_SPARE)
    config = uvicorn.Config(
        app,
        log_level="warning",
        log_config=None if how.log_json else uvicorn.config.LOGGING_CONFIG,
        access_log=False,
        limit_concurrency=connections_max,
        backlog=BACKLOG,
        timeout_graceful_shutdown=math.ceil(max(how.drain_s, GRACE_S)),
        lifespan="on",
        root_path=how.root_path.rstrip("/"),
        timeout_keep_alive=math.ceil(how.keep_alive_s),
        http=bounded_protocol(bounds),
        **who.uvicorn_options,
    )
    server = _Server(config, backend, how.drain_s, signals, _reloader(config, who, reload))
    server.on_started = partial(how.on_ready or say_url, url_of(listener, how))
    with short_pauses():
        server.run(sockets=[listener])
    if provider is not None:
        provider.shutdown()  # sends what is left


def _raise_descriptor_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reach = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < reach:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reach, hard))


def _reloader(config: uvicorn.Config, access: Access, reload: Callable[[], None]) -> Callable[[], None]:
    """The action of SIGHUP: read keys, aliases and the certificate again."""

    def all_of_it() -> None:
        reload()
        if config.ssl is None:
            return
        try:
            access.check()  # with the files as they are now: a broken one changes nothing
            access.load_certificate(config.ssl)
            log.info("%s is read", access.ssl_certfile)
        except (VeloError, OSError) as error:
            log.error("the certificate stays as it was: %s", error)

    return all_of_it


def url_of(listener: socket.socket, options: ServeOptions) -> str:
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    scheme = "http" if options.ssl_certfile is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class _Server(uvicorn.Server):
    """Ends on a signal without raising it again, so that what comes after serving is done too."""

    def __init__(
        self,
        config: uvicorn.Config,
        backend: Backend,
        drain_s: float,
        signals: Sequence[int],
        reload: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self.on_started: Callable[[], None] = lambda: None
        self._reload = reload
        self._signals = signals
        self._backend = backend
        self._drain_s = drain_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain, then end; at once without a drain time, or on a second signal."""
        first = not self._backend.draining
        self._backend.drain()
        if first and self._drain_s > 0 and sig == signal.SIGTERM:
            end = threading.Timer(self._drain_s, super().handle_exit, (sig, None))
            end.daemon = True
            end.start()
        else:
            super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in self._signals}
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda number, frame: self._reload())
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def say_url(url: str) -> None:
    print(
        f"velo serves at {url} (a dashboard at {url}/ui, documentation at {url}/docs)",
        file=sys.stderr,
        flush=True,
    )


_TIMEOUT_ANSWER = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"  # as for bodies
)


def bounded_protocol(limits: GatewayLimits) -> type[asyncio.Protocol]:
    """uvicorn's protocol with limits on incomplete requests; a class for each server."""
    waiting: OrderedDict[Any, None] = OrderedDict()
    base: Any = AutoHTTPProtocol

    class BoundedProtocol(base):  # type: ignore[misc]
        """A connection; `cycle` is uvicorn's: the request under way, or the last one."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._look()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope[ARRIVED] = time.monotonic()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._look(idle=True)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            waiting.pop(self, None)
            super().connection_lost(exc)

        def _look(self, *, idle: bool = False) -> None:
            """Note whether headers, or the rest of a body, are missing; an idle connection may stay so."""
            cycle = self.cycle
            headers_missing = cycle is None or cycle.response_complete
            if not headers_missing:
                self._stop_timer()
            elif self._timer is None and not idle and not self.transport.is_closing():
                self._timer = asyncio.get_running_loop().call_later(limits.headers_read_s, self._time_out)
            if not headers_missing and not cycle.more_body:
                waiting.pop(self, None)
            elif self not in waiting and not self.transport.is_closing():
                waiting[self] = None
                if len(waiting) > limits.connections_waiting_max:
                    oldest, _ = waiting.popitem(last=False)
                    oldest.transport.abort()

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _time_out(self) -> None:
            self._timer = None
            if not self.transport.is_closing():
                self.transport.write(_TIMEOUT_ANSWER)
                self.transport.close()

    return BoundedProtocol
