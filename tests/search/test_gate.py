"""The lifetime of an open index: nothing is inside once it is closed, and a child never waits."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tests.live.interrupts import Places, places_of
from velo.errors import ClosedError, ForkedError
from velo.segments.lifetime import LifetimeGuard


def test_closing_waits_for_those_inside() -> None:
    guard = LifetimeGuard("index")
    inside, leave, closed = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        with guard.inside():
            inside.set()
            leave.wait(10)

    def close() -> None:
        guard.close()
        closed.set()

    threads = [threading.Thread(target=call), threading.Thread(target=close)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    while not guard.closed:
        time.sleep(0.001)
    with pytest.raises(ClosedError, match="index was closed"), guard.inside():
        pass
    with pytest.raises(ClosedError, match="index was closed"):
        guard.check()
    assert not closed.wait(0.05)
    leave.set()
    assert closed.wait(10)
    for thread in threads:
        thread.join()
    guard.close()  # the second time is no time


def test_a_child_is_told_even_if_somebody_was_inside() -> None:
    guard = LifetimeGuard("index")
    with guard.inside():  # as another thread of the parent may be at the moment of the fork
        child = os.fork()
        if child == 0:
            try:
                with guard.inside():
                    os._exit(1)
            except ForkedError:
                os._exit(0)
            except BaseException:
                os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    with guard.inside():
        pass


def test_an_interrupted_block_is_not_inside_any_more() -> None:
    guard = LifetimeGuard("index")

    def block() -> None:
        with guard.inside():
            pass

    for at in range(places_of(block)):
        tracebacks = []
        try:
            Places(at + 1, _interrupt).watch(block)
        except KeyboardInterrupt as error:
            tracebacks.append(error)  # it keeps the frames
        closing = threading.Thread(target=guard.close, daemon=True)
        closing.start()
        closing.join(10)
        assert not closing.is_alive(), f"place {at} of {block}"
        guard = LifetimeGuard("index")


def test_an_interrupt_ends_the_wait_for_a_block() -> None:
    guard = LifetimeGuard("index")
    with guard.inside():
        timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            guard.close()
        timer.join()
        assert guard.closed
    guard.close()


def _interrupt() -> None:
    raise KeyboardInterrupt
