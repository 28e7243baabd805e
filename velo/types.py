"""Types in velo's signatures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

__all__ = [
    "AnyArray",
    "DtypeName",
    "DurabilityName",
    "Float32Array",
    "Float64Array",
    "FusionName",
    "Int64Array",
    "IoName",
    "Memory",
    "MetricName",
    "PathLike",
    "PlanName",
    "ProgressCallback",
    "UnknownColumns",
    "UnknownIds",
    "VectorSource",
    "VectorsLike",
]

AnyArray: TypeAlias = npt.NDArray[Any]
Float32Array: TypeAlias = npt.NDArray[np.float32]
Float64Array: TypeAlias = npt.NDArray[np.float64]
Int64Array: TypeAlias = npt.NDArray[np.int64]

PathLike: TypeAlias = str | os.PathLike[str]

MetricName: TypeAlias = Literal["l2", "ip", "cosine"]
DtypeName: TypeAlias = Literal["f32", "f16", "u8", "i8"]
IoName: TypeAlias = Literal["auto", "uring", "threads"]
#: ``"pages"`` is the former name of ``"walk"``.
PlanName: TypeAlias = Literal["auto", "links_in_memory", "links_on_disk", "walk", "pages"]
#: Treatment of columns that the metadata does not have, in filters.
UnknownColumns: TypeAlias = Literal["error", "missing"]
#: Treatment of unknown ids.
UnknownIds: TypeAlias = Literal["error", "skip"]
FusionName: TypeAlias = Literal["rrf", "weighted"]
DurabilityName: TypeAlias = Literal["sync", "interval", "process"]

#: A budget: bytes (int), a share of n·d·4 bytes (float, or "15%"), or a size ("2GiB").
Memory: TypeAlias = int | float | str

#: Called with (done, total), both in rows over all stages; returning False cancels.
ProgressCallback: TypeAlias = Callable[[int, int], "bool | None"]


@runtime_checkable
class VectorSource(Protocol):
    """Vectors that are read in chunks, as often as needed, and never held in memory as a whole.

    :func:`velo.build` accepts any object with these three members.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """(row_count, dim)."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the chunks."""
        ...

    def chunks(self, rows: int) -> Iterator[AnyArray]:
        """Yield all rows in order; a chunk is valid until the next one.

        Parameters
        ----------
        rows : int
            The most rows of a chunk.

        Yields
        ------
        ndarray of shape (at most rows, dim)
        """
        ...


#: Vectors for :func:`velo.build`: arrays, memmaps, Arrow list arrays, paths, sources.
VectorsLike: TypeAlias = "AnyArray | Sequence[Sequence[float]] | PathLike | VectorSource | Any"
