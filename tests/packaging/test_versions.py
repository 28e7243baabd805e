"""One version, written once; the others follow it."""

from __future__ import annotations

import re
from importlib.metadata import version

from packaging_help import ROOT, project_version

import velo
from velo._native import ffi, lib


def test_installed_package_agrees_with_the_source() -> None:
    assert velo.__version__ == project_version() == version("veloann")


def test_library_agrees_with_the_source() -> None:
    assert ffi.string(lib.velo_version()).decode() == project_version()


def test_changelog_speaks_of_this_version() -> None:
    assert f"## {project_version()}" in (ROOT / "CHANGELOG.md").read_text()


def test_dev_installs_what_the_build_requires() -> None:
    """`dev` builds without isolation, in an environment that has these alone."""
    [listed] = re.findall(r"(?m)^requires = \[(.*)\]$", (ROOT / "pyproject.toml").read_text())
    required = re.findall(r'"([^"]+)"', listed)
    assert "ziglang==0.15.2" in required
    assert [one for one in required if f"'{one}'" not in (ROOT / "dev").read_text()] == []
