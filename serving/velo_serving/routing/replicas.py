"""One shard with its replicas.

A request goes to the least loaded replica; if that fails, to the next one. If it takes longer than 95 of 100
calls do, a second replica is asked, too (a hedge). The first reply counts, and others are canceled. At most
one request in twenty is hedged, so that a slow shard does not get all requests twice. The requests of a
silent replica all go to another one, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from velo.errors import VeloError
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.loops import Clock, Timer
from velo_serving.protocol.spans import Observer
from velo_serving.protocol.types import Failure, ShardChannel, ShardHealth, ShardIdentity, ShardReply
from velo_serving.routing.shard_queue import PendingRequest, ShardQueue

#: A second replica is not asked before this, nor before what 95 of 100 calls take.
HEDGE_MIN_S: Final = 0.005
HEDGE_PERCENTILE: Final = 95.0

#: The share of hedged requests, and the largest burst.
HEDGE_SHARE: Final = 0.05
HEDGE_BURST: Final = 5.0

#: Calls in the percentile, calls between its updates, and the minimum of calls.
CALLS_KEPT: Final = 200
CALLS_ANEW: Final = 16
CALLS_MIN: Final = 20


@dataclass(slots=True)
class _Asked:
    """The replicas that have a request, or had it."""

    began: float
    open: list[ShardQueue] = field(default_factory=list)
    tried: list[ShardQueue] = field(default_factory=list)
    failure: Failure | None = None
    timer: Timer | None = None


class Replicas:
    """The queues of the replicas of shard ``place``. ``on_health`` is called with the health of a replica."""

    def __init__(
        self,
        place: int,
        name: str,
        channels: Sequence[ShardChannel],
        limits: RouterLimits,
        clock: Clock,
        observer: Observer,
        identity: ShardIdentity | None = None,
        on_health: Callable[[ShardHealth], None] | None = None,
    ) -> None:
        self.name = name
        self._place = place
        self._clock = clock
        self._observer = observer
        self.queues = [
            ShardQueue(channel, limits, clock, observer, self._take, self._hedge_all, identity, on_health)
            for channel in channels
        ]
        self._asked: dict[PendingRequest, _Asked] = {}
        self._turn = 0
        self._credit = 0.0
        self._took_s: deque[float] = deque(maxlen=CALLS_KEPT)
        self._noted = 0
        self._hedge_s: float | None = None

    @property
    def up(self) -> bool:
        return any(queue.up for queue in self.queues)

    @property
    def responsive(self) -> bool:
        return any(queue.up and not queue.silent for queue in self.queues)

    def wait_s(self, heavy: bool) -> float:
        """The expected wait of a new request; zero if unknown."""
        return min([queue.wait_s(heavy) for queue in self.queues if queue.up], default=0.0)

    def offer(self, pending: PendingRequest, even_if_silent: bool) -> None:
        """Send a request to a replica, or fail it if all are down, or silent."""
        if not (even_if_silent or self.responsive):
            pending.reply(self._place, self.queues[0].failure())
            return
        asked = self._asked[pending] = _Asked(self._clock.now())
        self._credit = min(self._credit + HEDGE_SHARE, HEDGE_BURST)
        if not self._ask(pending, asked):
            del self._asked[pending]
            pending.reply(self._place, self.queues[0].failure())
        elif self._hedge_s is not None and len(self.queues) > 1:
            asked.timer = self._clock.call_at(asked.began + self._hedge_s, lambda: self._hedge(pending))

    async def look_up(
        self, what: str, arguments: Mapping[str, Any], timeout_s: float
    ) -> dict[str, Any] | Failure:
        """Look up at a replica, after a failure at the next one."""
        failure = self.queues[0].failure()
        asked = [queue for queue in self.queues if queue.up]
        for queue in sorted(asked, key=lambda queue: queue.silent):
            try:
                return await queue.look_up(what, arguments, timeout_s)
            except VeloError as error:
                failure = Failure.of(error)
                if failure.fault == "caller":
                    break
        return failure

    async def write(
        self, what: str, arguments: Mapping[str, Any], timeout_s: float
    ) -> dict[str, Any] | Failure:
        """Write at the first replica that is up; all of them see it."""
        writer = next((queue for queue in self.queues if queue.up), self.queues[0])
        try:
            return await writer.write(what, arguments, timeout_s)
        except VeloError as error:
            return Failure.of(error)

    @property
    def health(self) -> ShardHealth | None:
        """The last health of a replica, of one that is up if there is one."""
        known = [queue for queue in self.queues if queue.health is not None]
        return max(known, key=lambda queue: queue.up).health if known else None

    def withdraw(self, pending: PendingRequest) -> None:
        asked = self._asked.pop(pending, None)
        if asked is not None:
            self._let_go(pending, asked)

    def _ask(self, pending: PendingRequest, asked: _Asked) -> bool:
        """Send the request to the least loaded replica that has not had it."""
        count = len(self.queues)
        if count == 1:
            queue = self.queues[0]
            if asked.tried or not queue.up:
                return False
        else:
            self._turn = (self._turn + 1) % count
            order = self.queues[self._turn :] + self.queues[: self._turn]
            free = [queue for queue in order if queue.up and queue not in asked.tried]
            if not free:
                return False
            # By queries, not by seconds: a replica that was slow once would never be asked again.
            queue = min(free, key=lambda queue: (queue.silent, queue.queries))
        asked.tried.append(queue)
        asked.open.append(queue)
        queue.offer(pending)
        return True

    def _hedge(self, pending: PendingRequest) -> None:
        asked = self._asked.get(pending)
        if asked is None or self._credit < 1.0 or len(asked.open) != 1:
            return
        if self._ask(pending, asked):
            self._credit -= 1.0
            self._observer.hedge_sent(self.name)

    def _hedge_all(self, silent: ShardQueue) -> None:
        for pending, asked in list(self._asked.items()):
            if asked.open == [silent]:
                self._ask(pending, asked)

    def _take(self, queue: ShardQueue, pending: PendingRequest, reply: ShardReply) -> None:
        """Handle a reply of a replica: the answer, or a reason to ask the next one."""
        asked = self._asked.get(pending)
        if asked is None or queue not in asked.open:
            return  # another task was faster
        asked.open.remove(queue)
        if isinstance(reply, Failure):
            if reply.fault == "shard":
                asked.failure = reply
                if self._ask(pending, asked) or asked.open:
                    return
        else:
            self._note(self._clock.now() - asked.began)
        del self._asked[pending]
        self._let_go(pending, asked)
        pending.reply(self._place, reply)

    def _let_go(self, pending: PendingRequest, asked: _Asked) -> None:
        if asked.timer is not None:
            asked.timer.cancel()
        for queue in asked.open:
            queue.withdraw(pending)

    def _note(self, seconds: float) -> None:
        if len(self.queues) == 1:
            return
        self._took_s.append(seconds)
        self._noted += 1
        if self._noted % CALLS_ANEW == 0 and len(self._took_s) >= CALLS_MIN:
            usual = float(np.percentile(np.asarray(self._took_s), HEDGE_PERCENTILE))
            self._hedge_s = max(HEDGE_MIN_S, usual)
