"""The gate around native calls: nobody is inside once it is closed, and a child never waits."""

from __future__ import annotations

import os
import threading
import time

import pytest

from velo.errors import ClosedError, ForkedError
from velo.segments.lifetime import LifetimeGuard


@pytest.mark.parametrize("by_call", [False, True])
def test_closing_waits_for_those_inside(by_call: bool) -> None:
    guard = LifetimeGuard("index")
    inside, leave, closed = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        if by_call:
            guard.call(stay)
        else:
            with guard.inside():
                stay()

    def stay() -> None:
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
        guard.call(leave.set)
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
