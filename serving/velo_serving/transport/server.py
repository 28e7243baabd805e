"""The server of one shard. It knows neither Ray nor HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import hmac
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from velo.errors import VeloError
from velo_serving.protocol.errors import (
    PortInUseError,
    ProtocolError,
    ServingError,
    ShardUnavailableError,
    WrongPlaceError,
    WrongTokenError,
)
from velo_serving.protocol.hits import Asked, Costs, Ended, is_large
from velo_serving.protocol.loops import LoopThread, converted
from velo_serving.protocol.types import WRITES, Failure, Hits, SearchRequest, ShardHealth, ShardReply
from velo_serving.transport import frames
from velo_serving.transport.codec import (
    Call,
    Hello,
    decode,
    decode_search,
    encode,
    encode_hits,
    encode_replies,
    is_plain,
)
from velo_serving.transport.endpoint import Endpoint, listens, ports_of, this_host
from velo_serving.transport.frames import NUMBER_MAX, Frame, FrameReader, frame_start

#: The limits of a connection before it has sent the token.
HELLO_BYTES_MAX = 4096
HELLO_S = 5.0

#: How long a refused connection stays open, so that the client can read the reason.
REFUSED_S = 1.0


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of a server of a shard; ``unread_bytes_max`` bounds replies that are not read."""

    connections_max: int = 256
    frame_bytes_max: int = 64 << 20
    requests_max: int = 4096
    unread_bytes_max: int = 256 << 20


class Answerer(Protocol):
    """The shard behind the connections."""

    @property
    def name(self) -> str: ...
    def health(self) -> ShardHealth: ...
    async def search(self, request: SearchRequest, timeout_s: float | None = None) -> ShardReply: ...
    def search_each(self, request: SearchRequest, timeout_s: float | None, ended: Ended) -> Asked: ...
    async def trial(self, timeout_s: float) -> bool: ...
    async def look_up(self, what: str, arguments: Mapping[str, Any]) -> dict[str, Any]: ...
    async def write(
        self, what: str, arguments: Mapping[str, Any], timeout_s: float | None = None
    ) -> dict[str, Any]: ...


class ShardServer:
    """Answers routers, which must send ``token``, and ``name`` if given: ports are reused."""

    def __init__(
        self,
        shard: Answerer,
        *,
        token: str,
        version: str = "",
        name: str = "",
        limits: ServerLimits | None = None,
    ) -> None:
        self.shard = shard
        self.token = token
        self.version = version
        self.name = name
        self.limits = limits or ServerLimits()
        #: Told to all askers: the generation of the collection that they should go to, or zero.
        self.successor = 0
        self.peers: set[_Peer] = set()
        self._servers: list[asyncio.Server] = []
        self._path: str | None = None

    async def start(
        self,
        *,
        path: str | None = None,
        host: str | None = None,
        ports: str | None = None,
        tls: str | None = None,
    ) -> Endpoint:
        """Listen on a Unix socket, on the first free of some TCP ports, or on both."""
        port = 0
        loop = asyncio.get_running_loop()
        if path is not None:
            if not path.startswith("\0"):
                self._path = path
                self._unlink()
            self._servers.append(await loop.create_unix_server(lambda: _Peer(self), path))
            if self._path is not None:
                os.chmod(path, 0o600)
        if host is not None:
            listener = await self._listen(host, ports, None if tls is None else listens(tls))
            port = int(listener.sockets[0].getsockname()[1])
            self._servers.append(listener)
        return Endpoint(self.token, this_host(), path, host, port, tls)

    async def _listen(self, host: str, ports: str | None, context: ssl.SSLContext | None) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        for port in ports_of(ports):
            try:
                return await loop.create_server(lambda: _Peer(self), host, port, ssl=context)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise PortInUseError(f"shard {self.shard.name} cannot bind {host}: {error}") from None
        raise PortInUseError(f"shard {self.shard.name}: of {host} all ports {ports} are in use")

    async def health(self) -> ShardHealth:
        """The health of the shard; in a thread, because it may have to open its index."""
        health = await asyncio.to_thread(self.shard.health)
        return dataclasses.replace(health, version=self.version, successor=self.successor)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for peer in list(self.peers):
            peer.end()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()
        while self.peers:  # the loop tells each that it is lost
            await asyncio.sleep(0)
        self._unlink()

    def _unlink(self) -> None:
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)


class _Peer(asyncio.Protocol):
    """One connection from a router."""

    def __init__(self, server: ShardServer) -> None:
        self._server = server
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._is_greeted = False
        self._refused = False
        self._tasks: dict[int, asyncio.Task[None]] = {}
        #: Of those that came together, with the number of their first.
        self._each: dict[int, tuple[int, Asked]] = {}
        self._ready: list[bytes] = []
        self._greeting: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport
        self._patience: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.peers.add(self)
        self._patience = asyncio.get_running_loop().call_later(HELLO_S, self._transport.abort)
        if len(self._server.peers) > self._server.limits.connections_max:
            self._refuse(ServingError(f"{self._server.limits.connections_max} connections are there already"))

    def connection_lost(self, error: Exception | None) -> None:
        self._server.peers.discard(self)
        self._patience.cancel()
        for task in self._tasks.values():
            task.cancel()
        each, self._each = self._each, {}
        for number, (first, asked) in each.items():
            asked.cancel(number - first)
        if self._greeting is not None:
            self._greeting.cancel()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except ProtocolError as error:
            self._refuse(error)

    def end(self) -> None:
        self._transport.abort()

    def _refuse(self, error: VeloError) -> None:
        self._flush()
        head = encode(Failure.of(error))
        self._refused = True
        self._transport.write(frame_start(frames.REFUSAL, 0, len(head)) + head)
        if self._transport.can_write_eof():  # TLS knows no half of a connection
            self._transport.write_eof()
        # Discard input for a while: closing a socket with unread input discards the refusal, too.
        self._patience.cancel()
        self._patience = asyncio.get_running_loop().call_later(REFUSED_S, self._transport.abort)

    def _take(self, frame: Frame) -> None:
        if not self._is_greeted:
            self._greet(frame)
        elif frame.kind == frames.CANCEL:
            task = self._tasks.get(frame.request)
            if task is not None:
                task.cancel()
            elif (found := self._each.pop(frame.request, None)) is not None:
                found[1].cancel(frame.request - found[0])
        elif frame.kind == frames.EACH:
            self._search_each(frame)
        elif frame.kind in (frames.SEARCH, frames.CALL):
            if not self._admits(frame.request, 1):
                return
            task = asyncio.get_running_loop().create_task(self._answer(frame))
            self._tasks[frame.request] = task
            task.add_done_callback(lambda _: self._tasks.pop(frame.request, None))
        else:
            raise ProtocolError(f"an asker sends no frame of kind {frame.kind}")

    def _admits(self, first: int, count: int) -> bool:
        """Whether requests are admitted; refused ones are answered."""
        numbers = range(first, first + count)
        for under_way in (self._tasks, self._each):
            if not under_way.keys().isdisjoint(numbers):
                raise ProtocolError(f"request {next(filter(under_way.__contains__, numbers))} is under way")
        under_way_count = len(self._tasks) + len(self._each)
        if under_way_count + count <= self._server.limits.requests_max:
            return True
        for number in numbers:
            self._fail(number, ServingError(f"{under_way_count} requests are under way already"))
        return False

    def _search_each(self, frame: Frame) -> None:
        """Start requests that share a frame; each is answered separately."""
        request = decode_search(frame.head, frame.body)
        first, count = frame.request, len(request.queries)
        if not (0 < count <= NUMBER_MAX - first) or not is_plain(request):
            raise ProtocolError(f"{count} requests from number {first} on are none that travel together")
        if not self._admits(first, count):
            return

        def ended(rows: Sequence[int], reply: ShardReply, costs: Costs) -> None:
            numbers = [first + row for row in rows]
            for number in numbers:
                self._each.pop(number, None)
            if isinstance(reply, Failure):
                for number in numbers:
                    self._tell(number, reply)
                return
            head, pieces = encode_replies(numbers, reply, costs)
            start = frame_start(frames.REPLIES, 0, len(head), sum(map(len, pieces)))
            self._send([start, head, *pieces])

        try:
            asked = self._server.shard.search_each(request, frame.timeout_us / 1e6, ended)
        except Exception as error:
            for row in range(count):
                self._fail(first + row, error)
        else:
            self._each.update(dict.fromkeys(range(first, first + count), (first, asked)))

    def _greet(self, frame: Frame) -> None:
        if frame.kind != frames.HELLO:
            raise ProtocolError("the first frame is no HELLO")
        hello = decode(frame.head, Hello)
        if not hmac.compare_digest(hello.token.encode(), self._server.token.encode()):
            raise WrongTokenError("the token is not the one that this shard asks for")
        if self._server.name and hello.shard != self._server.name:
            raise WrongPlaceError(f"shard {self._server.name} listens here, not {hello.shard}")
        self._is_greeted = True
        self._patience.cancel()
        self._reader.bytes_max = self._server.limits.frame_bytes_max
        self._greeting = asyncio.get_running_loop().create_task(self._welcome())

    async def _welcome(self) -> None:
        head = encode(await self._server.health())
        self._send([frame_start(frames.WELCOME, 0, len(head)), head])

    async def _answer(self, frame: Frame) -> None:
        try:
            if frame.kind == frames.CALL:
                await self._call(frame)
                return
            request: SearchRequest = decode_search(frame.head, frame.body)
            reply = await self._server.shard.search(request, frame.timeout_us / 1e6)
            if isinstance(reply, Hits):
                apart = is_large(reply)
                head, pieces = await converted(encode_hits, reply) if apart else encode_hits(reply)
                size = sum(map(len, pieces))
                start = frame_start(frames.REPLY, frame.request, len(head), size)
                self._send([start, head, *pieces])
            else:
                self._tell(frame.request, reply)
        except Exception as error:
            self._fail(frame.request, error)

    async def _call(self, frame: Frame) -> None:
        call = decode(frame.head, Call)
        if call.method == "health":
            head = encode(await self._server.health())
        elif call.method == "trial":
            head = encode(await self._server.shard.trial(frame.timeout_us / 1e6))
        elif call.method in WRITES:
            head = encode(await self._server.shard.write(call.method, call.arguments, frame.timeout_us / 1e6))
        else:
            head = encode(await self._server.shard.look_up(call.method, call.arguments))
        self._send([frame_start(frames.REPLY, frame.request, len(head)), head])

    def _fail(self, request: int, error: Exception) -> None:
        failure = Failure.of(error)
        if isinstance(error, ProtocolError | ShardUnavailableError):
            failure = dataclasses.replace(failure, fault="shard")
        self._tell(request, failure)

    def _tell(self, request: int, failure: Failure) -> None:
        head = encode(failure)
        self._send([frame_start(frames.FAILURE, request, len(head)), head])

    def _send(self, pieces: list[bytes]) -> None:
        """Send together with other frames of this turn of the event loop."""
        if not self._ready:
            asyncio.get_running_loop().call_soon(self._flush)
        self._ready += pieces

    def _flush(self) -> None:
        pieces, self._ready = self._ready, []
        if self._refused or self._transport.is_closing():
            return
        self._transport.write(b"".join(pieces))
        if self._transport.get_write_buffer_size() > self._server.limits.unread_bytes_max:
            self._transport.abort()


class ShardHost:
    """A shard's server in a thread of its own, with an event loop of its own: for processes of any kind."""

    def __init__(self, server: ShardServer) -> None:
        self._server = server
        self._thread = LoopThread("velo-transport")

    def start(self, **where: str | None) -> Endpoint:
        return self._thread.call(self._server.start(**where))

    def close(self) -> None:
        self._thread.call(self._server.close())
        self._thread.close()
