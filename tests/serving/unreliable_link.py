"""A proxy between a gateway and a shard: it delays bytes, cuts anywhere, and lets later connections pass."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

#: Bytes are passed on in pieces of this size at most, so that frames arrive in parts.
PIECE_BYTES = 1 << 14


@dataclass(frozen=True)
class Plan:
    """What befalls a connection.

    Attributes
    ----------
    accept_after_s : float
        So long the shard does not hear of it; one that came later may be there before.
    cut_after_bytes : int or None
        It ends when so many bytes have passed, in both directions together.
    cut_softly : bool
        By an end in order; else by a reset.
    delay_max_s : float
        Each piece waits for up to so long.
    piece_bytes : int
    """

    accept_after_s: float = 0.0
    cut_after_bytes: int | None = None
    cut_softly: bool = False
    delay_max_s: float = 0.0
    piece_bytes: int = PIECE_BYTES


def unreliable(draw: random.Random) -> Plan:
    """Draw what befalls the next connection: most are cut sooner or later, some at their first bytes."""
    cut = None
    if draw.random() < 0.85:
        cut = draw.choice([draw.randrange(64), draw.randrange(1_000), draw.randrange(20_000)])
    return Plan(
        accept_after_s=draw.choice([0.0, 0.0, 0.05 * draw.random()]),
        cut_after_bytes=cut,
        cut_softly=draw.random() < 0.5,
        delay_max_s=draw.choice([0.0, 0.002, 0.02]),
        piece_bytes=draw.choice([1, 7, 100, PIECE_BYTES]),
    )


class Link:
    """Listens where the gateway looks for a shard, and passes on what comes as it is planned.

    Parameters
    ----------
    seed : int
        Of the plans; the same connections in the same order meet the same.
    host, port
        Of the shard.
    """

    def __init__(self, seed: int, host: str, port: int) -> None:
        self._draw = random.Random(seed)
        self._shard = host, port
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        #: While it is, connections pass as they are.
        self.reliable = True
        self.connections = self.cuts = self.overtaken = 0
        self._passed = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        plan = Plan() if self.reliable else unreliable(self._draw)
        number = self.connections
        self.connections += 1
        onward: asyncio.StreamWriter | None = None
        soft = plan.cut_softly
        try:
            await asyncio.sleep(plan.accept_after_s)
            if number < self._passed:
                self.overtaken += 1
            self._passed = max(self._passed, number)
            back, onward = await asyncio.open_connection(*self._shard)
            await self._both(plan, (reader, onward), (back, writer))
        except (asyncio.CancelledError, OSError):
            soft = False
        finally:
            for one in (writer, onward):
                if one is not None:
                    one.close() if soft else one.transport.abort()

    async def _both(self, plan: Plan, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        left = [plan.cut_after_bytes]

        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while piece := await reader.read(plan.piece_bytes):
                if plan.delay_max_s:
                    await asyncio.sleep(plan.delay_max_s * self._draw.random())
                if left[0] is not None:
                    piece = piece[: left[0]]
                    left[0] -= len(piece)
                writer.write(piece)
                await writer.drain()
                if left[0] == 0:
                    self.cuts += 1
                    return

        passing = [asyncio.ensure_future(one(*way)) for way in ways]
        try:
            # The end of one direction is the end of both, as with a machine that is gone.
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in passing:
                task.cancel()
            await asyncio.gather(*passing, return_exceptions=True)
