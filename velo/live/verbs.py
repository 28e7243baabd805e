"""What :class:`velo.Index` does to its rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from velo.errors import InvalidArgumentError, ReadOnlyError
from velo.filters.compiler import FilterCompiler
from velo.folder.ids import Ids, checked_ids
from velo.folder.live import is_live
from velo.live.data import LiveData, View
from velo.results import Written
from velo.types import AnyArray

__all__ = ["LiveVerbs"]


class LiveVerbs:
    """The verbs of :class:`velo.Index` that change rows, or look at what others changed."""

    path: Path
    n: int
    _ids: Ids
    _filters: FilterCompiler
    _gate: Any
    _live: LiveData | None
    _refreshing: threading.Lock
    _own: Callable[[LiveData], None]

    def delete(self, ids: Any = None, *, filter: Any = None) -> Written:  # noqa: A002
        """Delete rows by id, or all that pass a filter.

        The call is atomic: all of its rows are gone or none, for searches that begin and after a crash. When
        it returns no search that begins finds them; searches under way may. The rows' room on disk and in
        memory is not given back.

        Parameters
        ----------
        ids : array-like of the index's kind of id, or one id
            Ids that no row has are counted in ``missing`` and are no error.
        filter : expression, dict, SQL text, mask or ids
            As for :meth:`search`; a mask is over the rows that were built.

        Returns
        -------
        Written

        Raises
        ------
        ReadOnlyError
            The index was opened without ``writable=True``.
        InvalidArgumentError
            Both were given, or neither; ids of another kind.
        FilterError, NoSpaceError
        DeviceError
            The write failed. Where a sync did, the index takes no further writes until it is opened again.

        Examples
        --------
        >>> with velo.open("shop.velo", writable=True) as index:
        ...     done = index.delete([17, 18, 1_000_000])
        ...     print(done.rows, "deleted,", done.missing, "not there,", len(index), "left")
        2 deleted, 1 not there, 1998 left
        """
        if (ids is None) == (filter is None):
            raise InvalidArgumentError("delete takes ids or a filter, and one of them", argument="ids")
        with self._gate:
            live = self._live
            if live is None or live.durability is None:
                raise ReadOnlyError(f"{self.path} was opened to read: open it with writable=True")
            if filter is not None:
                done, asked = live.delete_vertices(self._matching(live.view(), filter)), None
            else:
                column = checked_ids([ids] if isinstance(ids, str | int | np.integer) else ids)
                self._ids.check_kind(column, "ids")
                distinct = np.unique(column) if isinstance(column, np.ndarray) else pc.unique(column)
                done, asked = live.delete_ids(column), len(distinct)
        rows = int(done.rows)
        return Written(
            rows=rows,
            missing=0 if asked is None else asked - rows,
            sequence=int(done.sequence),
            durable=bool(done.durable),
        )

    def _matching(self, view: View, condition: Any) -> AnyArray:
        passing = view.applied([self._filters.compile(condition)])[0]
        assert passing is not None
        return np.flatnonzero(passing.matches()).astype(np.uint32)

    def refresh(self) -> bool:
        """See what another process has written since this index was opened, or refreshed.

        Returns
        -------
        bool
            Whether there was anything.

        Raises
        ------
        UnsupportedError
            The folder holds another index by now; open it again.
        CorruptIndexError, DeviceError
        """
        with self._gate:
            return self._refreshed()

    def _refreshed(self) -> bool:
        with self._refreshing:
            if self._live is not None:
                return self._live.refresh()
            if not is_live(self.path):
                return False
            live = LiveData(self.path)
            try:
                live.begin(self._ids)
                changed = live.info().sequence > 0
            except BaseException:
                live.close()
                raise
            self._own(live)
            return bool(changed)

    def flush(self) -> None:
        """Put everything that was written on the device, whatever ``durability`` says.

        Raises
        ------
        ReadOnlyError, DeviceError
        """
        with self._gate:
            if self._live is None or self._live.durability is None:
                raise ReadOnlyError(f"{self.path} was opened to read: open it with writable=True")
            self._live.flush()
