"""What all tests share: seeds that are printed, sample data, a small built index."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "examples" / "data"


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def sample_folder() -> Path:
    """The sample of real descriptors."""
    return SAMPLE


@pytest.fixture
def random(request: pytest.FixtureRequest, record_property) -> np.random.Generator:
    """A seeded generator; VELO_TEST_SEED repeats a run, and the seed stands in the report of a failure."""
    seed = int(os.environ.get("VELO_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    record_property("seed", seed)
    print(f"VELO_TEST_SEED={seed}")
    return np.random.default_rng(seed)
