"""Segments stay as a test made them: what BM25 counts goes by them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from velo.compaction import compactor


@pytest.fixture(scope="session", autouse=True)
def no_merge_by_itself() -> Iterator[None]:
    """No merge begins in the background."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compactor, "_LATER_S", 3600.0)
        yield
