"""One sdist and the wheel made from it, for all tests of this folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from packaging_help import run

from tests import long


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder)
    (path,) = folder.glob("veloann-*.tar.gz")
    return path


@pytest.fixture(scope="session")
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the checkout, whose compiled parts lie in the cache; in a long run from the sdist, to prove
    that whole; or a finished one that VELO_WHEEL names.
    """
    if finished := os.environ.get("VELO_WHEEL"):
        return Path(finished).resolve()
    folder = tmp_path_factory.mktemp("wheel")
    if long.long_run:
        sdist = request.getfixturevalue("sdist")
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder, sdist)
    else:
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (path,) = folder.glob("veloann-*.whl")
    return path
