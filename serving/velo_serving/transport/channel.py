"""A ``ShardChannel`` over one connection to the process of a shard."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from velo.errors import VeloError
from velo_serving.protocol.errors import ProtocolError, ShardMovedError, ShardUnavailableError
from velo_serving.protocol.loops import converted
from velo_serving.protocol.types import Failure, SearchRequest, ShardHealth, ShardReply
from velo_serving.transport import frames
from velo_serving.transport.codec import (
    Call,
    Hello,
    Together,
    Waiting,
    decode,
    decode_hits,
    decode_replies,
    encode,
    encode_each,
    encode_search,
    is_plain,
)
from velo_serving.transport.endpoint import Endpoint, asks, this_host
from velo_serving.transport.frames import NUMBER_MAX, Frame, FrameReader, frame_start

#: A million hits with their metadata.
REPLY_BYTES_MAX = 1 << 30

#: Replies of more bytes are decoded in a thread.
DECODE_INLINE_BYTES_MAX = 32 << 10

#: The connection timeout. The system itself retries after 1, 3 and 7 s, too late after an outage.
CONNECT_S = 0.5

#: The same with TLS, where the process must answer, too.
CONNECT_TLS_S = 2.0

#: How long to wait for a new endpoint before the former one is tried again.
LOCATE_S = 0.25

#: The interval of questions for the new endpoint of a shard that was moved, and of checks of its former one.
FOLLOW_S = 0.02

#: A frame holds the time that is left in a number of this size.
_TIMEOUT_US_MAX = (1 << 32) - 1


def at(endpoint: Endpoint) -> Callable[[], Awaitable[Endpoint]]:
    async def locate() -> Endpoint:
        return endpoint

    return locate


def _unix_socket(path: str) -> socket.socket:
    """Connect to a Unix socket without blocking."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setblocking(False)
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


class SocketChannel:
    """The channel to a shard in another process; ``locate`` returns its endpoint before each connection."""

    def __init__(self, name: str, locate: Callable[[], Awaitable[Endpoint]]) -> None:
        self._name = name
        self._locate = locate
        self._lost: Callable[[str], None] = lambda reason: None
        self._link: _Link | None = None
        self._endpoint: Endpoint | None = None
        self._locating: asyncio.Future[Endpoint] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        return self._name

    def watch(self, lost: Callable[[str], None]) -> None:
        self._lost = lost

    def submit(self, request: SearchRequest, timeout_s: float) -> asyncio.Future[ShardReply]:
        """Send a request; canceling the future sends CANCEL."""
        link = self._link
        if link is not None and len(request.queries) == 1 and is_plain(request):
            return link.together.add(request, timeout_s)
        future: asyncio.Future[ShardReply] = asyncio.get_running_loop().create_future()
        if link is None:
            future.set_exception(ShardUnavailableError(f"shard {self._name} is not connected"))
            return future
        try:
            head, body = encode_search(request)
        except VeloError as error:
            future.set_result(Failure.of(error))
            return future
        link.ask(frames.SEARCH, head, body, timeout_s, future)
        return future

    async def health(self) -> ShardHealth:
        """Connect unless connected, follow a shard that was moved, and return the health."""
        if self._link is None:
            health = await self._connect()
        else:
            health = decode(await self._call("health", 0.0), ShardHealth)
        if health.details.get("moved"):
            with contextlib.suppress(VeloError):  # it still answers searches where it was
                return await self._follow(self._link)
        return health

    async def trial(self, timeout_s: float) -> bool:
        return decode(await self._call("trial", timeout_s), bool)

    async def look_up(self, what: str, arguments: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        return decode(await self._call(what, timeout_s, arguments), dict)

    async def write(self, what: str, arguments: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Write to the current process of the shard; the caller limits the time."""
        while True:
            link = self._link
            try:
                return decode(await self._call(what, timeout_s, arguments), dict)
            except ShardMovedError:
                with contextlib.suppress(VeloError):
                    await self._follow(link)
                if self._link is link:
                    await asyncio.sleep(FOLLOW_S)

    async def _follow(self, former: _Link | None) -> ShardHealth:
        """Connect to the new process of a moved shard; running calls end at the former one."""
        endpoint = await self._locate()
        if endpoint == self._endpoint and self._link is former:
            raise ShardUnavailableError(
                f"shard {self._name} was moved, and its directory names no new process"
            )
        link = await self._open(endpoint)
        health = await self._greeted(link, endpoint)
        if self._link is not former:  # another call was faster
            link.end("it is not needed")
            return health
        self._link, self._endpoint = link, endpoint
        if former is not None:
            leaving = asyncio.ensure_future(former.leave())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        return health

    async def _call(self, method: str, timeout_s: float, arguments: Mapping[str, Any] | None = None) -> bytes:
        link = self._link
        if link is None:
            raise ShardUnavailableError(f"shard {self._name} is not connected")
        future: asyncio.Future[bytes | Failure] = asyncio.get_running_loop().create_future()
        link.ask(frames.CALL, encode(Call(method, dict(arguments or {}))), b"", timeout_s, future)
        reply = await future
        if isinstance(reply, Failure):
            raise reply.to_error()
        return reply

    def reset(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.end(f"the connection to shard {self._name} was dropped")

    async def close(self) -> None:
        self.reset()
        for leaving in self._leaving:
            leaving.cancel()
        locating, self._locating = self._locating, None
        if locating is not None:
            locating.cancel()
            await asyncio.wait({locating})
            if not locating.cancelled():
                locating.exception()  # marks it as seen

    async def _connect(self) -> ShardHealth:
        # The former endpoint is tried first: the directory may be down, or late.
        if self._endpoint is not None:
            with contextlib.suppress(VeloError):
                return await self._connect_to(self._endpoint)
        return await self._connect_to(await self._found())

    async def _found(self) -> Endpoint:
        """The present endpoint. With a former one the wait is short, and a late answer is used next time."""
        if self._endpoint is None:
            return await self._locate()
        if self._locating is None:
            self._locating = asyncio.ensure_future(self._locate())
        locating = self._locating
        await asyncio.wait({locating}, timeout=LOCATE_S)
        if not locating.done():
            raise ShardUnavailableError(
                f"shard {self._name} does not answer where it was", detail=f"at {self._endpoint}"
            )
        self._locating = None
        return locating.result()

    async def _connect_to(self, endpoint: Endpoint) -> ShardHealth:
        link = await self._open(endpoint)
        health = await self._greeted(link, endpoint)
        self._link, self._endpoint = link, endpoint
        return health

    @staticmethod
    async def _greeted(link: _Link, endpoint: Endpoint) -> ShardHealth:
        try:
            return await link.greet(endpoint.token)
        except BaseException:
            link.end("the connection was not welcomed")
            raise

    async def _open(self, endpoint: Endpoint) -> _Link:
        loop = asyncio.get_running_loop()
        faults = []

        def make() -> _Link:
            return _Link(self._name, self._ended)

        if endpoint.path is not None and endpoint.host_id == this_host():
            try:
                # A socket of our own: uvloop's knows no abstract names.
                return (await loop.create_unix_connection(make, sock=_unix_socket(endpoint.path)))[1]
            except OSError as error:  # another container, or the process has ended
                faults.append(f"{endpoint.path}: {error.strerror or error}".replace("\0", "@"))
        if endpoint.host is not None:
            try:
                context = None if endpoint.tls is None else asks(endpoint.tls)
                connecting = loop.create_connection(make, endpoint.host, endpoint.port, ssl=context)
                limit_s = CONNECT_S if context is None else CONNECT_TLS_S
                return (await asyncio.wait_for(connecting, limit_s))[1]
            except asyncio.TimeoutError:
                faults.append(f"{endpoint.host}:{endpoint.port}: nothing within {limit_s:g} s")
            except OSError as error:
                faults.append(f"{endpoint.host}:{endpoint.port}: {error.strerror or error}")
        raise ShardUnavailableError(
            f"shard {self._name} cannot be reached", detail="; ".join(faults) or "no address"
        )

    def _ended(self, link: _Link, reason: str) -> None:
        if self._link is link:
            self._link = None
            self._lost(reason)


def _settle(future: asyncio.Future[Any], done: asyncio.Future[Any]) -> None:
    if not (future.done() or done.cancelled()):
        error = done.exception()
        future.set_result(done.result()) if error is None else future.set_exception(error)


class _Link(asyncio.Protocol):
    """One connection: who waits for which number."""

    def __init__(self, name: str, ended: Callable[[_Link, str], None]) -> None:
        self._name = name
        self._ended = ended
        self._reader = FrameReader(REPLY_BYTES_MAX)
        self._next = 1
        self._pending: dict[int, tuple[int, asyncio.Future[Any]]] = {}
        self.together = Together(self._ask_each)
        self._welcome: asyncio.Future[ShardHealth] = asyncio.get_running_loop().create_future()
        self._over: str | None = None
        self._transport: asyncio.Transport

    # ---- sending ----

    async def greet(self, token: str) -> ShardHealth:
        """Send HELLO and wait for WELCOME."""
        head = encode(Hello(token, shard=self._name))
        self._transport.write(frame_start(frames.HELLO, 0, len(head)) + head)
        return await self._welcome

    def ask(self, kind: int, head: bytes, body: bytes, timeout_s: float, future: asyncio.Future[Any]) -> None:
        if self._over is not None:
            future.set_exception(ShardUnavailableError(self._over))
            return
        number = self._numbers(1)
        self._pending[number] = kind, future
        self._write(kind, number, head, body, timeout_s)
        future.add_done_callback(lambda future: self._settled(number, future))

    def _ask_each(
        self, requests: Sequence[SearchRequest], futures: Sequence[Waiting], timeout_s: float
    ) -> None:
        if self._over is not None:
            for future in futures:
                future.set_exception(ShardUnavailableError(self._over))
            return
        first = self._numbers(len(requests))
        for number, future in enumerate(futures, first):
            self._pending[number] = frames.EACH, future
            future.withdraw, future.place = self._withdraw, number
        head, body = encode_each(requests)
        self._write(frames.EACH, first, head, body, timeout_s)

    def _write(self, kind: int, number: int, head: bytes, body: bytes, timeout_s: float) -> None:
        left_us = min(int(timeout_s * 1e6), _TIMEOUT_US_MAX)
        start = frame_start(kind, number, len(head), len(body), timeout_us=left_us)
        self._transport.write(b"".join((start, head, body)))

    def _numbers(self, count: int) -> int:
        """Reserve consecutive request numbers."""
        # When they begin again the first ones have long been answered.
        first = self._next if self._next + count <= NUMBER_MAX else 1
        self._next = first + count
        return first

    def _settled(self, number: int, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self._withdraw(number)

    def _withdraw(self, number: int) -> None:
        if self._pending.pop(number, None) is not None and self._over is None:
            self._transport.write(frame_start(frames.CANCEL, number, 0))

    # ---- receiving ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except ProtocolError as error:
            self._end_with(error)

    def _take(self, frame: Frame) -> None:
        if frame.kind in (frames.REPLY, frames.FAILURE):
            kind, future = self._pending.pop(frame.request, (0, None))
            if future is None or future.done():
                return  # it was canceled while the reply was on its way
            try:
                if frame.kind == frames.FAILURE:
                    reply: Any = decode(frame.head, Failure)
                elif kind == frames.CALL:
                    reply = frame.head
                elif len(frame.body) > DECODE_INLINE_BYTES_MAX:
                    task = asyncio.ensure_future(converted(decode_hits, frame.head, frame.body))
                    task.add_done_callback(partial(_settle, future))
                    return
                else:
                    reply = decode_hits(frame.head, frame.body)
            except ProtocolError as error:
                future.set_exception(error)
                return
            if isinstance(reply, Failure) and reply.kind == ShardUnavailableError.__name__:
                future.set_exception(ShardUnavailableError(reply.message))
            else:
                future.set_result(reply)
        elif frame.kind == frames.REPLIES:
            for number, hits in zip(*decode_replies(frame.head, frame.body), strict=True):
                kind, future = self._pending.get(number, (0, None))
                if kind == frames.EACH and future is not None:
                    del self._pending[number]
                    if not future.done():
                        future.set_result(hits)
        elif frame.kind == frames.WELCOME and not self._welcome.done():
            self._welcome.set_result(decode(frame.head, ShardHealth))
        elif frame.kind == frames.REFUSAL:
            self._end_with(decode(frame.head, Failure).to_error())
        else:
            raise ProtocolError(f"a shard sends no frame of kind {frame.kind} here")

    def connection_lost(self, error: Exception | None) -> None:
        why = " within a frame" if self._reader.within_frame else ""
        self.end(f"the connection to shard {self._name} ended{why}" + (f": {error}" if error else ""))

    # ---- ending ----

    async def leave(self) -> None:
        """End once all calls are answered."""
        try:
            await asyncio.sleep(FOLLOW_S)
            while self._pending and self._over is None:
                await asyncio.sleep(FOLLOW_S)
        finally:
            self.end("the shard was moved")

    def _end_with(self, error: VeloError) -> None:
        if not self._welcome.done():
            self._welcome.set_exception(error)
        self.end(f"shard {self._name}: {error.message}")

    def end(self, reason: str) -> None:
        if self._over is not None:
            return
        self._over = reason
        self._transport.abort()
        if not self._welcome.done():
            self._welcome.set_exception(ShardUnavailableError(reason))
            self._welcome.exception()  # marks it as seen
        pending, self._pending = self._pending, {}
        for _, future in pending.values():
            if not future.done():
                future.set_exception(ShardUnavailableError(reason))
        self._ended(self, reason)
