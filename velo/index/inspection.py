"""What an index is, what it costs, and whether its files are whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from velo import _native
from velo.folder.live import PART_FIRST
from velo.index.opened import Opened
from velo.index.verify import verify_folder
from velo.options import IO_CODES, PLAN_CODES
from velo.parts.part import Part
from velo.parts.rows import ROW
from velo.types import Float32Array

__all__ = ["BUDGETED", "Inspection", "device_dict"]

_PLANS: Final = {code: name for name, code in PLAN_CODES.items()}
_IO_NAMES: Final = {code: name for name, code in IO_CODES.items()}
_DTYPE_NAMES: Final = {0: "float32", 1: "float16", 2: "uint8", 3: "int8"}

#: The parts of its memory that an index's budget bounds.
BUDGETED: Final = ("codes", "links", "cache", "pages")


class Inspection(Opened):
    """The looks into :class:`velo.Index`."""

    def get_vectors(self, ids: Any, *, decoded: bool = False) -> Float32Array:
        """The stored vectors of some ids.

        Parameters
        ----------
        ids : array-like of shape (m,)
        decoded : bool
            Of rows whose vectors are not stored, what their codes tell: nearly the vector, of ``cosine`` its
            direction.

        Returns
        -------
        ndarray of shape (m, dim), float32
            In the space of the input.

        Raises
        ------
        UnknownIdError
        UnsupportedError
            The index was built without ``store_vectors=True``; not with `decoded`.

        Examples
        --------
        >>> index.get_vectors([3, 5]).shape
        (2, 32)
        """
        at = self._seen()
        with self._gate.inside():
            vectors: Float32Array = at._vectors(at._vertices(ids), decoded=decoded)
        return vectors

    def verify(self) -> int:
        """Check every file, as :func:`velo.verify` does.

        Returns
        -------
        int
            How many pages were checked.
        """
        with self._gate.inside():
            return verify_folder(self._folder.at)

    def _parts(self) -> tuple[Part, ...]:
        live = self._live
        return self._owned.parts if live is None else live.view().parts

    def info(self) -> dict[str, Any]:
        """What this index is and what it costs.

        Returns
        -------
        dict
            Among others ``n``, ``dim``, ``metric``, ``plan``, ``memory_bytes`` (by part), of them
            ``memory_within_budget_bytes`` (what a budget bounds: codes, links, cache, page directory) and
            ``memory_beside_budget_bytes`` (workers, filters and tombstones), ``cache_refused`` (the system
            refused memory for pages, so searches read them), ``disk_bytes`` (by file),
            ``column_bytes`` (mapped from the file as far as filters touch them), ``device``, and ``live``:
            what was changed since it was built, None where nothing was.

        Examples
        --------
        >>> info = index.info()
        >>> info["n"], info["dim"], info["metric"], info["columns"]
        (2000, 32, 'l2', ['label', 'price', 'brand', 'tags'])
        """
        with self._gate.inside():
            at = self if self._live is None else self._newest_searches()
            parts = self._parts()
            infos = [part.info() for part in parts]
        # What parts may differ in is told of the largest.
        info = max(infos, key=lambda one: int(one.n)) if infos else _native.new("velo_index_info")
        memory = {
            "codes": sum(int(one.memory_codes_bytes) for one in infos),
            "links": sum(int(one.memory_links_bytes) for one in infos),
            "cache": sum(int(one.memory_cache_bytes) for one in infos),
            "pages": sum(int(one.memory_pages_bytes) for one in infos),
            "workers": sum(int(one.memory_workers_bytes) for one in infos),
            "filters": at._filters.memory_bytes,
            "words": sum(part.words_bytes for part in parts),
        }
        if self._live is not None:
            with self._gate.inside():
                memory["live"] = self._live.memory_bytes
                memory["words"] += sum(one.words_bytes for one in self._newest_searches().seen.delta)
        return {
            "path": str(self.path),
            "uuid": _native.text(info.uuid),
            "n": at.n,
            "dim": self.dim,
            "metric": self.metric,
            "dtype": self._dtype_name(info),
            "ids": at._ids.kind,
            "columns": [] if at._metadata is None else list(at._metadata.column_names),
            "column_bytes": {} if at._metadata is None else at._metadata.bytes_by_column,
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
            "stores_vectors": all(part.stores_vectors for part in parts),
            "memory_bytes": memory,
            "memory_bytes_total": sum(memory.values()),
            "memory_within_budget_bytes": sum(memory[part] for part in BUDGETED),
            "memory_beside_budget_bytes": sum(memory.values()) - sum(memory[part] for part in BUDGETED),
            "memory_budget_bytes": sum(int(one.memory_budget_bytes) for one in infos) or None,
            "cache_refused": any(one.cache_refused for one in infos),
            "disk_bytes": _disk_bytes(self._folder.at),
            "live": self._live_info(),
            "device": device_dict(info.device),
        }

    def _live_info(self) -> dict[str, Any] | None:
        live = self._live
        if live is None:
            return None
        with self._gate.inside():
            info = live.info()
            # A flush changes both before this process looks at them anew: they are told of one view.
            view = self._newest_searches().seen
            dead = [
                0 if alive.rows is None else part.n - alive.rows.count()
                for part, alive in zip(view.parts, view.alive, strict=True)
            ]
            parts = [
                {
                    "path": part.name or PART_FIRST,
                    "n": part.n,
                    "dead": of_part,
                    "bytes": sum(_disk_bytes(part.folder).values()) if part.name else None,
                }
                for part, of_part in zip(view.parts, dead, strict=True)
            ]
        return {
            "writable": bool(info.is_writable),
            "durability": live.durability,
            "numbered": live.shape().id_kind == ROW,
            "sequence": int(info.sequence),
            "dead": sum(dead) + view.native.delta_dead,
            "parts": parts,
            "delta": {
                "n": view.native.delta_rows,
                "dead": view.native.delta_dead,
                "bytes": int(info.delta_bytes),
                "bytes_max": int(info.delta_bytes_max),
            },
            "pressure": min(1.0, int(info.delta_bytes) / max(1, int(info.delta_bytes_max))),
            "upkeep_failure": None
            if self._upkeep is None or self._upkeep.failure is None
            else str(self._upkeep.failure),
            "log_bytes": int(info.log_bytes),
            "log_durable_bytes": int(info.log_synced_bytes),
        }

    def _dtype_name(self, info: Any) -> str:
        live = self._live
        if live is None:
            return _DTYPE_NAMES.get(info.dtype, "unknown")
        return str(live.shape().dtype)


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
