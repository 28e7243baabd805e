"""``progress=True``: a build says how far it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import velo


def test_a_line_on_stderr(tmp_path: Path, capsys: Any) -> None:
    rows = np.random.default_rng(1).normal(size=(300, 8)).astype(np.float32)
    velo.build(tmp_path / "i", rows, degree=8, threads=1, progress=True).close()
    shown = capsys.readouterr().err
    assert shown.startswith("\rbuilding: ")
    assert shown.endswith("\rbuilding: 100 % of 300 rows\n")
    velo.build_collection(tmp_path / "c", rows, shards=2, degree=8, threads=1, progress=True)
    assert capsys.readouterr().err.endswith("100 % of 300 rows\n")
    velo.build(tmp_path / "j", rows, degree=8, threads=1, progress=False).close()
    assert capsys.readouterr().err == ""
