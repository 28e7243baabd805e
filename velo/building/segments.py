"""Segments of live data: ordinary indexes, which store their vectors if all of them are known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from velo.building.build import WarmStart, Watch, build_shard
from velo.formats.files import as_source
from velo.options import (
    METRIC_CODES,
    BuildOptions,
    memory_bytes,
    sizes_of,
)
from velo.segments.segment import Segment
from velo.types import AnyArray, Memory

__all__ = ["build_segment"]

_METRICS: Final = {code: name for name, code in METRIC_CODES.items()}


def build_segment(
    path: Path,
    vectors: Any,
    *,
    ids: Any,
    metadata: Any,
    metric: int,
    like: Segment | None,
    calibration: Mapping[str, Any] | None,
    warm_start: tuple[Path, AnyArray] | None,
    store_vectors: bool,
    threads: int | None,
    build_memory: Memory | None,
    search_bytes: int,
    search_memory: Memory | None,
    nice: int,
    gives_way: bool,
    resume: bool,
    watch: Watch | None,
) -> None:
    """Build a segment of live data.

    Parameters
    ----------
    metric : int
        By its number in velo.h.
    like : Segment, optional
        A segment whose bits and degree this one gets.
    calibration : dict, optional
        Of that segment, adopted where it holds for this one.
    former : tuple of Path and ndarray of shape (n,), uint32, optional
        A segment whose rows are among these, and their numbers here: the graph starts from its graph.
    store_vectors : bool
        Whether these are the vectors as given. Otherwise some rows were decoded from codes, and the segment
        stores no vectors.
    search_bytes : int
        Memory of the segment once it is searched.
    search_memory : int, float or str, optional
        Memory of the index: it chooses the bits of a first segment, so that it opens.
    nice : int
        Of the threads that link and place.
    gives_way : bool
        They run while processors are idle.
    resume : bool
        Resume a killed build of it, and record progress for that.
    watch : callable, optional
        Called with (stage, done, total); False ends the build.
    """
    how: dict[str, Any] = {}
    if like is not None:
        info = like.info()
        how = {
            "memory_bits": int(info.memory_bits),
            "record_bits": int(info.record_bits),
            "degree": int(info.degree),
            "links_kept": int(info.links_built),
            "page_links": bool(info.page_links),
            "page_codes": bool(info.page_codes),
        }
    else:
        how = _for_share(search_memory, *vectors.shape)
    # The seed is in the uuid of an index, and no two segments have the same.
    seed = int(path.name.rpartition("-")[2], 16)
    options = BuildOptions(
        metric=_METRICS[metric], threads=threads, seed=seed, store_vectors=store_vectors, **how
    )
    build_shard(
        path,
        as_source(vectors),
        options,
        ids=ids,
        metadata=metadata,
        build_memory=build_memory,
        search_bytes=search_bytes,
        resume=resume,
        transient=not resume,
        calibration=calibration,
        warm_start=None if warm_start is None else WarmStart(*warm_start),
        decoded=not store_vectors,
        nice=nice,
        gives_way=gives_way,
        watch=watch,
    )


def _for_share(memory: Memory | None, row_count: int, dim: int) -> dict[str, Any]:
    """Options with which rows open within a share of themselves, where the usual bits have no room.

    A number of bytes says nothing: more rows will come.
    """
    budget = memory_bytes(memory, row_count, dim)
    is_share = memory_bytes(memory, 2 * row_count, dim) > budget
    usual = sizes_of(row_count, dim)
    is_short = usual.page_codes_least_bytes <= budget < usual.needed_bytes
    return {"search_memory": memory} if is_share and is_short else {}
