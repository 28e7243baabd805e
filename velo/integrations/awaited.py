"""Methods of stores, awaited."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

__all__ = ["awaited"]

P = ParamSpec("P")
R = TypeVar("R")


def awaited(
    method: Callable[Concatenate[Any, P], R], name: str | None = None
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The same method in a thread, so it does not block the event loop.

    Parameters
    ----------
    method : function
        Of a class; one that takes its place in a class below is what runs there.
    name : str, optional
        How it is called; that of the method and ``_async`` without it.
    """
    blocking = method.__name__

    @functools.wraps(method)
    async def asked(store: Any, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        answer: R = await asyncio.to_thread(getattr(store, blocking), *arguments, **keywords)
        return answer

    head, _, rest = (method.__doc__ or "").partition("\n")
    asked.__name__ = name or f"{blocking}_async"
    asked.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.{asked.__name__}"
    asked.__doc__ = f"{head.rstrip('.')}, without blocking the event loop; as ``{blocking}``.\n{rest}"
    return asked
