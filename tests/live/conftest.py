"""An index without rows, open to write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import velo
from tests.live.rows import DIM, SCHEMA


@pytest.fixture
def index(tmp_path: Path) -> Iterator[velo.Index]:
    with velo.create(tmp_path / "a.velo", dim=DIM, metadata=SCHEMA, threads=1) as made:
        yield made
