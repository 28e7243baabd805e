"""What searches are made over: the rows of an index, of a view, or of several shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from velo.errors import InvalidArgumentError, UnknownColumnError
from velo.filters.compiler import FilterCompiler
from velo.folder.ids import Ids
from velo.options import Effort
from velo.parts.gate import Gate
from velo.search.request import Request
from velo.types import AnyArray

__all__ = ["Searched"]


class Searched(ABC):
    """Rows with their ids, their columns and filters over them, and what answers requests to them."""

    dim: int
    _gate: Gate
    _ids: Ids
    _metadata: Any
    _filters: FilterCompiler

    @property
    @abstractmethod
    def n(self) -> int:
        """Rows, dead ones among them."""

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """What is searched, and what it costs."""

    @abstractmethod
    def _seen(self) -> Any:
        """What a call that begins now searches, all of it."""

    @abstractmethod
    def _view(self) -> Any:
        """The rows that live; None where all do, or where what answers requests knows."""

    @abstractmethod
    def _request(self, queries: Any, k: int, filters: Any, effort: Effort, view: Any = None) -> Request:
        """A request, checked."""

    @abstractmethod
    def _run(self, request: Request, argument: str = "queries") -> Request:
        """Let the library answer a request."""

    @abstractmethod
    async def _run_async(self, request: Request) -> Request:
        """The same without blocking the event loop."""

    @abstractmethod
    def _vectors(self, vertices: AnyArray, *, decoded: bool = False) -> AnyArray:
        """The stored vectors of some vertices; of those that have none what codes tell, if `decoded`."""

    def _check_open(self) -> None:
        """Refuse an index that is closed, or was opened before a fork."""
        if self._gate.forked or self._gate.closed:
            with self._gate.inside():  # says which
                pass

    def _columns(self, return_metadata: Sequence[str] | bool | None) -> list[str] | None:
        """The columns to return, checked before the search."""
        if return_metadata is None or return_metadata is False:
            return None
        known = [] if self._metadata is None else list(self._metadata.column_names)
        if return_metadata is True:
            return known
        if isinstance(return_metadata, str):
            return_metadata = [return_metadata]
        if not isinstance(return_metadata, Sequence):
            raise InvalidArgumentError(
                f"return_metadata is True or a list of columns, not {return_metadata!r}",
                argument="return_metadata",
            )
        wanted = list(return_metadata)
        for name in wanted:
            if name not in known:
                raise UnknownColumnError(
                    f"no column {name!r}; there are: {', '.join(known) or 'none'}", argument="return_metadata"
                )
        return wanted
