"""Plain requests of one query that come in the same turn of the event loop travel together."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from velo_serving.protocol.requests import effort_of
from velo_serving.protocol.types import SearchRequest, ShardReply

#: Requests with more hits travel alone: in a frame all would wait for their bytes.
TOGETHER_K_MAX: Final = 256

#: Requests whose time differs by less travel together.
TIMEOUT_STEP_S: Final = 0.1


def is_plain(request: SearchRequest) -> bool:
    """Whether a request may share a frame: a light search without filter, metadata, groups and radius."""
    return (
        request.k <= TOGETHER_K_MAX
        and request.filters is None
        and request.return_metadata is None
        and request.group_by is None
        and request.radius is None
        and request.text is None
        and not request.exact
        and request.recall != 1
    )


class Waiting(asyncio.Future[ShardReply]):
    """The pending reply to one of them."""

    #: Called with ``place`` on cancellation.
    withdraw: Callable[[Any], None] | None = None
    place: Any = None

    def cancel(self, msg: Any = None) -> bool:
        if not super().cancel(msg):
            return False
        if self.withdraw is not None:
            self.withdraw(self.place)
        return True


class Together:
    """Groups requests by their options and sends them in the next turn of the event loop."""

    def __init__(self, send: Callable[[Sequence[SearchRequest], Sequence[Waiting], float], None]) -> None:
        self._send = send
        self._kinds: dict[Hashable, tuple[list[SearchRequest], list[Waiting], float]] = {}

    def add(self, request: SearchRequest, timeout_s: float) -> Waiting:
        """Add a request to the next frame; canceling the future cancels it."""
        loop = asyncio.get_running_loop()
        future = Waiting(loop=loop)
        steps = math.ceil(timeout_s / TIMEOUT_STEP_S)
        kind = request.k, request.queries.shape[1], steps, *effort_of(request).values()
        found = self._kinds.get(kind)
        if found is None:
            if not self._kinds:
                loop.call_soon(self._flush)
            found = self._kinds[kind] = [], [], steps * TIMEOUT_STEP_S
        found[0].append(request)
        found[1].append(future)
        return future

    def _flush(self) -> None:
        kinds, self._kinds = self._kinds, {}
        for requests, futures, timeout_s in kinds.values():
            if any(map(asyncio.Future.done, futures)):
                left = [place for place, future in enumerate(futures) if not future.done()]
                if not left:
                    continue
                requests, futures = [requests[place] for place in left], [futures[place] for place in left]
            self._send(requests, futures, timeout_s)
