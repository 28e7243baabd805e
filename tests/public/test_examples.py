"""The examples of the local library run as they stand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def load(root: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, root / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_local_search(root: Path, tmp_path: Path) -> None:
    assert load(root, "local_search").main(tmp_path) >= 0.95


@pytest.mark.long(guarded_by="tests/filters/test_plans.py::test_the_gate_reads_what_passes")
def test_filtered_search(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(root, "filtered_search").main(tmp_path)
    assert "rare:" in capsys.readouterr().out
