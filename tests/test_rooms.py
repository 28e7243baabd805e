"""The rooms of all packages: imports go where the table says, and the documented table is the same."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.rooms import HOMES, ROOMS, Room, circle_of, faults_of, imports_of, modules_of

PACKAGES = ("velo", "velo_serving", "bench")


@pytest.fixture
def tree(root: Path, tmp_path: Path) -> Path:
    """A copy of all packages, to plant faults in."""
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        home = HOMES.get(package, "")
        shutil.copytree(root / home / package, tmp_path / home / package, ignore=ignored)
    return tmp_path


def plant(tree: Path, file: str, text: str) -> list[str]:
    """The faults of a tree one of whose files goes on with some text."""
    path = tree / file
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as end:
        end.write(text)
    return faults_of(modules_of(tree, PACKAGES))


def test_imports_go_where_the_table_says(root: Path) -> None:
    modules = modules_of(root, PACKAGES)
    assert len(imports_of(modules)) > len(modules) > 100
    assert faults_of(modules) == []


def test_arrows_point_down_only() -> None:
    names = [room.name for room in ROOMS]
    assert len(set(names)) == len(names)
    for at, room in enumerate(ROOMS):
        assert set(room.imports) <= set(names[:at]), room.name


@pytest.mark.parametrize(
    "text",
    [
        "\nfrom velo.building.build import build_shard\n",
        "\nimport velo.building.build\n",
        "\nfrom velo.building import build as builder\n",
        "\ndef later():\n    from velo.building.build import build_shard\n",
        "\nif TYPE_CHECKING:\n    from velo.building.build import Watch\n",
        "\nfrom ..building.build import build_shard\n",
        "\nimportlib.import_module('velo.building.build')\n",
    ],
)
def test_an_import_upward_is_found_wherever_it_stands(tree: Path, text: str) -> None:
    found = plant(tree, "velo/folder/ids.py", text)
    assert any("velo.folder may not import velo.building" in fault for fault in found), found
    assert any(fault.startswith("velo.folder.ids:") for fault in found)


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("velo/folder/ids.py", "\nimport velo\n", "velo.folder may not import velo"),
        ("velo/building/build.py", "\nimport velo.cli.app\n", "velo.building may not import velo.cli"),
        ("bench/harness/plots.py", "\nimport bench.commands.report\n", "may not import bench.commands"),
        ("velo/options.py", "\nfrom bench import harness\n", "velo.options may not import bench.harness"),
        ("velo/attic/old.py", "", "velo.attic.old is in no room"),
        ("velo/stray.py", "", "velo.stray is in no room"),
        ("serving/velo_serving/stray.py", "", "velo_serving.stray is in no room"),
        (
            "serving/velo_serving/wire/server.py",
            "\nfrom velo_serving.shard.shard import Shard\n",
            "velo_serving.wire may not import velo_serving.shard",
        ),
        (
            "serving/velo_serving/client/calls.py",
            "\ndef later():\n    from velo_serving.gateway import bodies\n",
            "velo_serving.client may not import velo_serving.gateway",
        ),
        (
            "velo/index/open.py",
            "\nfrom velo_serving import Client\n",
            "velo.index may not import velo_serving",
        ),
    ],
)
def test_other_ways_around_the_table(tree: Path, file: str, text: str, fault: str) -> None:
    assert any(one.endswith(fault) for one in plant(tree, file, text))


def test_a_circle_inside_a_room_is_found_also_in_a_function(tree: Path) -> None:
    text = "\ndef later():\n    from velo.filters.dicts import from_dict\n"
    assert any(one.startswith("a circle: ") for one in plant(tree, "velo/filters/tree.py", text))


def test_a_circle_of_processes_that_start_each_other_is_found(tree: Path) -> None:
    text = "\nif TYPE_CHECKING:\n    from velo_serving.hosting.serve import serve_local\n"
    found = plant(tree, "serving/velo_serving/hosting/processes.py", text)
    assert any("velo_serving.hosting.serve → " in one for one in found if one.startswith("a circle: ")), found


def test_a_room_that_imports_its_own_package_is_a_circle(tree: Path) -> None:
    found = plant(tree, "velo/filters/tree.py", "\nfrom velo.filters import col\n")
    assert any("velo.filters → " in one for one in found if one.startswith("a circle: ")), found


def test_a_tree_of_two_rooms(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    for name, text in {"__init__": "import p.high", "low": "", "high": "from p import low"}.items():
        (tmp_path / "p" / f"{name}.py").write_text(text)
    rooms = (Room("p.low", ()), Room("p.high", ("p.low",)), Room("p", ("p.high",)))
    modules = modules_of(tmp_path, ["p"])
    assert faults_of(modules, rooms) == []
    assert circle_of(imports_of(modules)) == []
    (tmp_path / "p" / "low.py").write_text("def f():\n    import p.high\n")
    assert faults_of(modules, rooms) == [
        "p.low:2 imports p.high: p.low may not import p.high",
        "a circle: p.high → p.low → p.high",
    ]


def test_the_documented_table_is_this_one(root: Path) -> None:
    text = (root / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    documented = []
    for package in PACKAGES:
        table = re.search(rf"^\| room \(`{package}/…`\).*?\n\n", text, re.MULTILINE | re.DOTALL)
        assert table, package
        for line in table[0].strip().splitlines()[2:]:
            name, _, arrows = (cell.strip() for cell in line.strip("|").split("|"))
            imports = [] if arrows == "–" else arrows.split(", ")
            documented.append(
                Room(_full(package, name.strip("`")), tuple(_full(package, one) for one in imports))
            )
    by_package = sorted(ROOMS, key=lambda room: PACKAGES.index(room.name.split(".")[0]))
    assert [(room.name, set(room.imports)) for room in documented] == [
        (room.name, set(room.imports)) for room in by_package
    ]


def _full(package: str, name: str) -> str:
    """A room's whole name, where the table leaves its package out."""
    return name if name.split(".")[0] in PACKAGES else f"{package}.{name}"


def test_only_one_room_knows_cffi_and_none_a_server(root: Path) -> None:
    knowing: dict[str, set[str]] = {}
    for name, path in modules_of(root, ["velo"]).items():
        for package in re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(), re.MULTILINE):
            knowing.setdefault(package, set()).add(name)
    assert knowing["cffi"] == {"velo._native.loader"}
    assert not {"ray", "fastapi", "uvicorn", "pydantic", "httpx", "pandas", "bench"} & knowing.keys()


def test_zig_tests_that_start_threads_say_so_in_their_names(root: Path) -> None:
    """By that word `zig build tsan` finds them, in rooms where most tests have one thread alone."""
    rooms = ("cache", "filter", "graph", "live")
    assert '{ "cache", "filter", "graph", "live" }' in (root / "build.zig").read_text(encoding="utf-8")
    a_test = re.compile(r'^test "(.*?)" \{\n(.*?)^\}$', re.MULTILINE | re.DOTALL)
    for room in rooms:
        found = 0
        for path in (root / "zig" / "src" / room).glob("*_test.zig"):
            for name, body in a_test.findall(path.read_text(encoding="utf-8")):
                found += "threads" in name
                assert "threads" in name or "Thread.spawn" not in body, f"{path.name}: {name}"
        assert found > 0, room
