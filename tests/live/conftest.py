"""An index without rows, open to write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import velo
from tests.live.rows import DIM, SCHEMA
from velo.compaction import compactor


@pytest.fixture(scope="session", autouse=True)
def no_merge_by_itself() -> Iterator[None]:
    """Segments stay as a test made them; who tests merges in the background says when they begin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compactor, "_LATER_S", 3600.0)
        yield


@pytest.fixture
def index(tmp_path: Path) -> Iterator[velo.Index]:
    with velo.create(tmp_path / "a.velo", dim=DIM, metadata=SCHEMA, threads=1) as made:
        yield made
