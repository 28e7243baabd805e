"""The reader of ``manifest.json``: what it says of an index, and what it makes of damage."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from velo.errors import CorruptIndexError, NotAnIndexError
from velo.folder.manifest import Manifest, read_manifest

DOCUMENT: dict[str, Any] = {
    "n": 5,
    "dim": 3,
    "metric": "l2",
    "memory_bits": 4,
    "record_bits": 6,
    "page_count": 1,
    "files": [{"name": "pages.bin", "bytes": 8192}],
    "user": {"ids": "row", "first_row": 7, "metadata": {"generation": 2}},
}


def written(folder: Path, document: Any) -> Path:
    (folder / "manifest.json").write_text(document if isinstance(document, str) else json.dumps(document))
    return folder


def without(left: str) -> dict[str, Any]:
    return {name: value for name, value in DOCUMENT.items() if name != left}


def test_what_it_says(tmp_path: Path) -> None:
    manifest = read_manifest(written(tmp_path, DOCUMENT))
    assert manifest == Manifest(5, 3, "l2", 4, 6, 1, ("pages.bin",), DOCUMENT["user"], None)
    assert (manifest.first_row, manifest.generation) == (7, 2)
    table = {"version": 1}
    assert read_manifest(written(tmp_path, DOCUMENT | {"calibration": table})).calibration == table


@pytest.mark.parametrize("user", [None, {}, {"ids": "row"}])
def test_what_a_caller_did_not_keep_has_a_default(tmp_path: Path, user: Any) -> None:
    manifest = read_manifest(written(tmp_path, DOCUMENT | {"user": user}))
    assert (manifest.first_row, manifest.generation) == (0, 1)


def test_a_real_one(sample_path: Path) -> None:
    manifest = read_manifest(sample_path)
    assert (manifest.row_count, manifest.dim, manifest.metric) == (20_000, 128, "l2")
    there = {entry.name for entry in sample_path.iterdir()}
    assert {*manifest.files, "manifest.json"} == there


def test_none_at_all(tmp_path: Path) -> None:
    with pytest.raises(NotAnIndexError, match=r"has no manifest\.json"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "document",
    [
        *("", "{", "[]", "7", "null"),
        *(
            {name: value for name, value in DOCUMENT.items() if name != left}
            for left in DOCUMENT
            if left != "user"
        ),
        DOCUMENT | {"n": "many"},
        DOCUMENT | {"n": None},
        DOCUMENT | {"dim": float("inf")},
        DOCUMENT | {"files": [{"bytes": 1}]},
        DOCUMENT | {"files": 3},
        DOCUMENT | {"user": "me"},
        DOCUMENT | {"calibration": "x"},
        DOCUMENT | {"user": {"first_row": []}},
        DOCUMENT | {"user": {"metadata": 3}},
        DOCUMENT | {"user": {"metadata": {"generation": "x"}}},
    ],
)
def test_damage_names_the_file(tmp_path: Path, document: Any) -> None:
    with pytest.raises(CorruptIndexError) as caught:
        read_manifest(written(tmp_path, document))
    assert caught.value.file == "manifest.json"


def test_nothing_else_of_velo_reads_it(root: Path) -> None:
    naming = {
        path.relative_to(root).as_posix()
        for path in (root / "velo").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value == "manifest.json"
    }
    assert naming == {"velo/folder/manifest.py"}
