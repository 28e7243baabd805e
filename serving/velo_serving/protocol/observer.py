"""The events of a router, for metrics."""

from __future__ import annotations

from typing import Protocol

from velo_serving.protocol.types import Hits


class Observer(Protocol):
    """The events of a router. Methods must be quick and must not raise; subclasses override some."""

    def call_sent(self, shard: str, queries: int, waited_s: float) -> None:
        """A request went to a shard after waiting in its queue."""
        return

    def call_ended(self, shard: str, seconds: float, outcome: str) -> None:
        """Its call ended: "ok", "error", "canceled", "unavailable" or "hung"."""
        return

    def hedge_sent(self, shard: str) -> None:
        """A request went to a second replica of a shard, because the first took long."""
        return

    def shard_changed(self, shard: str, up: bool, reason: str) -> None:
        """A shard went down or came up."""
        return

    def request_ended(self, outcome: str, queries: int, hits: Hits | None) -> None:
        """A request ended: "complete", "partial", "rejected", "deadline", "unavailable" or "error"."""
        return

    def write_ended(self, verb: str, outcome: str, rows: int) -> None:
        """A write ended: "done", "partial", "rejected", "deadline", "unavailable" or "error"."""
        return


class SilentObserver(Observer):
    """Nobody listens."""
