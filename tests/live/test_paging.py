"""Pages of rows fit together whatever happens between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo

DIM = 4


@pytest.mark.parametrize("as_text", [False, True])
def test_every_row_comes_once_while_segments_are_merged(
    tmp_path: Path, random: np.random.Generator, as_text: bool
) -> None:
    def named(number: int) -> Any:
        return f"row {number:04}" if as_text else number

    stays = [one for one in range(300) if one % 7]
    with velo.create(tmp_path / "i", dim=DIM, threads=1) as index:
        numbers = random.permutation(300)
        for first in range(0, 300, 60):
            ids = [named(int(one)) for one in numbers[first : first + 60]]
            index.insert(random.normal(size=(60, DIM)).astype(np.float32), ids)
            if first < 240:
                index.flush()
        found: list[Any] = []
        turn = 0
        while True:
            page = index.rows(limit=23, after=found[-1] if found else None)["id"].to_pylist()
            found += page
            if len(page) < 23:
                break
            turn += 1
            if turn == 2:
                index.delete([named(one) for one in range(0, 300, 7)])
                index.optimize()
            elif turn == 4:  # the rows are where they are not: elsewhere
                again = [named(one) for one in stays[::5]]
                index.upsert(random.normal(size=(len(again), DIM)).astype(np.float32), again)
            elif turn == 6:
                index.flush()
    assert found == sorted(found)
    assert len(found) == len(set(found))
    assert {named(one) for one in stays} <= set(found)
