"""One site for all tests of this folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.runner import ROOT, environment


def build_site(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site with the words of ./dev docs; its warnings are errors."""
    words = re.findall(r"-m (mkdocs build .*) \"\$@\"", (ROOT / "dev").read_text())
    assert len(words) == 1
    return subprocess.run(
        [sys.executable, "-m", *words[0].split(), "-f", config, "-d", site],
        cwd=ROOT,
        env=environment() | {"NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    done = build_site(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr[-8000:]
    return folder


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that the test runs in."""
    monkeypatch.chdir(tmp_path)
    assert not os.listdir()
    return tmp_path
