"""The rooms of `velo`, `velo_serving` and `bench`: one table, and what reads a tree's imports against it.

The table has the form of the one in build.zig: a room may import itself and what its line lists, and a line
lists only rooms that stand before it, so all arrows point one way. docs/ARCHITECTURE.md shows the same table.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Room:
    """A module, or a package with all that is in it, and the rooms that it may import."""

    name: str
    imports: tuple[str, ...]


def _room(package: str, name: str, imports: str = "") -> Room:
    return Room(f"{package}.{name}" if name else package, tuple(imports.split()))


ROOMS = (
    _room("velo", "errors"),
    _room("velo", "types"),
    _room("velo", "hints"),
    _room("velo", "_native", "velo.errors velo.types"),
    _room("velo", "options", "velo.errors velo.types velo.hints velo._native"),
    _room("velo", "results", "velo.types"),
    _room("velo", "formats", "velo.errors velo.types"),
    _room("velo", "testing", "velo.errors velo.types velo.formats"),
    _room("velo", "importing", "velo.errors velo.types"),
    _room("velo", "filters", "velo.errors velo.types velo._native"),
    _room("velo", "folder", "velo.errors velo.types velo._native velo.filters"),
    _room("velo", "words", "velo.errors velo.types velo.folder"),
    _room(
        "velo",
        "parts",
        "velo.errors velo.types velo.options velo._native velo.formats velo.filters velo.folder velo.words",
    ),
    _room(
        "velo",
        "search",
        "velo.errors velo.types velo.hints velo.options velo.results velo._native velo.formats velo.filters "
        "velo.folder velo.words velo.parts",
    ),
    _room(
        "velo",
        "building",
        "velo.errors velo.types velo.hints velo.options velo._native velo.formats velo.folder velo.words "
        "velo.parts velo.search",
    ),
    _room(
        "velo",
        "upkeep",
        "velo.errors velo.types velo.options velo.formats velo.folder velo.parts velo.building",
    ),
    _room(
        "velo",
        "index",
        "velo.errors velo.types velo.hints velo.options velo.results velo._native velo.filters velo.folder "
        "velo.words velo.parts velo.search velo.building velo.upkeep",
    ),
    _room(
        "velo",
        "planning",
        "velo.errors velo.types velo.options velo.results velo._native velo.formats velo.testing velo.folder "
        "velo.index velo.building",
    ),
    _room(
        "velo",
        "",
        "velo.errors velo.hints velo.options velo.results velo.filters velo.index velo.building "
        " velo.planning",
    ),
    _room("velo_serving", "words", "velo.errors velo.options velo.results velo"),
    _room("velo_serving", "wire", "velo.errors velo.filters velo_serving.words"),
    _room(
        "velo_serving",
        "places",
        "velo.errors velo.options velo.folder velo velo_serving.words velo_serving.wire",
    ),
    _room(
        "velo_serving",
        "shard",
        "velo.errors velo.types velo.options velo.formats velo.filters velo.folder velo.building velo "
        "velo_serving.words velo_serving.wire velo_serving.places",
    ),
    _room(
        "velo_serving",
        "routing",
        "velo.errors velo.options velo.results velo.filters velo.folder "
        "velo_serving.words velo_serving.wire velo_serving.places velo_serving.shard",
    ),
    _room(
        "velo_serving",
        "client",
        "velo.errors velo.hints velo.options velo.results velo.folder velo_serving.words velo_serving.wire",
    ),
    _room(
        "velo_serving",
        "gateway",
        "velo.errors velo.hints velo.options velo.filters velo "
        "velo_serving.words velo_serving.wire velo_serving.routing",
    ),
    _room(
        "velo_serving",
        "on_ray",
        "velo.errors velo.types velo.options velo.formats velo.folder velo.building velo "
        "velo_serving.words velo_serving.wire velo_serving.places velo_serving.shard velo_serving.routing "
        "velo_serving.gateway",
    ),
    _room(
        "velo_serving",
        "hosting",
        "velo.errors velo_serving.words velo_serving.wire velo_serving.places velo_serving.shard "
        "velo_serving.routing velo_serving.gateway velo_serving.on_ray",
    ),
    _room(
        "velo_serving",
        "",
        "velo_serving.words velo_serving.places velo_serving.routing velo_serving.client "
        "velo_serving.gateway "
        "velo_serving.on_ray velo_serving.hosting",
    ),
    _room(
        "velo",
        "cli",
        "velo.errors velo.types velo.options velo.results velo._native velo.formats velo.testing "
        "velo.importing velo.filters velo.folder velo.index velo.building velo.planning velo "
        "velo_serving.words velo_serving.on_ray velo_serving.hosting",
    ),
    _room("velo", "integrations", "velo.errors velo.types velo.filters velo"),
    _room("velo", "__main__", "velo.cli"),
    _room("bench", "peers", "velo.errors velo.options velo.formats velo.building velo"),
    _room("bench", "harness", "velo.options velo.formats velo bench.peers"),
    _room("bench", "rungs", "velo bench.harness"),
    _room("bench", "newcomer", "velo"),
    _room(
        "bench",
        "commands",
        "velo.options velo.formats velo.filters velo.folder velo velo_serving.words velo_serving.wire "
        "velo_serving.places velo_serving.shard velo_serving.hosting velo_serving "
        "bench.peers bench.harness bench.rungs bench.newcomer",
    ),
    _room("bench", "outside", "velo"),
    _room("bench", "", ""),
    _room("bench", "__main__", "bench.peers bench.harness bench.commands"),
)


@dataclass(frozen=True)
class Import:
    """One module imports another, anywhere in its text."""

    source: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target}"


#: Packages that do not lie at the root of the tree.
HOMES = {"velo_serving": "serving"}


def modules_of(root: Path, packages: Sequence[str]) -> dict[str, Path]:
    """Every module below some packages, by its name."""
    found = {}
    for package in packages:
        home = root / HOMES.get(package, "")
        for path in sorted((home / package).rglob("*.py")):
            parts = path.relative_to(home).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(modules: Mapping[str, Path]) -> list[Import]:
    """What these modules import of each other: at the top, in functions, and for the type checker alone."""
    found = []
    for name, path in modules.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for line, *may_be in _named(path.read_text(encoding="utf-8"), package):
            target = next((one for one in may_be if one in modules), name)
            if target != name:
                found.append(Import(name, target, line))
    return found


@cache
def _named(text: str, package: str) -> list[tuple[Any, ...]]:
    """A line and what is imported there: a module, or one of two that a name may be. A text is read once."""
    return [
        (getattr(node, "lineno", 0), *may_be)
        for node in ast.walk(ast.parse(text))
        for may_be in _targets(node, package)
    ]


def _targets(node: ast.AST, package: str) -> Iterator[tuple[str, ...]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name,) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *filter(None, [node.module])])
        for alias in node.names:
            yield f"{base}.{alias.name}", base
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("import_module", "__import__"):
            yield (str(node.args[0].value),)


def room_of(module: str, rooms: Sequence[Room] = ROOMS) -> Room | None:
    """The room a module is in; a package's own room holds its ``__init__`` alone."""
    packages = {room.name for room in rooms if "." not in room.name}
    inside = [
        room
        for room in rooms
        if module == room.name or (module.startswith(f"{room.name}.") and room.name not in packages)
    ]
    return max(inside, key=lambda room: len(room.name), default=None)


def faults_of(modules: Mapping[str, Path], rooms: Sequence[Room] = ROOMS) -> list[str]:
    """What in a tree goes against the table: a module without a room, a forbidden arrow, a circle."""
    found = [f"{name} is in no room" for name in modules if room_of(name, rooms) is None]
    arrows = imports_of(modules)
    for arrow in arrows:
        source, target = room_of(arrow.source, rooms), room_of(arrow.target, rooms)
        if source is None or target is None or source == target or target.name in source.imports:
            continue
        found.append(f"{arrow}: {source.name} may not import {target.name}")
    circle = circle_of(arrows)
    if circle:
        found.append("a circle: " + " → ".join(circle))
    return found


def circle_of(arrows: Sequence[Import]) -> list[str]:
    """The modules of one circle of imports, the first again at the end; empty where there is none."""
    targets: dict[str, list[str]] = {}
    for arrow in arrows:
        targets.setdefault(arrow.source, []).append(arrow.target)
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for target in targets.get(module, []):
            circle = walk(target, [*path, module])
            if circle:
                return circle
        done.add(module)
        return []

    for module in targets:
        circle = walk(module, [])
        if circle:
            return circle
    return []
