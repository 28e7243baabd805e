"""The wheel and the library's tests on other Pythons (``./dev pythons [PYTHON …]``).

A PYTHON is a program, such as ``python3.10`` or a path, or ``debian:SUITE``: the newest Python of a release
of Debian, in a root filesystem of its own. Without one it is the oldest and the newest that this machine has.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import debian, stage

ROOT = stage.ROOT
OLDEST = 10

#: What needs the package alone: neither Ray nor sources.
TESTS = tuple(
    f"tests/{room}"
    for room in ("public", "search", "filters", "formats", "folder", "index", "fulltext", "testing")
)
#: These read sources, ask mypy, or load the library with the simulated device.
LEFT_OUT = (
    "tests/filters/test_header.py",
    "tests/folder/test_manifest.py::test_nothing_else_of_velo_reads_it",
    "tests/public/test_errors.py::test_header_is_the_checkouts",
    "tests/public/test_typing.py",
    "tests/search/test_faults.py",
)


def say(text: str) -> None:
    print(f"pythons: {text}", flush=True)


def found() -> list[str]:
    """The Pythons of this machine that are new enough, by rising version: of PATH, pyenv and uv."""
    home = Path.home()
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    folders += sorted(home.glob(".pyenv/versions/*/bin")) + sorted(home.glob(".local/share/uv/python/*/bin"))
    versions: dict[int, str] = {}
    for folder in folders:
        for path in folder.glob("python3.*"):
            if (match := re.fullmatch(r"python3\.(\d+)", path.name)) and int(match[1]) >= OLDEST:
                # A shim may stand for a Python that is not there.
                works = subprocess.run(
                    [path, "-c", "import ensurepip, venv"], capture_output=True, check=False
                )
                if works.returncode == 0:
                    versions.setdefault(int(match[1]), str(path))
    return [versions[minor] for minor in sorted(versions)]


def wheel_of_checkout(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def words_of(staged: str) -> list[str]:
    left_out = [f"--deselect={name}" if "::" in name else f"--ignore={staged}/{name}" for name in LEFT_OUT]
    return [*stage.pytest(staged, TESTS), *left_out]


def in_environment(python: str, wheel: Path, folder: Path) -> int:
    """Run the tests in a fresh environment of a Python of this machine."""
    subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
    own = folder / "bin" / "python"
    pip = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"{wheel}[cli,sql]", *stage.REQUIREMENTS], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory(prefix="velo-tests-") as scratch:
        stage.stage(Path(scratch))
        return subprocess.run([own, *words_of(scratch)], cwd=scratch, env=environment, check=False).returncode


def in_debian(release: str, wheel: Path) -> int:
    """Run the tests with the newest Python of a release of Debian."""
    architecture = next(name for name, machine in debian.MACHINES.items() if machine == platform.machine())
    root = debian.unpacked(architecture, release, ("python3", "libstdc++6", "mount"))
    program, version = root.python
    shutil.rmtree(root.site, ignore_errors=True)
    debian.install(root.site, root.machine, version, f"{wheel}[cli,sql]", *stage.REQUIREMENTS)
    say(f"debian:{release} has Python {version}")
    with tempfile.TemporaryDirectory(prefix="velo-tests-") as scratch:
        stage.stage(Path(scratch))
        words = root.command(
            *(program, *words_of("/stage")),
            binds={Path(scratch): "/stage"},
            variables={},
        )
        return subprocess.run(words, check=False).returncode


def main() -> None:
    asked = sys.argv[1:]
    if not asked:
        there = found()
        asked = list(dict.fromkeys([there[0], there[-1]]))
    results: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="velo-wheel-") as scratch:
        wheel = wheel_of_checkout(Path(scratch))
        for python in asked:
            say(f"{wheel.name} in {python}")
            if python.startswith("debian:"):
                results[python] = in_debian(python.removeprefix("debian:"), wheel)
            else:
                results[python] = in_environment(python, wheel, Path(scratch) / "environment")
    for python, status in results.items():
        say(f"{python}: {'passed' if status == 0 else f'FAILED with {status}'}")
    sys.exit(int(any(results.values())))


if __name__ == "__main__":
    main()
