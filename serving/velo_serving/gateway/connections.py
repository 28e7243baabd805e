"""Limits on idle and slow connections.

uvicorn waits for headers without a limit. Here a connection must send its headers within a time; if too many
connections have not sent their request, the oldest of them is closed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from velo_serving.protocol.limits import GatewayLimits

_TIMEOUT_ANSWER = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"  # as for bodies
)


def bounded_protocol(limits: GatewayLimits) -> type[asyncio.Protocol]:
    """uvicorn's protocol with limits on incomplete requests; a class for each server."""
    waiting: OrderedDict[Any, None] = OrderedDict()
    base: Any = AutoHTTPProtocol

    class BoundedProtocol(base):  # type: ignore[misc]
        """A connection; `cycle` is uvicorn's: the request under way, or the last one."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._look()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            waiting.pop(self, None)
            super().connection_lost(exc)

        def _look(self) -> None:
            """Note whether headers, or the rest of a body, are missing."""
            cycle = self.cycle
            headers_missing = cycle is None or cycle.response_complete
            if not headers_missing:
                self._stop_timer()
            elif self._timer is None and not self.transport.is_closing():
                self._timer = asyncio.get_running_loop().call_later(limits.headers_read_s, self._time_out)
            if not headers_missing and not cycle.more_body:
                waiting.pop(self, None)
            elif self not in waiting and not self.transport.is_closing():
                waiting[self] = None
                if len(waiting) > limits.connections_waiting_max:
                    oldest, _ = waiting.popitem(last=False)
                    oldest.transport.abort()

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _time_out(self) -> None:
            self._timer = None
            if not self.transport.is_closing():
                self.transport.write(_TIMEOUT_ANSWER)
                self.transport.close()

    return BoundedProtocol
