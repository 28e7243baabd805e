"""LIKE by a plain model: in all dresses, with backslashes that escape and that are escaped."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from velo import col

_LETTERS = ["a", "b", "B", "\\", "%", "_", "\n", "é", ".", "*", "\0", "(", " "]


def fits(pattern: str, text: str, any_case: bool = False) -> bool:
    """``%`` is any text, ``_`` one character, and a backslash takes the next character for itself."""
    if any_case:
        pattern, text = pattern.lower(), text.lower()
    letters = iter(pattern)
    tokens = [
        (next(letters, letter), True) if letter == "\\" else (letter, letter not in "%_")
        for letter in letters
    ]

    @cache
    def rest(token: int, at: int) -> bool:
        if token == len(tokens):
            return at == len(text)
        letter, is_itself = tokens[token]
        if not is_itself and letter == "%":
            return rest(token + 1, at) or (at < len(text) and rest(token, at + 1))
        return at < len(text) and (not is_itself or letter == text[at]) and rest(token + 1, at + 1)

    return rest(0, 0)


def drawn(draw: np.random.Generator, letters: list[str], most: int) -> str:
    return "".join(letters[at] for at in draw.integers(len(letters), size=draw.integers(most + 1)))


def test_every_dress_matches_what_a_plain_model_does(make_world: Any, random: np.random.Generator) -> None:
    texts = sorted(
        {drawn(random, _LETTERS, 5) for _ in range(200)} | {"a\\b", "\\", "\\\\", "C:\\a", "ab", ""}
    )
    world = make_world(pa.table({"text": [*texts, None]}))
    weighted = [*_LETTERS, *["\\", "%", "_", "a", "b"] * 2]
    patterns = [drawn(random, weighted, 6) for _ in range(100)]
    patterns += [
        "%a\\\\b%",
        "a\\\\b%",
        "%a\\\\b",
        "\\\\",
        "\\%",
        "%\\%",
        "%\\\\%",
        "\\_",
        "%",
        "",
        "_",
        "a\\",
    ]
    for pattern in patterns:
        for any_case in (False, True):
            wanted = [*(fits(pattern, text, any_case) for text in texts), False]
            key = "$ilike" if any_case else "$like"
            dresses: list[Any] = [
                col("text").ilike(pattern) if any_case else col("text").like(pattern),
                {"text": {key: pattern}},
                json.dumps({"text": {key: pattern}}),
            ]
            escapes_nothing = (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1
            if not escapes_nothing and "\0" not in pattern:
                word, quoted = key[1:].upper(), pattern.replace("'", "''")
                dresses.append(f"text {word} '{quoted}' ESCAPE '\\'")
            for dress in dresses:
                assert world.passing(dress).tolist() == wanted, (pattern, dress)


@pytest.mark.parametrize("manner", ["expression", "dict", "sql"])
def test_windows_paths(tmp_path: Path, manner: str) -> None:
    paths = ["C:\\a\\b.txt", "C:\\a_b.txt", "C:a\\b", "D:\\a\\b.txt", "C:\\\\a", "C:/a/b.txt"]
    pattern = "%\\\\a\\\\b%"
    condition: Any = {
        "expression": col("path").like(pattern),
        "dict": {"path": {"$like": pattern}},
        "sql": "path LIKE '%\\a\\b%'",
    }[manner]
    schema = pa.schema([("path", pa.string())])
    with velo.create(tmp_path / "a.velo", dim=4, metadata=schema) as index:
        index.insert(np.eye(6, 4, dtype=np.float32), metadata={"path": paths})
        assert index.delete(filter=condition).rows == 2
        assert sorted(index.rows()["path"].to_pylist()) == sorted([*paths[1:3], *paths[4:]])
