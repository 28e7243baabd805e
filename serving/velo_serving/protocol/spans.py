"""Observation: the events of a router for metrics, and the spans of a request for tracing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Final, Protocol

from velo_serving.protocol.types import Failure, Hits, ShardFailure, ShardReply


class Span(Protocol):
    """A span with attributes; None values are skipped. A reason marks it as failed."""

    def note(self, **attributes: Any) -> None: ...
    def end(self, failure: str = "") -> None: ...


class SpanMaker(Protocol):
    """Makes spans below the present one: one that is ended by hand, and one around a block."""

    def start(self, name: str, **attributes: Any) -> Span: ...
    def span(self, name: str, **attributes: Any) -> AbstractContextManager[Span]: ...


#: The maker of the present request, if it is traced.
maker: ContextVar[SpanMaker | None] = ContextVar("velo_spans", default=None)


class _NoSpan:
    def note(self, **attributes: Any) -> None: ...
    def end(self, failure: str = "") -> None: ...


_NONE: Final = _NoSpan()


def span(name: str, **attributes: Any) -> AbstractContextManager[Span]:
    now = maker.get()
    return nullcontext(_NONE) if now is None else now.span(name, **attributes)


class ShardSpans:
    """A span for each shard that a request waits for."""

    __slots__ = ("_spans",)

    def __init__(self, names: Mapping[int, str]) -> None:
        now = maker.get()
        self._spans: dict[int, Span] = {}
        if now is not None:
            self._spans = {
                place: now.start("velo.shard", **{"velo.shard": name}) for place, name in names.items()
            }

    def reply(self, place: int, reply: ShardReply) -> None:
        one = self._spans.pop(place, None)
        if one is None:
            return
        if isinstance(reply, Hits):
            one.note(**{"velo.reads": reply.reads})
        one.end(f"{reply.kind}: {reply.message}" if isinstance(reply, Failure) else "")

    def close(self) -> None:
        for one in self._spans.values():
            one.end("no reply before the answer")
        self._spans = {}


class Observer:
    """The events of a router. Methods must be quick and must not raise; subclasses override some.

    Calls end with "ok", "error", "canceled", "unavailable" or "hung". Requests end with "complete" or
    "partial", writes with "done" or "partial"; failures of both are named by ``outcome_of``.
    """

    def call_sent(self, shard: str, queries: int, waited_s: float) -> None: ...
    def call_ended(self, shard: str, seconds: float, outcome: str) -> None: ...
    def hedge_sent(self, shard: str) -> None: ...
    def shard_changed(self, shard: str, up: bool, reason: str) -> None: ...
    def shard_failed(self, shard: str, failure: Failure) -> None: ...
    def answer_partial(self, failures: Sequence[ShardFailure]) -> None: ...
    def request_ended(self, outcome: str, queries: int, hits: Hits | None) -> None: ...
    def write_ended(self, verb: str, outcome: str, rows: int) -> None: ...
