"""One shard with its replicas: which of them answers a request, and who is asked next.

    a request ──▶ the replica that has least to do ──(it fails, or falls)──▶ the next, at once
                                │
                                └──(quiet for longer than 95 of 100 calls take)──▶ a second one, too: a hedge

The first reply counts and the others are canceled. Hedges are few: one for every twenty requests at most, so
that a shard whose replicas are all slow is not asked twice for everything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from velo.errors import VeloError
from velo_serving.routing.lane import Gather, Lane
from velo_serving.words.clock import Clock, Timer
from velo_serving.words.limits import RouterLimits
from velo_serving.words.observer import Observer
from velo_serving.words.types import Failure, ShardChannel, ShardHealth, ShardIdentity, ShardReply

__all__ = ["Replicas"]

#: A second replica is not asked before this, nor before what 95 of 100 calls take.
HEDGE_MIN_S: Final = 0.005
HEDGE_PERCENTILE: Final = 95.0

#: Hedges by requests, and how many may come at once after a calm time.
HEDGE_SHARE: Final = 0.05
HEDGE_BURST: Final = 5.0

#: Calls that the percentile is of, how often it is taken anew, and how many it needs.
CALLS_KEPT: Final = 200
CALLS_ANEW: Final = 16
CALLS_MIN: Final = 20


class _Asked:
    """A request on its way: which replicas have it, and which had it."""

    __slots__ = ("began", "failure", "open", "timer", "tried")

    def __init__(self, began: float) -> None:
        self.began = began
        self.open: list[Lane] = []
        self.tried: list[Lane] = []
        self.failure: Failure | None = None
        self.timer: Timer | None = None


class Replicas:
    """The lanes of one shard.

    Parameters
    ----------
    place : int
        Of the shard among the others.
    name : str
        Of the shard.
    channels : sequence of ShardChannel
        One a replica.
    identity : ShardIdentity, optional
        What each must be.
    heard : callable, optional
        Called with what a replica says of itself.
    """

    def __init__(
        self,
        place: int,
        name: str,
        channels: Sequence[ShardChannel],
        limits: RouterLimits,
        clock: Clock,
        observer: Observer,
        identity: ShardIdentity | None = None,
        heard: Callable[[ShardHealth], None] | None = None,
    ) -> None:
        self.name = name
        self._place = place
        self._clock = clock
        self._observer = observer
        self.lanes = [
            Lane(channel, limits, clock, observer, self._take, identity, heard) for channel in channels
        ]
        self._asked: dict[Gather, _Asked] = {}
        self._turn = 0
        self._credit = 0.0
        self._took_s: deque[float] = deque(maxlen=CALLS_KEPT)
        self._noted = 0
        self._hedge_s: float | None = None

    @property
    def up(self) -> bool:
        """Whether some replica can be asked."""
        return any(lane.up for lane in self.lanes)

    def wait_s(self, heavy: bool) -> float:
        """How long a request that comes now would wait; zero where that is unknown."""
        return min([lane.wait_s(heavy) for lane in self.lanes if lane.up], default=0.0)

    def offer(self, gather: Gather) -> None:
        """Ask a replica, or fail the request at once where none is up."""
        asked = self._asked[gather] = _Asked(self._clock.now())
        self._credit = min(self._credit + HEDGE_SHARE, HEDGE_BURST)
        if not self._ask(gather, asked):
            del self._asked[gather]
            gather.reply(self._place, self.lanes[0].failure())
        elif self._hedge_s is not None and len(self.lanes) > 1:
            asked.timer = self._clock.call_at(asked.began + self._hedge_s, lambda: self._hedge(gather))

    async def look_up(
        self, what: str, arguments: Mapping[str, Any], timeout_s: float, *, writer: bool = False
    ) -> dict[str, Any] | Failure:
        """Look something up at a replica, and at the next one where that fails; or at the one that writes."""
        failure = self.lanes[0].failure()
        for lane in [lane for lane in self.lanes[: 1 if writer else None] if lane.up]:
            try:
                return await lane.look_up(what, arguments, timeout_s)
            except VeloError as error:
                failure = Failure.of(error)
                if failure.fault == "caller":
                    break
        return failure

    async def write(
        self, what: str, arguments: Mapping[str, Any], timeout_s: float
    ) -> dict[str, Any] | Failure:
        """Do something to the rows at the replica that writes, the first; the others see it later."""
        try:
            return await self.lanes[0].write(what, arguments, timeout_s)
        except VeloError as error:
            return Failure.of(error)

    @property
    def writer(self) -> ShardHealth | None:
        """The health of the replica that writes; None where it never answered."""
        return self.lanes[0].health

    @property
    def health(self) -> ShardHealth | None:
        """The health of the first replica that answered."""
        return next((lane.health for lane in self.lanes if lane.health is not None), None)

    def withdraw(self, gather: Gather) -> None:
        """Nobody waits for this request any more."""
        asked = self._asked.pop(gather, None)
        if asked is not None:
            self._let_go(gather, asked)

    def _ask(self, gather: Gather, asked: _Asked) -> bool:
        """Send the request to the replica that has least to do, of those that did not have it."""
        count = len(self.lanes)
        if count == 1:
            lane = self.lanes[0]
            if asked.tried or not lane.up:
                return False
        else:
            self._turn = (self._turn + 1) % count
            order = self.lanes[self._turn :] + self.lanes[: self._turn]
            free = [lane for lane in order if lane.up and lane not in asked.tried]
            if not free:
                return False
            # By queries, not by seconds: a replica that was slow once would never be asked again.
            lane = min(free, key=lambda lane: lane.queries)
        asked.tried.append(lane)
        asked.open.append(lane)
        lane.offer(gather)
        return True

    def _hedge(self, gather: Gather) -> None:
        asked = self._asked.get(gather)
        if asked is None or self._credit < 1.0 or len(asked.open) != 1:
            return
        if self._ask(gather, asked):
            self._credit -= 1.0
            self._observer.hedge_sent(self.name)

    def _take(self, lane: Lane, gather: Gather, reply: ShardReply) -> None:
        """Take a replica's reply: the answer, or a reason to ask another one."""
        asked = self._asked.get(gather)
        if asked is None or lane not in asked.open:
            return  # somebody else was faster
        asked.open.remove(lane)
        if isinstance(reply, Failure):
            if reply.fault == "shard":
                asked.failure = reply
                if self._ask(gather, asked) or asked.open:
                    return
        else:
            self._note(self._clock.now() - asked.began)
        del self._asked[gather]
        self._let_go(gather, asked)
        gather.reply(self._place, reply)

    def _let_go(self, gather: Gather, asked: _Asked) -> None:
        if asked.timer is not None:
            asked.timer.cancel()
        for lane in asked.open:
            lane.withdraw(gather)

    def _note(self, seconds: float) -> None:
        if len(self.lanes) == 1:
            return
        self._took_s.append(seconds)
        self._noted += 1
        if self._noted % CALLS_ANEW == 0 and len(self._took_s) >= CALLS_MIN:
            usual = float(np.percentile(np.asarray(self._took_s), HEDGE_PERCENTILE))
            self._hedge_s = max(HEDGE_MIN_S, usual)
