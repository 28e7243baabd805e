"""Asynchronous forms of the stores' methods."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

__all__ = ["awaited", "documented_by"]

P = ParamSpec("P")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Any])


def awaited(
    method: Callable[Concatenate[Any, P], R], name: str | None = None
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The method in a thread, so that it does not block the event loop; `name` or ``_async`` names it."""
    blocking = method.__name__

    @functools.wraps(method)
    async def asked(store: Any, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        answer: R = await asyncio.to_thread(getattr(store, blocking), *arguments, **keywords)
        return answer

    asked.__name__ = name or f"{blocking}_async"
    asked.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.{asked.__name__}"
    return documented_by(method)(asked)


def documented_by(blocking: Any) -> Callable[[Function], Function]:
    """Give an asynchronous method the docstring of its blocking form."""
    head, _, rest = (blocking.__doc__ or "").partition("\n")
    text = f"{head.rstrip('.')}, without blocking the event loop; as ``{blocking.__name__}``.\n{rest}"

    def documented(function: Function) -> Function:
        function.__doc__ = text
        return function

    return documented
