"""An index that another process has open, called as one of this process is."""

from __future__ import annotations

import functools
import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import velo


class OtherProcess:
    """A process that opens one index after another and calls its methods. It ends with this one."""

    def __init__(self) -> None:
        # Not forked: the process has read nothing from files that are open here.
        spawn = multiprocessing.get_context("spawn")
        self._calls, there = spawn.Pipe()
        spawn.Process(target=_serve, args=(there,), daemon=True).start()
        there.close()

    def open(self, *arguments: Any, **options: Any) -> IndexElsewhere:
        """Open an index there; the arguments are those of :func:`velo.open`."""
        self("open", *arguments, **options)
        return IndexElsewhere(self)

    def __call__(self, name: str, *arguments: Any, **options: Any) -> Any:
        self._calls.send((name, arguments, options))
        found, error = self._calls.recv()
        if error is not None:
            raise error
        return found


@functools.cache
def other_process() -> OtherProcess:
    """The process that all tests share."""
    return OtherProcess()


class IndexElsewhere:
    """The index that the other process has open."""

    def __init__(self, process: OtherProcess) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self._process, name)

    def __len__(self) -> int:
        return int(self._process("__len__"))


def _serve(calls: Connection) -> None:
    index: Any = None
    while True:
        try:
            name, arguments, options = calls.recv()
        except EOFError:
            return
        try:
            found = None
            if name == "open":
                index = velo.open(*arguments, **options)
            else:
                found = getattr(index, name)(*arguments, **options)
        except Exception as error:
            calls.send((None, error))
        else:
            calls.send((found, None))
