"""The description of an open folder: its shape, its memory, its files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from velo import _native
from velo.folder.live import SEGMENT_FIRST
from velo.index.folder import OpenFolder
from velo.options import IO_CODES, METRIC_CODES, PLAN_CODES
from velo.segments.rows import ROW
from velo.segments.view import View

__all__ = ["BUDGETED", "device_dict", "index_info"]

_PLANS: Final = {code: name for name, code in PLAN_CODES.items()}
_IO_NAMES: Final = {code: name for name, code in IO_CODES.items()}
_METRICS: Final = {code: name for name, code in METRIC_CODES.items()}

#: The kinds of memory that an index's budget bounds.
BUDGETED: Final = ("codes", "links", "cache", "pages")


def index_info(folder: OpenFolder, view: View) -> dict[str, Any]:
    """The result of :meth:`velo.Index.info` for one folder.

    Parameters
    ----------
    folder : OpenFolder
    view : View
        Its rows now.
    """
    segments = view.segments
    infos = [segment.info() for segment in segments]
    # Where segments differ the largest is described.
    info = max(infos, key=lambda one: int(one.n)) if infos else _native.new("velo_index_info")
    is_built = folder.is_built
    memory = {
        "codes": sum(int(one.memory_codes_bytes) for one in infos),
        "links": sum(int(one.memory_links_bytes) for one in infos),
        "cache": sum(int(one.memory_cache_bytes) for one in infos),
        "pages": sum(int(one.memory_pages_bytes) for one in infos),
        "workers": sum(int(one.memory_workers_bytes) for one in infos),
        "filters": view.filters.memory_bytes,
        "words": sum(segment.words_bytes for segment in segments)
        + sum(one.words_bytes for one in view.delta),
    }
    if not is_built:
        memory["live"] = folder.live.memory_bytes
    within = sum(memory[name] for name in BUDGETED)
    path = folder.opened.path
    return {
        "path": str(path),
        "uuid": _native.text(info.uuid),
        "n": view.n,
        "dim": view.shape.dim,
        "metric": _METRICS[int(folder.live.info().metric)],
        "dtype": str(view.shape.dtype),
        "ids": view.ids.kind,
        "columns": [] if view.metadata is None else list(view.metadata.column_names),
        "column_bytes": {} if view.metadata is None else view.metadata.bytes_by_column,
        "memory_bits": int(info.memory_bits),
        "record_bits": int(info.record_bits),
        "degree": int(info.degree),
        "links_built": int(info.links_built),
        "links_kept": int(info.links_kept),
        "page_size": int(info.page_size),
        "page_count": sum(int(one.page_count) for one in infos),
        "records_per_page": float(info.records_per_page),
        "page_links": bool(info.page_links),
        "page_codes": bool(info.page_codes),
        "page_codes_kept": int(info.page_codes_kept),
        "edges_per_vertex": float(info.edges_per_vertex),
        "adjacency_bits_per_edge": float(info.adjacency_bits_per_edge),
        "plan": _PLANS.get(info.plan, "unknown") if infos else "scan",
        "threads": int(info.threads),
        "queries_in_flight": int(info.queries_in_flight),
        "stores_vectors": all(segment.stores_vectors for segment in segments),
        "memory_bytes": memory,
        "memory_bytes_total": sum(memory.values()),
        "memory_within_budget_bytes": within,
        "memory_beside_budget_bytes": sum(memory.values()) - within,
        "memory_budget_bytes": sum(int(one.memory_budget_bytes) for one in infos) or None,
        "cache_refused": any(one.cache_refused for one in infos),
        "disk_bytes": _disk_bytes(folder.opened.at),
        "live": None if is_built else _live_info(folder, view),
        "device": device_dict(info.device),
    }


def _live_info(folder: OpenFolder, view: View) -> dict[str, Any]:
    """The changes since the folder was built."""
    live, compactor = folder.live, folder.compactor
    info = live.info()
    dead = [
        0 if alive.rows is None else segment.n - alive.rows.count()
        for segment, alive in zip(view.segments, view.alive, strict=True)
    ]
    segments = [
        {
            "path": segment.name or SEGMENT_FIRST,
            "n": segment.n,
            "dead": of_segment,
            "bytes": sum(_disk_bytes(segment.folder).values()) if segment.name else None,
        }
        for segment, of_segment in zip(view.segments, dead, strict=True)
    ]
    return {
        "writable": bool(info.is_writable),
        "durability": live.durability,
        "numbered": live.shape().id_kind == ROW,
        "sequence": int(info.sequence),
        "dead": sum(dead) + view.native.delta_dead,
        "parts": segments,
        "delta": {
            "n": view.native.delta_rows,
            "dead": view.native.delta_dead,
            "bytes": int(info.delta_bytes),
            "bytes_max": int(info.delta_bytes_max),
        },
        "pressure": min(1.0, int(info.delta_bytes) / max(1, int(info.delta_bytes_max))),
        "upkeep_failure": None if compactor is None or compactor.failure is None else str(compactor.failure),
        "log_bytes": int(info.log_bytes),
        "log_durable_bytes": int(info.log_synced_bytes),
    }


def _disk_bytes(folder: Path) -> dict[str, int]:
    """Of each file; one that a build or a merge takes away meanwhile does not count."""
    found = {}
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            entry = Path(parent, name)
            with contextlib.suppress(FileNotFoundError):
                found[str(entry.relative_to(folder))] = entry.stat().st_size
    return found


def device_dict(device: Any) -> Mapping[str, Any]:
    """A ``velo_device_info`` as a dict."""
    return {
        "name": _native.text(device.name),
        "io": _IO_NAMES.get(device.io, "unknown"),
        "direct": bool(device.direct),
        "queue_depth": int(device.queue_depth),
        "uring_errno": int(device.uring_errno),
        "direct_errno": int(device.direct_errno),
        "reason": _native.text(device.reason),
        "advice": _native.text(device.advice),
    }
