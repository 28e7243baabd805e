"""Something happens at the n-th place at which Python would see a signal: an exception, a folder that moves.

Python looks for signals where a call has returned and where a function begins. Those places are counted in
every Python frame below a verb, velo's own, the standard library's and those of other packages; at one of
them ``act`` is called. Imports are left alone: half a module is no data.
"""

from __future__ import annotations

import dis
import errno
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

__all__ = ["Places", "interrupted", "places_of"]


@cache
def _calls(code: CodeType) -> frozenset[int]:
    """Where the calls of a function are."""
    return frozenset(one.offset for one in dis.get_instructions(code) if one.opname.startswith("CALL"))


class Places:
    """Counts places in the calling thread, and acts at one of them.

    Parameters
    ----------
    at : int
        The place; 0: none.
    act : callable
    """

    def __init__(self, at: int = 0, act: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self._at = at
        self._act = act
        self._before: dict[FrameType, int] = {}
        #: Python 3.11 goes on to use the function that it was given, also where that takes itself away.
        self._watching = (self._begin, self._step)

    def _begin(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if "importlib" in name or name == __file__ or frame.f_back is None:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._reach()
        return self._watching[1]

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            before = self._before.get(frame)
            self._before[frame] = frame.f_lasti
            if before in _calls(frame.f_code):
                self._reach()
        elif event == "return":
            self._before.pop(frame, None)
        return self._watching[1]

    def _reach(self) -> None:
        self.count += 1
        if self.count == self._at:
            sys.settrace(None)
            self._before.clear()
            self._act()

    def watch(self, verb: Callable[[], object]) -> None:
        """Call a verb; places are those below it."""
        hook = sys.unraisablehook
        sys.unraisablehook = lambda unraisable: None  # Python swallows signals there, too
        try:
            sys.settrace(self._watching[0])
            verb()
        finally:
            sys.settrace(None)
            self._before.clear()
            sys.unraisablehook = hook


def places_of(verb: Callable[[], object]) -> int:
    """How many places a verb has."""
    places = Places()
    places.watch(verb)
    return places.count


def interrupted(at: int, verb: Callable[[], object]) -> bool:
    """Interrupt a verb at a place; whether it came to its end all the same."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    try:
        Places(at, interrupt).watch(verb)
    except KeyboardInterrupt:
        return False
    except OSError as error:
        # Of Python 3.11: interrupted right after it has closed a folder, shutil.rmtree closes it once more.
        if error.errno != errno.EBADF or not isinstance(error.__context__, KeyboardInterrupt):
            raise
        return False
    return True
