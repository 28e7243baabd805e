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

from velo.folder.leftovers import MARKER
from velo.folder.manifest import MANIFEST_FILE
from velo.folder.replace import durable_file, sync_folder
from velo.parts.view import View
from velo.upkeep.sources import Sources

__all__ = ["Begun"]

_STEM: Final = "merge-"
_PART_STEM: Final = "part-"
#: Names of our files; others may have put anything else into the folder.
_OURS: Final = re.compile(rf"{_STEM}[0-9a-f]{{16}}(\.json(\.part)?)?")


@dataclass(frozen=True)
class Begun:
    """An unfinished merge.

    Attributes
    ----------
    folder : Path
        The folder in which its segment is built.
    parts : list of (str, int)
        Uuid and rows of each of its sources.
    taken : bytes
        As ``Sources.taken``.
    """

    folder: Path
    parts: list[tuple[str, int]]
    taken: bytes

    @classmethod
    def begin(cls, index: Path, name: str, sources: Sources) -> Begun:
        """Write what the merge takes of an index, and where its part is built that is to be called `name`."""
        parts = [sources.view.parts[number] for number in sources.parts]
        begun = cls(
            index / name.replace(_PART_STEM, _STEM, 1),
            [(part.uuid, part.n) for part in parts],
            sources.taken().tobytes(),
        )
        body = begun._body()
        with durable_file(begun._file) as file:
            file.write(json.dumps({**body, "checksum": _checksum(body)}).encode())
        sync_folder(index)
        return begun

    @classmethod
    def find(cls, index: Path) -> Begun | None:
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
    def part_name(self) -> str:
        """The planned name of its segment; higher numbers are free."""
        return self.folder.name.replace(_STEM, _PART_STEM, 1)

    @property
    def is_built(self) -> bool:
        """Whether nothing is left to do but to put the part into its place."""
        return (self.folder / MANIFEST_FILE).is_file() and not (self.folder / MARKER).exists()

    def sources(self, view: View, names: list[str]) -> Sources | None:
        """Its sources, by their numbers in a view; None if one of them no longer exists."""
        numbers = {(part.uuid, part.n): number for number, part in enumerate(view.parts)}
        if not all(part in numbers for part in self.parts):
            return None
        parts = [numbers[part] for part in self.parts]
        if parts != sorted(set(parts)):
            return None
        bits = np.unpackbits(np.frombuffer(self.taken, np.uint8), bitorder="little").astype(bool)
        starts = np.cumsum([0, *(part.n for part in view.parts)])
        vertices = []
        at = 0
        for number, (_, rows) in zip(parts, self.parts, strict=True):
            vertices.append(starts[number] + np.flatnonzero(bits[at : at + rows]))
            at += -(-rows // 64) * 64
        return Sources(view, names, parts, np.concatenate(vertices), with_delta=False)

    def remove(self) -> None:
        """It ended, or cannot go on."""
        with contextlib.suppress(OSError):
            self._file.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _file(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.json")

    def _body(self) -> dict[str, Any]:
        return {"parts": self.parts, "taken": base64.b64encode(self.taken).decode()}

    @classmethod
    def _read(cls, file: Path) -> Begun | None:
        """The contents of a file; None if it is damaged."""
        try:
            body = json.loads(file.read_bytes())
            checksum = body.pop("checksum")
            if checksum != _checksum(body):
                return None
            parts = [(str(uuid), int(rows)) for uuid, rows in body["parts"]]
            taken = base64.b64decode(body["taken"], validate=True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if not parts or len(taken) != sum(-(-rows // 64) * 8 for _, rows in parts):
            return None
        return cls(file.with_name(file.name.removesuffix(".json")), parts, taken)


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
