"""Indexes of earlier formats open and are searched as before."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import velo
from velo.testing import brute_force, recall_at_k

#: Format 6: page codes are upper codes, and pages have no tables. Its rows are below.
FORMAT_6 = Path(__file__).parent / "format6.zip"


def rows() -> np.ndarray:
    return np.random.default_rng(6).integers(-50, 50, (600, 16)).astype(np.float32)


@pytest.fixture
def older(tmp_path: Path) -> Path:
    shutil.unpack_archive(FORMAT_6, tmp_path / "index")
    return tmp_path / "index"


def test_format_6_is_whole(older: Path) -> None:
    velo.verify(older)


@pytest.mark.parametrize("memory", [None, 8_000, 6_500, 4_500, 1_500])
def test_format_6_is_searched_within_every_budget(older: Path, memory: int | None) -> None:
    queries = np.random.default_rng(7).integers(-50, 50, (50, 16)).astype(np.float32)
    with velo.open(older, memory=memory, threads=1) as index:
        if memory is not None and memory < 5_000:
            assert index.info()["page_codes_kept"] >= 1
        found = index.search(queries, 10, list_size=60)
        assert recall_at_k(found.ids, brute_force(rows(), queries, 10).ids) > 0.9
