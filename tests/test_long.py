"""What only the long run does is guarded by a test of every run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Marked:
    """A test, or a module, that the short run leaves out."""

    where: str
    guard: str


def _mark(node: ast.expr) -> str | None:
    """What `pytest.mark.long(guarded_by=…)` names, empty if nothing; None of another mark."""
    call = node if isinstance(node, ast.Call) else None
    if ast.unparse(call.func if call else node) != "pytest.mark.long":
        return None
    named = {one.arg: one.value for one in call.keywords} if call else {}
    return str(ast.literal_eval(named["guarded_by"])) if "guarded_by" in named else ""


def marked(path: Path, name: str) -> Iterator[Marked]:
    """Every mark in a file: of a function, of some parameters of one (which stays in), or of all."""
    text = path.read_text(encoding="utf-8")
    if "mark.long" not in text:
        return
    tree = ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    of = {id(mark): f"{name}::{one.name}" for one in functions for mark in one.decorator_list}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    some = {id(part) for call in calls if ast.unparse(call.func) == "pytest.param" for part in ast.walk(call)}
    called = {id(call.func) for call in calls}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Call) and id(node) not in called:
            guard = _mark(node)
            if guard is not None:
                yield Marked(f"{name}[…]" if id(node) in some else of.get(id(node), name), guard)


def missing(found: list[Marked], root: Path) -> list[str]:
    """Marks that name no guard, or one that is not there or is left out itself."""
    left_out = {one.where for one in found}
    faults = []
    for one in found:
        file, _, name = one.guard.partition("::")
        path = root / file
        text = path.read_text(encoding="utf-8") if one.guard and path.is_file() else ""
        pattern = (
            rf'^test "{re.escape(name)}"' if file.endswith(".zig") else rf"^(async )?def {re.escape(name)}\("
        )
        if not name or not re.search(pattern, text, re.MULTILINE):
            faults.append(f"{one.where}: no guard {one.guard!r}")
        elif {file, one.guard} & left_out:
            faults.append(f"{one.where}: its guard {one.guard} is left out, too")
    return faults


def test_every_long_test_names_a_short_guard() -> None:
    found = [
        mark
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for mark in marked(path, path.relative_to(ROOT).as_posix())
    ]
    assert len(found) > 10
    assert missing(found, ROOT) == []


def test_marks_without_a_guard_are_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(
        """
import pytest
def test_short(): ...
@pytest.mark.long(guarded_by="tests/test_a.py::test_short")
def test_right(): ...
@pytest.mark.long
def test_none(): ...
@pytest.mark.long(guarded_by="tests/test_a.py::test_gone")
def test_of_nothing(): ...
@pytest.mark.long(guarded_by="tests/test_a.py::test_right")
async def test_of_a_long_one(): ...
@pytest.mark.parametrize(
    "a", [1, pytest.param(2, marks=pytest.mark.long(guarded_by="tests/test_a.py::test_half"))]
)
def test_half(a): ...
"""
    )
    found = list(marked(tmp_path / "tests" / "test_a.py", "tests/test_a.py"))
    assert len(found) == 5
    faults = missing(found, tmp_path)
    assert [fault.split(":")[2] for fault in faults] == ["test_none", "test_of_nothing", "test_of_a_long_one"]
    (tmp_path / "tests" / "test_b.py").write_text(
        'pytestmark = [1, pytest.mark.long(guarded_by="tests/test_b.py::test_all")]\ndef test_all(): ...\n'
    )
    found = list(marked(tmp_path / "tests" / "test_b.py", "tests/test_b.py"))
    assert missing(found, tmp_path) == [
        "tests/test_b.py: its guard tests/test_b.py::test_all is left out, too",
    ]
