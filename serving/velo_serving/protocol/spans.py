"""Observation: the events of a router for metrics, and the spans of a request for tracing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Final, Protocol

from velo_serving.protocol.types import Failure, Hits, ShardReply


class Span(Protocol):
    """A stretch of time with attributes."""

    def note(self, **attributes: Any) -> None:
        """Set attributes; None is skipped."""

    def end(self, failure: str = "") -> None:
        """End the span, as failed if a reason is given."""


class SpanMaker(Protocol):
    """Makes spans below the one that is under way."""

    def start(self, name: str, **attributes: Any) -> Span:
        """Begin a span that is ended by hand."""

    def span(self, name: str, **attributes: Any) -> AbstractContextManager[Span]:
        """Begin a span that contains those made within, and that an exception fails."""


#: Of the request that is being answered; None where nobody traces.
maker: ContextVar[SpanMaker | None] = ContextVar("velo_spans", default=None)


class _NoSpan:
    def note(self, **attributes: Any) -> None:
        """Do nothing."""

    def end(self, failure: str = "") -> None:
        """Do nothing."""


_NONE: Final = _NoSpan()


def span(name: str, **attributes: Any) -> AbstractContextManager[Span]:
    """A span around a block, if the request is traced."""
    now = maker.get()
    return nullcontext(_NONE) if now is None else now.span(name, **attributes)


class ShardSpans:
    """A span for each shard that a request waits for."""

    __slots__ = ("_spans",)

    def __init__(self, names: Sequence[str]) -> None:
        now = maker.get()
        self._spans: list[Span | None] = []
        if now is not None:
            self._spans = [now.start("velo.shard", **{"velo.shard": name}) for name in names]

    def reply(self, place: int, reply: ShardReply) -> None:
        """End the span of a shard."""
        if not self._spans:
            return
        one = self._spans[place]
        self._spans[place] = None
        if one is None:
            return
        if isinstance(reply, Hits):
            one.note(**{"velo.reads": reply.reads})
        one.end(f"{reply.kind}: {reply.message}" if isinstance(reply, Failure) else "")

    def close(self) -> None:
        """End the spans of shards that did not reply."""
        for one in self._spans:
            if one is not None:
                one.end("no reply before the answer")
        self._spans = []


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
