"""What an open index holds, what a call that begins now sees of it, and its end."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from velo.errors import ClosedError, UnsupportedError
from velo.folder.live import is_live
from velo.folder.manifest import MANIFEST_FILE
from velo.folder.opened import OpenedFolder, shown
from velo.index.owned import Owned, begin, close_native
from velo.options import METRIC_CODES
from velo.parts.data import MOVED, LiveData
from velo.parts.gate import Gate
from velo.parts.part import OpenOptions, Part
from velo.search.prepared import PreparedOptions
from velo.search.searches import Searches
from velo.search.view_searches import ViewSearches
from velo.types import AnyArray, MetricName
from velo.upkeep.upkeep import Upkeep
from velo.words.file import Words
from velo.words.opening import settle_words

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Opened"]

_METRICS: Final[dict[int, MetricName]] = {code: name for name, code in METRIC_CODES.items()}  # type: ignore[misc]


class Opened(Searches):
    """An open folder, on which the looks and verbs of :class:`velo.Index` stand."""

    def __init__(
        self,
        folder: OpenedFolder,
        how: OpenOptions,
        reopen: partial[Any],
        parts: list[Part],
        live: LiveData | None,
    ) -> None:
        self.path: Path = folder.path
        self._folder = folder
        self._how = how
        self._reopen = reopen
        self._gate = Gate(str(folder.path))
        self._refreshing = threading.Lock()
        self._updating = threading.Lock()
        self._live: LiveData | None = None
        self._upkeep: Upkeep | None = None
        self._newest: ViewSearches | None = None
        self._owned = Owned(folder, parts)
        if live is None:
            self._take(parts[0])
            metric = parts[0].metric
        else:
            self._own(live)
            metric = int(live.info().metric)
            self.dim = live.shape().dim
        self.metric: MetricName = _METRICS[metric]
        self._finalizer = weakref.finalize(self, close_native, self._gate, self._owned)

    def _take(self, part: Part) -> None:
        """Searches are those of an index that is as it was built."""
        self.dim = part.dim
        self._single_shapes = ((self.dim,), (1, self.dim))
        self._handle, self._completions = part.handle, part.completions
        self._prepared = PreparedOptions(part)
        self._ids, self._metadata, self._filters = part.ids, part.metadata, part.filters

    def _own(self, live: LiveData) -> None:
        """Searches go by what the moment is."""
        self._owned.live = live
        if live.durability is not None:
            how = self._how
            settle_words(self._folder.at)

            def open_part(name: str, of_rows: int, beside: Part | None) -> Part:
                beside = next(iter(live.opened), beside)
                return Part(live.folder.at / name, how, of_rows, name, beside)

            upkeep = Upkeep(live, open_part, how.threads, how.merge_memory, how.memory)
            self._upkeep = self._owned.upkeep = upkeep
        self._live = live
        self._newest_searches()
        if self._upkeep is not None:
            self._upkeep.resume()

    @property
    def n(self) -> int:
        """Rows that were built, and that came since; dead ones among them."""
        if self._live is None:
            return self._owned.parts[0].n
        try:
            with self._gate.inside():
                return self._newest_searches().n
        except ClosedError:
            return 0 if self._newest is None else self._newest.n

    def _newest_searches(self) -> ViewSearches:
        """What a call that begins now sees, also of an index that is as it was built."""
        live = self._live
        if live is None:
            raise AssertionError("only live data has moments")
        view = live.view()
        newest = self._newest
        if newest is None or newest.seen is not view:
            newest = self._newest = ViewSearches(view, self._gate, weakref.WeakMethod(self.info))
        return newest

    def _seen(self) -> Searches:
        """What a call that begins now searches: itself, unless rows came or went."""
        if self._live is None:
            return self
        with self._gate.inside():
            return self._newest_searches()

    def _schema_of_rows(self) -> pa.Schema | None:
        live = self._live
        if live is None:
            return super()._schema_of_rows()
        with self._gate.inside():
            live.view()  # looks whether columns came
            schema: pa.Schema | None = live.schema
        return schema

    def _view(self) -> None:
        """All rows live."""

    def _word_stretches(self, column: str) -> Iterator[tuple[int, Words]]:
        yield 0, self._owned.parts[0].words(column)

    def _vectors(self, vertices: AnyArray, *, decoded: bool = False) -> AnyArray:
        part = self._owned.parts[0]
        return part.decoded(vertices) if decoded and not part.stores_vectors else part.vectors(vertices)

    def _refreshed(self) -> bool:
        with self._refreshing:
            live = self._live
            if live is not None:
                changed = live.refresh()
                if changed != MOVED:
                    return bool(changed)
                known: Sequence[Part] = live.opened
            else:
                folder = self._folder.at
                if not is_live(folder):
                    if (folder / MANIFEST_FILE).is_file() or is_live(folder):
                        return False
                    raise UnsupportedError(f"{self.path} was replaced by another index: open it again")
                known = self._owned.parts
            fresh, parts = begin(
                LiveData(self._folder), self._how, {(one.name, one.uuid): one for one in known}, None
            )
            changed_any = live is not None or fresh.info().sequence > 0 or self._lacks_columns_of(fresh)
            self._own(fresh)  # the former one is closed once nobody looks at it any more
            self._owned.parts = tuple(parts)
            return bool(changed_any)

    def _lacks_columns_of(self, live: LiveData) -> bool:
        """Whether columns were added since this was opened, as it was built."""
        own = [] if self._metadata is None else self._metadata.column_names
        return live.schema is not None and live.schema.names != own

    def close(self) -> None:
        """Stop the workers and give memory and files back; twice is once. Searches under way end first.

        Interrupted, it can be called again. In a forked child this does nothing: the index is its parent's.
        """
        close_native(self._gate, self._owned)
        self._finalizer.detach()

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._gate.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """Rows that live."""
        live = self._live
        if live is None:
            return self.n
        with self._gate.inside():
            return self._newest_searches().seen.live_count

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._reopen,)

    def __repr__(self) -> str:
        rows, state = (self.n, ", closed") if self._gate.closed else (len(self), "")
        return f"velo.Index({shown(self.path)!r}, n={rows}, dim={self.dim}, metric={self.metric!r}{state})"


def _reopened(reopen: partial[Any]) -> Any:
    return reopen()
