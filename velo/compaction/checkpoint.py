"""Checkpoints of large merges on disk, so that the next writer resumes a merge that was killed.

A segment is built in ``merge-NUMBER`` and gets its name when it is complete. ``merge-NUMBER.json`` beside it
names the segments it is made from, and their rows. Segments never change, so no more is needed. Rows deleted
since are deleted in the new segment from its first moment.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from velo.compaction.sources import Sources
from velo.folder.leftovers import MARKER
from velo.folder.manifest import MANIFEST_FILE
from velo.folder.replace import durable_file, sync_folder
from velo.segments.view import View

__all__ = ["MergeCheckpoint"]

_STEM: Final = "merge-"
_SEGMENT_STEM: Final = "part-"
#: Names of our files; others may have put anything else into the folder.
_OURS: Final = re.compile(rf"{_STEM}[0-9a-f]{{16}}(\.json(\.part)?)?")


@dataclass(frozen=True)
class MergeCheckpoint:
    """An unfinished merge.

    Attributes
    ----------
    folder : Path
        The folder in which its segment is built.
    segments : list of (str, int)
        Uuid and rows of each of its sources.
    taken : bytes
        As ``Sources.taken``.
    """

    folder: Path
    segments: list[tuple[str, int]]
    taken: bytes

    @classmethod
    def begin(cls, index: Path, name: str, sources: Sources) -> MergeCheckpoint:
        """Record the rows that a merge takes of an index, and the folder in which it builds `name`."""
        segments = [sources.view.segments[number] for number in sources.segments]
        begun = cls(
            index / name.replace(_SEGMENT_STEM, _STEM, 1),
            [(segment.uuid, segment.n) for segment in segments],
            sources.taken().tobytes(),
        )
        body = begun._body()
        with durable_file(begun._file) as file:
            file.write(json.dumps({**body, "checksum": _checksum(body)}).encode())
        sync_folder(index)
        return begun

    @classmethod
    def find(cls, index: Path) -> MergeCheckpoint | None:
        """The merge that was begun in an index; what is left of others, or is damaged, is removed."""
        ours = [path for path in index.glob(f"{_STEM}*") if _OURS.fullmatch(path.name)]
        files = sorted((path for path in ours if path.suffix == ".json"), reverse=True)
        found = next((one for one in map(cls._read, files) if one is not None), None)
        for path in ours:
            if found is not None and path in (found.folder, found._file):
                continue
            with contextlib.suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        return found

    @property
    def segment_name(self) -> str:
        """The planned name of its segment; higher numbers are free."""
        return self.folder.name.replace(_STEM, _SEGMENT_STEM, 1)

    @property
    def is_built(self) -> bool:
        """Whether nothing is left to do but to put the segment into its place."""
        return (self.folder / MANIFEST_FILE).is_file() and not (self.folder / MARKER).exists()

    def sources(self, view: View, names: list[str]) -> Sources | None:
        """Its sources, by their numbers in a view; None if one of them no longer exists."""
        numbers = {(segment.uuid, segment.n): number for number, segment in enumerate(view.segments)}
        if not all(segment in numbers for segment in self.segments):
            return None
        segments = [numbers[segment] for segment in self.segments]
        if segments != sorted(set(segments)):
            return None
        bits = np.unpackbits(np.frombuffer(self.taken, np.uint8), bitorder="little").astype(bool)
        starts = np.cumsum([0, *(segment.n for segment in view.segments)])
        vertices = []
        at = 0
        for number, (_, rows) in zip(segments, self.segments, strict=True):
            vertices.append(starts[number] + np.flatnonzero(bits[at : at + rows]))
            at += -(-rows // 64) * 64
        return Sources(view, names, segments, np.concatenate(vertices), with_delta=False)

    def remove(self) -> None:
        """It ended, or cannot go on."""
        with contextlib.suppress(OSError):
            self._file.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _file(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.json")

    def _body(self) -> dict[str, Any]:
        return {"parts": self.segments, "taken": base64.b64encode(self.taken).decode()}

    @classmethod
    def _read(cls, file: Path) -> MergeCheckpoint | None:
        """The contents of a file; None if it is damaged."""
        try:
            body = json.loads(file.read_bytes())
            checksum = body.pop("checksum")
            if checksum != _checksum(body):
                return None
            segments = [(str(uuid), int(rows)) for uuid, rows in body["parts"]]
            taken = base64.b64decode(body["taken"], validate=True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if not segments or len(taken) != sum(-(-rows // 64) * 8 for _, rows in segments):
            return None
        return cls(file.with_name(file.name.removesuffix(".json")), segments, taken)


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
