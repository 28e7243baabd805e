"""Tests beside an installed package: a folder of tests, and no checkout that they could import from."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Real descriptors, which tests and lives of an index use.
SAMPLE = ROOT / "examples" / "data"

#: What tests of files and kernels ask for, beside the package.
FEW = ("pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100", "h5py>=3.10")
#: What all tests of the library ask for, beside the package with ``[cli,sql]``.
REQUIREMENTS = (*FEW, "pandas>=2", "polars>=1")


def stage(folder: Path) -> None:
    """Copy tests, the sample and pytest's settings."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("tests", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copyfile(ROOT / "pyproject.toml", folder / "pyproject.toml")


def pytest(folder: str, tests: Sequence[str]) -> list[str]:
    """pytest's own words over a staged folder: velo comes from where it is installed."""
    settings = ("-c", f"{folder}/pyproject.toml", "-o", "pythonpath=.", "-p", "no:cacheprovider")
    return ["-m", "pytest", "-q", *settings, *(f"{folder}/{test}" for test in tests)]
