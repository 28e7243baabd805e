"""The wheel holds what it should, asks little of the system, and works where nothing else is installed."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection
from packaging_help import ROOT, project_version, run

from hatch_readme import absolute

GLIBC_MAX = (2, 28)
#: What manylinux_2_28 lets a library need.
ALLOWED_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
#: Architectures by the name that a library's head has.
MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
ALLOWED_LOADERS = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


@pytest.fixture
def wheel_of_this_machine(wheel: Path) -> Path:
    """`VELO_WHEEL` may name one for another architecture, which cannot run here."""
    if not wheel.stem.endswith(platform.machine()):
        pytest.skip(f"{wheel.name} does not run on {platform.machine()}")
    return wheel


@pytest.fixture(scope="module")
def library(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract("velo/_native/libvelo.so", folder))


def test_sdist_holds_what_a_build_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for needed in (
        "build.zig",
        "hatch_build.py",
        "hatch_readme.py",
        "pyproject.toml",
        "LICENSE",
        "zig/velo.h",
        "velo/__init__.py",
    ):
        assert needed in names
    assert any(name.startswith("zig/src/quant/kernels/") for name in names)
    assert any(name.startswith("serving/velo_serving/") for name in names)
    assert not [
        name for name in names if name.endswith(".so") or name.startswith((".git/", ".venv/", ".zig-cache/"))
    ]


def test_wheel_holds_both_packages_and_one_library(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for needed in (
        "velo/__init__.py",
        "velo/py.typed",
        "velo/_native/libvelo.so",
        "velo/_native/velo.h",
        "velo/_native/header.py",
        "velo/cli/__init__.py",
        "velo_serving/__init__.py",
        "velo_serving/gateway/dashboard/page/index.html",
        "velo_serving/gateway/dashboard/page/window.js",
    ):
        assert needed in names
    assert [name for name in names if ".so" in name] == ["velo/_native/libvelo.so"]
    tops = {name.split("/", 1)[0] for name in names}
    assert tops == {"velo", "velo_serving", next(top for top in tops if top.endswith(".dist-info"))}


def test_wheel_names_its_platform_and_extras(wheel: Path, library: Path) -> None:
    version = project_version()
    with library.open("rb") as file:
        machine = MACHINES[ELFFile(file).header.e_machine]
    assert wheel.name == f"veloann-{version}-py3-none-manylinux_2_28_{machine}.whl"
    assert os.environ.get("VELO_WHEEL") or machine == platform.machine()
    with zipfile.ZipFile(wheel) as archive:
        info = f"veloann-{version}.dist-info"
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    extras = {"cli", "serving", "ray-serve", "sql", "otel", "bench", "docs", "dev"}
    extras |= {"langchain", "haystack", "llama-index"}
    assert set(metadata.get_all("Provides-Extra", [])) == extras
    assert metadata["License-Expression"] == "Apache-2.0"
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {re.split(r"[<>=\[ ]", line)[0] for line in required} == {"numpy", "pyarrow", "cffi"}
    assert "velo = velo.cli:main" in entry_points


def test_the_description_has_no_link_that_needs_a_checkout(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = f"veloann-{project_version()}.dist-info"
        description = Parser().parsestr(archive.read(f"{info}/METADATA").decode()).get_payload()
    assert isinstance(description, str)
    assert description.startswith("# velo\n")
    assert not re.findall(r"\]\((?!https?://)[^)]*\)", description)


def test_a_home_makes_links_absolute() -> None:
    text = "![A](docs/a.png) [b](docs/b.md#c) [d](https://example.org/d)"
    assert absolute(text, "https://example.org/tree/") == (
        "![A](https://example.org/tree/docs/a.png) [b](https://example.org/tree/docs/b.md#c) "
        "[d](https://example.org/d)"
    )
    assert absolute(text, None) == "*A* b [d](https://example.org/d)"


def test_library_needs_only_an_old_glibc(library: Path) -> None:
    with library.open("rb") as file:
        elf = ELFFile(file)
        dynamic = next(section for section in elf.iter_sections() if isinstance(section, DynamicSection))
        needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
        search_paths = [
            tag.entry.d_tag for tag in dynamic.iter_tags() if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")
        ]
        versions = [
            (tuple(int(part) for part in match[1].split(".")), auxiliary.name)
            for section in elf.iter_sections()
            if isinstance(section, GNUVerNeedSection)
            for _, auxiliaries in section.iter_versions()
            for auxiliary in auxiliaries
            if (match := re.fullmatch(r"GLIBC_([0-9.]+)", auxiliary.name))
        ]
    assert needed <= ALLOWED_LIBRARIES | ALLOWED_LOADERS
    assert not search_paths
    assert versions, "a dynamic library that needs no glibc version at all: the section was not found"
    assert max(versions)[0] <= GLIBC_MAX, max(versions)


def test_library_exports_the_header_and_nothing_else(library: Path) -> None:
    with library.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(symbols, SymbolTableSection)
        exported = {
            symbol.name
            for symbol in symbols.iter_symbols()
            if symbol.entry.st_shndx != "SHN_UNDEF"
            and symbol.entry.st_info.bind in ("STB_GLOBAL", "STB_WEAK")
        }
    header = re.sub(r"/\*.*?\*/", "", (ROOT / "zig" / "velo.h").read_text(), flags=re.DOTALL)
    declared = set(re.findall(r"\b(velo_\w+)\s*\(", header))
    assert declared, "no function found in velo.h"
    assert exported == declared


def test_library_names_no_path_of_the_machine_that_built_it(library: Path) -> None:
    content = library.read_bytes()
    for path in (str(ROOT), str(Path.home()) + "/.cache", "/tmp/"):
        assert path.encode() not in content, path


SCRIPT = """
import json, sys
import numpy as np
import velo
heavy = sorted(name for name in ("ray", "fastapi", "pandas", "velo_serving") if name in sys.modules)
vectors = np.random.default_rng(1).standard_normal((1000, 32), dtype=np.float32)
with velo.build("small.velo", vectors, memory="50%") as index:
    ids, distances = index.search(vectors[:50], k=1)
    found = int((ids[:, 0] == np.arange(50)).sum())
    print(json.dumps({"heavy": heavy, "found": found, "file": velo.__file__}))
"""


def test_the_unpacked_wheel_works(wheel_of_this_machine: Path, tmp_path: Path) -> None:
    """With the dependencies of this environment, and nothing of this checkout on the path."""
    with zipfile.ZipFile(wheel_of_this_machine) as archive:
        archive.extractall(tmp_path / "unpacked")
    env = {key: value for key, value in os.environ.items() if not key.startswith("VELO_")}
    answer = json.loads(
        run(sys.executable, "-c", SCRIPT, cwd=tmp_path, env=env | {"PYTHONPATH": str(tmp_path / "unpacked")})
    )
    assert answer["heavy"] == []
    assert answer["found"] == 50
    assert answer["file"].startswith(str(tmp_path / "unpacked"))


@pytest.mark.long(guarded_by="tests/packaging/test_wheel.py::test_the_unpacked_wheel_works")
def test_wheel_works_in_a_clean_environment(wheel_of_this_machine: Path, tmp_path: Path) -> None:
    """Only the core dependencies, nothing of this checkout on the path, no compiler and no zig in PATH."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    env = {"PATH": str(folder / "bin"), "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    for name in ("PIP_INDEX_URL", "PIP_CERT", "SSL_CERT_FILE", "PIP_FIND_LINKS", "http_proxy", "https_proxy"):
        if name in os.environ:
            env[name] = os.environ[name]
    cache = {"PIP_CACHE_DIR": run(sys.executable, "-m", "pip", "cache", "dir").strip()}
    install = (python, "-m", "pip", "install", "--quiet")
    run(*install, wheel_of_this_machine, cwd=tmp_path, env=env | cache)
    answer = json.loads(run(python, "-c", SCRIPT, cwd=tmp_path, env=env))
    assert answer["heavy"] == []
    assert answer["found"] == 50
    assert answer["file"].startswith(str(folder))
    velo = folder / "bin" / "velo"
    refused = subprocess.run([velo, "doctor"], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert refused.returncode == 1
    assert refused.stderr == "velo: the command line needs typer: pip install 'veloann[cli]'\n"
    run(*install, f"{wheel_of_this_machine}[cli]", cwd=tmp_path, env=env | cache)
    assert json.loads(run(velo, "doctor", "--json", cwd=tmp_path, env=env))


def test_a_build_without_liburing_names_its_package(tmp_path: Path) -> None:
    environment = dict(os.environ, VELO_LIBURING=str(tmp_path / "liburing.a"))
    command = [sys.executable, str(ROOT / "hatch_build.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "apt-get install liburing-dev" in done.stderr
    assert "Traceback" not in done.stderr
