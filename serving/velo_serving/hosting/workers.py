"""Several gateways on one port: processes that share a socket, watched from here."""

from __future__ import annotations

import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

import msgspec
from prometheus_client.multiprocess import mark_process_dead

from velo_serving.catalog.records import Directory
from velo_serving.hosting.child import Child
from velo_serving.hosting.gateway_process import ASKED, PING, Question, Reply, WorkerMessage
from velo_serving.hosting.metrics_folder import metrics_folder
from velo_serving.hosting.server import say_url, url_of
from velo_serving.protocol.errors import SupersededError
from velo_serving.protocol.limits import GatewayLimits, RouterLimits
from velo_serving.protocol.loops import LoopThread
from velo_serving.protocol.options import ServeOptions
from velo_serving.protocol.types import Failure

#: How long a gateway may take to answer what is under way, after its drain.
END_S = 15.0

#: The interval of checks for signals.
LOOK_S = 0.1

#: The interval of pings, and the number of unanswered ones after which a gateway is killed.
PING_S = 1.0
UNHEARD_MAX = 15

log = logging.getLogger("velo_serving")


def run_workers(directory: Directory, listener: socket.socket, options: ServeOptions) -> None:
    """Serve with several gateways until SIGINT or SIGTERM; one that dies is restarted."""
    with ExitStack() as stack:
        folder, owner = stack.enter_context(metrics_folder())
        loop = LoopThread("velo-directory")
        stack.callback(loop.close)
        gateways: list[Child] = []
        mark_dead: Callable[[int, str], None] = mark_process_dead  # removes gauges; counters stay
        signals = stack.enter_context(_signals())

        def message(number: int) -> dict[str, Any]:
            """The first message, with the present records also after a restart."""
            reply: dict[str, Any] = msgspec.to_builtins(
                WorkerMessage(
                    number=number,
                    listener=listener.fileno(),
                    has_root=options.root is not None,
                    records=list(directory.records),
                    options=options.of_gateway,
                    limits=options.limits or RouterLimits(),
                    gateway_limits=options.gateway_limits or GatewayLimits(),
                )
            )
            return reply

        for number in range(options.workers):
            gateway = Child(
                f"gateway {number}",
                "velo_serving.hosting.gateway_process",
                partial(message, number),
                environment={"PROMETHEUS_MULTIPROC_DIR": folder},
                descriptors=[listener.fileno(), owner],
                on_question=_answerer(directory, loop, gateways, number),
                on_death=partial(mark_dead, number, folder),
            )
            stack.callback(gateway.close)
            gateways.append(gateway)
        for gateway in gateways:
            gateway.launch()
        while signals.empty() and not all(gateway.is_there(LOOK_S) for gateway in gateways):
            pass
        if signals.empty():
            (options.on_ready or say_url)(url_of(listener, options))
        while (number := _next_signal(signals, gateways)) == signal.SIGHUP:
            for gateway in gateways:
                gateway.poke(number)
        for gateway in gateways:
            gateway.signal(number)
        listener.close()  # else connections that no gateway takes any more would wait here
        deadline = time.monotonic() + 2 * options.drain_s + END_S
        while not all(gateway.wait(LOOK_S) for gateway in gateways) and time.monotonic() < deadline:
            if not signals.empty():
                number = signals.get()
                if number != signal.SIGHUP:
                    for gateway in gateways:
                        gateway.signal(number)


def _next_signal(signals: SimpleQueue[int], gateways: Sequence[Child]) -> int:
    """Wait for a signal; meanwhile kill gateways that do not answer pings, so that they are restarted."""
    while True:
        try:
            return signals.get(timeout=PING_S)
        except Empty:
            for gateway in gateways:
                # Counted, not timed: where the machine has no time, this process has none either.
                if gateway.ping(msgspec.to_builtins(Reply(PING))) >= UNHEARD_MAX:
                    log.error("%s does not answer: it is started again", gateway.name)
                    gateway.poke(signal.SIGKILL)


def _answerer(
    directory: Directory, loop: LoopThread, gateways: Sequence[Child], number: int
) -> Callable[[str], None]:
    async def answer(question: Question) -> None:
        reply = Reply(question.number)
        try:
            ask = getattr(directory, question.what)
            reply.value = await ask(*msgspec.convert(question.arguments, ASKED[question.what]))
            if question.what in ("create", "drop"):
                tell_all()
        except Exception as error:
            reply.failure = Failure.of(error)
            reply.successor = error.generation if isinstance(error, SupersededError) else None
        gateways[number].tell(msgspec.to_builtins(reply))

    def tell_all() -> None:
        """Send the new records to all gateways before the answer to the one that asked."""
        reply = msgspec.to_builtins(Reply(0, records=list(directory.records)))
        for gateway in gateways:
            gateway.tell(reply)

    def receive(line: str) -> None:
        loop.submit(answer(msgspec.json.decode(line, type=Question)))

    return receive


@contextmanager
def _signals() -> Iterator[SimpleQueue[int]]:
    """A queue of SIGTERM, SIGHUP and SIGINT, which gateways take as SIGUSR1."""
    received: SimpleQueue[int] = SimpleQueue()

    def receive(number: int, frame: FrameType | None) -> None:
        received.put(signal.SIGUSR1 if number == signal.SIGINT else number)

    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, receive) for number in ours}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
