"""One source for what a client asks, blocking and awaited."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    import httpx

    from velo_serving.client.calls import ClientCall

__all__ = ["Asking", "awaited"]

P = ParamSpec("P")
R = TypeVar("R")


class Asking(ABC):
    """Who can ask a gateway; what is asked ends in ``return self._ask(…)``, and so it can be awaited, too."""

    @abstractmethod
    def _ask(self, method: str, path: str, call: ClientCall | None, read: Callable[[httpx.Response], R]) -> R:
        """Ask, and read the answer."""

    @abstractmethod
    async def _ask_async(
        self, method: str, path: str, call: ClientCall | None, read: Callable[[httpx.Response], R]
    ) -> R:
        """The same without blocking the event loop."""

    @abstractmethod
    def _path_of(self, what: str) -> str:
        """A path below the collection."""

    def _post(self, what: str, call: ClientCall, read: Callable[[dict[str, Any]], R]) -> R:
        """Ask a path below the collection, and read JSON."""
        return self._ask("POST", self._path_of(what), call, lambda told: read(told.json()))


class _Awaiting:
    """A client whose questions are awaited: all else is the client's own."""

    def __init__(self, client: Asking) -> None:
        self._client = client
        self._ask = client._ask_async

    def __getattr__(self, name: str) -> Any:
        of_class = getattr(type(self._client), name, None)
        # A method that asks on the way shall ask here, too.
        return (
            MethodType(of_class, self) if isinstance(of_class, FunctionType) else getattr(self._client, name)
        )


def awaited(
    function: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The same question, which does not block the event loop."""
    name = function.__name__

    def asked(client: Any, /, *arguments: P.args, **keywords: P.kwargs) -> Coroutine[Any, Any, R]:
        # What is wrong with arguments is told here, as by the other; the rest is awaited.
        question: Any = function(_Awaiting(client), *arguments, **keywords)
        return question  # type: ignore[no-any-return]

    head, _, rest = (function.__doc__ or "").partition("\n")
    functools.update_wrapper(asked, function)
    asked.__name__ = f"{name}_async"
    asked.__qualname__ = f"{function.__qualname__}_async"
    asked.__doc__ = f"{head.rstrip('.')}, without blocking the event loop; as ``{name}``.\n{rest}"
    return asked
