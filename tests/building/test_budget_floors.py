"""Budgets that follow from shares: indexes of many sizes, shares and dtypes are built and searched."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import numpy as np
import pytest

import velo
from tests.long import count
from velo.errors import BudgetTooSmallError
from velo.types import AnyArray

ROWS = (1, 2, 3, 5, 17, 100, 999, 5_000)
DIMS = (1, 2, 5, 31, 64, 130, 384, 768, 1_536)
SHARES = ("0.3%", "1%", "2%", "6%", "20%", "50%", "100%")
DTYPES = ("float32", "float16", "uint8", "int8")
#: The dimensions and dtypes of one test: all, or in the long run one of each.
PARTS = [((dim,), (dtype,)) for dim in DIMS for dtype in DTYPES] if count(0, 1) else [(DIMS, DTYPES)]


def made(rows: int, dim: int, dtype: str, seed: int) -> AnyArray:
    values = np.random.default_rng(seed).integers(0, 100, (rows, dim))
    return values.astype(dtype)


@pytest.mark.timeout(count(300, 900))
@pytest.mark.parametrize(("dims", "dtypes"), PARTS)
def test_derived_budgets_never_fail(tmp_path: Path, dims: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    seed = int(os.environ.get("VELO_TEST_SEED", random.randrange(2**32)))
    draw = random.Random(seed)
    cases = list(itertools.product(ROWS, dims, SHARES, dtypes))
    small = [case for case in cases if case[0] < 1_000 and case[0] * case[1] <= 100_000]
    for place, case in enumerate(draw.sample(cases, 7) if count(0, 1) else draw.sample(small, 25)):
        rows, dim, share, dtype = case
        said = f"VELO_TEST_SEED={seed}: rows={rows} dim={dim} share={share} dtype={dtype}"
        path = tmp_path / f"{place}.velo"
        try:
            velo.build(path, made(rows, dim, dtype, 1), search_memory=share, threads=1).close()
            with velo.open(path, memory=share, threads=1, writable=True, durability="process") as index:
                index.insert(made(7, dim, dtype, 2))
                index.upsert(made(1, dim, dtype, 3), ids=[0])
                index.flush()
                index.optimize()
            with velo.open(path, memory=share, threads=1) as index:
                assert len(index.search(made(1, dim, dtype, 1)[0], k=3).ids) == 3
                assert len(index) == rows + 7, said
        except velo.VeloError as error:
            pytest.fail(f"{said}: {error!r}")


@pytest.mark.parametrize("memory", ["100%", 1.0])
def test_two_rows_open_within_a_share(tmp_path: Path, memory: str | float) -> None:
    velo.build(tmp_path / "a.velo", made(2, 4, "float32", 1), threads=1).close()
    with velo.open(tmp_path / "a.velo", memory=memory, threads=1) as index:
        assert index.search(made(2, 4, "float32", 1)[0], k=1).ids[0] == 0
    with pytest.raises(BudgetTooSmallError):
        velo.open(tmp_path / "a.velo", memory=32, threads=1)


def test_one_call_of_many_rows_within_a_small_memory(tmp_path: Path) -> None:
    rows = count(30_000, 110_000)  # a segment of these takes more to make than once it is open
    with velo.create(
        tmp_path / "a.velo", dim=4, memory=count(600_000, 2_000_000), threads=1, durability="process"
    ) as index:
        index.insert(made(rows, 4, "float32", 1))
        assert len(index) == rows
