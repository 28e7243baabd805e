"""``progress=True``: a build says how far it is."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_on_stderr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(1).normal(size=(300, 8)).astype(np.float32)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    velo.build(tmp_path / "i", rows, degree=8, threads=1, progress=True).close()
    shown = terminal.getvalue()
    assert shown.startswith("\rbuilding: ")
    assert shown.endswith("\rbuilding: 100 % of 300 rows\n")
    assert shown.count("\n") == 1


def test_lines_that_stay_are_few(tmp_path: Path, capsys: Any) -> None:
    rows = np.random.default_rng(1).normal(size=(300, 8)).astype(np.float32)
    velo.build(tmp_path / "i", rows, degree=8, threads=1, progress=True).close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "building: 100 % of 300 rows"
    assert len(lines) <= 5
    assert not [line for line in lines if not line.startswith("building: ")]
    velo.build_collection(tmp_path / "c", rows, shards=2, degree=8, threads=1, progress=True)
    assert capsys.readouterr().err.endswith("building: 100 % of 300 rows\n")
    velo.build(tmp_path / "j", rows, degree=8, threads=1, progress=False).close()
    assert capsys.readouterr().err == ""
