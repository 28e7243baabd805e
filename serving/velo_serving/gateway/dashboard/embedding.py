"""From a text to the vector that is searched for, by a function of the user's own."""

from __future__ import annotations

import asyncio
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from velo.errors import DimensionMismatchError, InvalidArgumentError, UnsupportedError
from velo_serving.protocol.errors import DeadlineExceededError, EmbeddingError, QueueFullError
from velo_serving.protocol.types import Float32Matrix

#: Texts that wait for the function, which is called with one at a time.
WAITING_MAX: Final = 16


def load_embedding(name: str) -> Callable[[Sequence[str]], Any]:
    if name.count(":") != 1:
        raise InvalidArgumentError(f"embed reads 'MODULE:FUNCTION', not {name!r}", argument="embed")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        function: Any = pkgutil.resolve_name(name)
    except Exception as error:  # a module may raise anything
        raise InvalidArgumentError(
            f"the embedding function {name!r} cannot be imported: {type(error).__name__}: {error}",
            argument="embed",
        ) from error
    if not callable(function):
        raise InvalidArgumentError(f"{name!r} is a {type(function).__name__}, no function", argument="embed")
    loaded: Callable[[Sequence[str]], Any] = function
    return loaded


class Embedding:
    """Makes vectors of texts by a function from a list of texts to an array, or by the name of one."""

    def __init__(self, function: Callable[[Sequence[str]], Any] | str | None = None) -> None:
        self._function = load_embedding(function) if isinstance(function, str) else function
        self._turn = asyncio.Lock()
        self._waiting = 0

    def __bool__(self) -> bool:
        return self._function is not None

    async def vector(self, text: str, dim: int, timeout_s: float) -> Float32Matrix:
        if self._function is None:
            raise UnsupportedError("the server has no embedding function: velo serve --embed MODULE:FUNCTION")
        if self._waiting >= WAITING_MAX:
            raise QueueFullError(f"{self._waiting} texts wait for the embedding function already")
        work = asyncio.ensure_future(self._called(self._function, text))
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            made = await asyncio.wait_for(asyncio.shield(work), timeout_s)
        except (asyncio.TimeoutError, TimeoutError):
            raise DeadlineExceededError(f"the embedding function took more than {timeout_s:g} s") from None
        row = made.reshape(-1)
        if len(row) != dim:
            raise DimensionMismatchError(
                f"the embedding function makes vectors of {len(row)} dimensions, the collection has {dim}",
                argument="text",
            )
        return row.reshape(1, dim)

    async def _called(self, function: Callable[[Sequence[str]], Any], text: str) -> Float32Matrix:
        """Call the function, one text at a time; an abandoned call completes and delays the next one."""
        self._waiting += 1
        try:
            async with self._turn:
                made = await asyncio.to_thread(lambda: np.asarray(function([text]), np.float32))
        except Exception as error:
            raise EmbeddingError(
                f"the embedding function failed with {type(error).__name__}; the server's log says more"
            ) from error
        finally:
            self._waiting -= 1
        if made.ndim not in (1, 2) or (made.ndim == 2 and len(made) != 1) or not np.isfinite(made).all():
            raise EmbeddingError(f"the embedding function made no vector of a text, but {made.shape}")
        return made
