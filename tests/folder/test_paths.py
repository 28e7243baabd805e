"""A file in the way of an index, and a folder that is missing, are named in plain words by every call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import velo
from velo.folder.exchange import find_index

VECTORS = np.zeros((5, 4), np.float32)
READERS: dict[str, Callable[[Path], object]] = {
    "open": velo.open,
    "verify": velo.verify,
    "plans": velo.plans,
    "metadata": find_index,
}
MAKERS: dict[str, Callable[[Path], object]] = {
    "build": lambda path: velo.build(path, VECTORS),
    "overwrite": lambda path: velo.build(path, VECTORS, overwrite=True),
    "build_collection": lambda path: velo.build_collection(path, VECTORS, shards=2),
    "create": lambda path: velo.create(path, dim=4),
}


@pytest.mark.parametrize("name", READERS)
def test_what_reads_an_index(tmp_path: Path, name: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("notes")
    for path, why in (
        (file, "is a file, and an index is a folder"),
        (file / "a.velo", f"does not exist: {file} is a file"),
        (tmp_path / "none", "does not exist"),
    ):
        with pytest.raises(velo.NotAnIndexError, match=why):
            READERS[name](path)


@pytest.mark.parametrize("name", MAKERS)
def test_what_makes_an_index(tmp_path: Path, name: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("notes")
    with pytest.raises(velo.IndexExistsError, match="is a file, and an index is a folder"):
        MAKERS[name](file)
    for path, why in (
        (file / "a.velo", f"{file} is a file"),
        (tmp_path / "none" / "a.velo", "parent folder"),
    ):
        with pytest.raises(velo.InvalidArgumentError, match=why):
            MAKERS[name](path)
    assert file.read_text() == "notes"
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]
