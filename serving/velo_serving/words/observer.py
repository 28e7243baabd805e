"""Whom a router tells what happens."""

from __future__ import annotations

from typing import Protocol

from velo_serving.words.types import Hits

__all__ = ["Observer", "SilentObserver"]


class Observer(Protocol):
    """Told what happens, for metrics; its methods must be quick and must not raise."""

    def call_sent(self, shard: str, queries: int, waited_s: float) -> None:
        """A request of so many queries went to a shard, after it had waited for others."""

    def call_ended(self, shard: str, seconds: float, outcome: str) -> None:
        """Its call ended: "ok", "error", "canceled", "unavailable" or "hung"."""

    def hedge_sent(self, shard: str) -> None:
        """A request went to a second replica of a shard, because the first took long."""

    def shard_changed(self, shard: str, up: bool, reason: str) -> None:
        """A shard went down or came up."""

    def request_ended(self, outcome: str, queries: int, hits: Hits | None) -> None:
        """A request ended: "complete", "partial", "rejected", "deadline", "unavailable" or "error"."""

    def write_ended(self, verb: str, outcome: str, rows: int) -> None:
        """A write ended: "done", "partial", "rejected", "deadline", "unavailable" or "error"."""


class SilentObserver:
    """Nobody listens."""

    def call_sent(self, shard: str, queries: int, waited_s: float) -> None:
        """Do nothing."""

    def call_ended(self, shard: str, seconds: float, outcome: str) -> None:
        """Do nothing."""

    def hedge_sent(self, shard: str) -> None:
        """Do nothing."""

    def shard_changed(self, shard: str, up: bool, reason: str) -> None:
        """Do nothing."""

    def request_ended(self, outcome: str, queries: int, hits: Hits | None) -> None:
        """Do nothing."""

    def write_ended(self, verb: str, outcome: str, rows: int) -> None:
        """Do nothing."""
