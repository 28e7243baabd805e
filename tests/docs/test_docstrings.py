"""Docstrings of public names say what a user needs, and their examples run."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import velo
from tests.docs.public import PublicName, public_names
from tests.docs.runner import ROOT, blocks_of, run_blocks
from tests.serving.conftest import Served

NAMES = public_names()
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

#: A name of a section, and a line below it.
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}$", flags=re.MULTILINE)


def sections_of(text: str) -> dict[str, str]:
    """The sections of a numpydoc docstring; what stands before them is under the empty name."""
    parts = SECTION.split(inspect.cleandoc(text))
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def described(section: str) -> set[str]:
    """The names that a section describes, from lines such as ``a, b : int``."""
    lines = re.findall(r"^(\*{0,2}\w[\w, *]*?)(?: *:.*)?$", section, flags=re.MULTILINE)
    return {name.strip(" *") for line in lines for name in line.split(",")}


def faults(one: PublicName) -> list[str]:
    """What a docstring lacks."""
    value = one.value.fget if isinstance(one.value, property) else one.value
    text = value.__doc__ or ""
    if not text.strip() or text.startswith(f"{getattr(value, '__name__', '')}("):
        return ["no docstring"]
    sections = sections_of(text)
    found = []
    if not re.match(r"\S.*[.:]", sections[""].strip(), flags=re.DOTALL):
        found.append("no sentence at its head")
    if inspect.isclass(value):
        fields = list(dataclasses.fields(value)) if dataclasses.is_dataclass(value) else []
        named = described(sections.get("Attributes", "")) | described(sections.get("Parameters", ""))
        found += [f"field {field.name}" for field in fields if field.init and field.name not in named]
    elif one.is_function:
        signature = inspect.signature(value)
        asked = [name for name in signature.parameters if name not in ("self", "cls")]
        text = sections.get("Parameters", "")
        named = described(text)
        # What ``**options`` stands for may be named in its text.
        found += [f"parameter {name}" for name in asked if name not in named and f"`{name}`" not in text]
        if str(signature.return_annotation) not in ("None", "Self") and not {"Returns", "Yields"} & set(
            sections
        ):
            found.append("Returns")
    return found


def test_every_public_name_is_described() -> None:
    assert len(NAMES) > 100
    assert not {one.path: lacking for one in NAMES if (lacking := faults(one))}


def test_missing_descriptions_are_found() -> None:
    def bare(first: int) -> int:
        """Do something.

        Parameters
        ----------
        second : int
        """
        return first

    assert faults(PublicName("bare", bare)) == ["parameter first", "Returns"]
    assert faults(PublicName("nothing", lambda: None)) == ["no docstring"]


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(recurse=False)
    found = []
    for one in NAMES:
        value: Any = one.value
        found += [test for test in finder.find(value, one.path, globs={}) if test.examples]
    return found


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the reference's first page prepares."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("reference"))
        names: dict[str, Any] = {}
        run_blocks(blocks_of(ROOT / "docs" / "reference" / "index.md"), names)
        names["index"].close()
        names["folder"] = Path.cwd()
    return names


@pytest.fixture(scope="module")
def served(prepared: dict[str, Any]) -> Iterator[Served]:
    """The same index over HTTP."""
    server = Served(str(prepared["folder"] / "shop.velo"), "--threads", "1")
    yield server
    server.stop()


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_example(
    example: doctest.DocTest,
    prepared: dict[str, Any],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each begins with an index of its own, so that none depends on another."""
    shutil.copytree(prepared["folder"] / "shop.velo", tmp_path / "shop.velo")
    monkeypatch.chdir(tmp_path)
    names = dict(prepared)
    if any("url" in one.source for one in example.examples):
        names["url"] = request.getfixturevalue("served").url
    with velo.open("shop.velo", threads=1) as index:
        example.globs = {**names, "index": index}
        runner = doctest.DocTestRunner(optionflags=FLAGS)
        out: list[str] = []
        runner.run(example, out=out.append, clear_globs=False)
    assert runner.failures == 0, "".join(out)
    assert not any(doctest.SKIP in one.options for one in example.examples), "an example is skipped"


def test_searches_and_builds_have_examples() -> None:
    shown = {example.name for example in examples()}
    wanted = {"velo.build", "velo.open", "velo.col", "velo.Index.search", "velo.Index.delete", "velo.plans"}
    assert wanted <= shown


def test_the_reference_lists_every_public_name() -> None:
    """A name, its class or its module."""
    reference = ROOT / "docs" / "reference"
    listed = set(
        re.findall(r"^::: (\S+)", "\n".join(one.read_text() for one in reference.glob("*.md")), re.MULTILINE)
    )
    assert "velo.Index" in listed

    def is_listed(path: str) -> bool:
        parts = path.split(".")
        return any(".".join(parts[:end]) in listed for end in range(2, len(parts) + 1))

    assert [one.path for one in NAMES if not any(map(is_listed, one.paths))] == []
