"""Everything that a release is made of, checked, in ``dist/`` (``./dev release``). Nothing is uploaded.

The sdist, a wheel for each architecture, the notes, a parts list (CycloneDX) and the sums of all of them, of
the commit that is checked out. Each package is installed where nothing else is, for a ``tools/life.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import debian, emulate, notes, sbom, stage

ROOT = stage.ROOT
DIST = ROOT / "dist"

#: Far above what they take: who passes this has packed something that does not belong there.
MOST_BYTES = {".whl": 8 << 20, ".gz": 4 << 20}

#: In an environment of their own: they bring forty packages, and nothing else here needs them.
CHECKERS = ("twine>=6", "cyclonedx-bom>=7.5,<8")


def say(text: str) -> None:
    print(f"release: {text}", flush=True)


def run(*words: str | Path, **variables: str) -> str:
    """Run a command to its end and return what it wrote; a failure ends all."""
    done = subprocess.run(
        [*map(str, words)], cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        told = f"{done.stdout[-6000:]}{done.stderr[-6000:]}"
        raise SystemExit(f"{told}\nrelease: FAILED with {done.returncode}: {' '.join(map(str, words))}")
    return done.stdout


def commit_time() -> str:
    """When the commit was made, for files that hold a time; refuses a tree that is not what was committed."""
    if changed := run("git", "status", "--porcelain"):
        raise SystemExit(f"release: commit first; these files are not what the commit says:\n{changed}")
    return run("git", "log", "-1", "--format=%ct").strip()


def environment(folder: Path, *packages: str | Path) -> Path:
    """The Python of a fresh environment with these packages."""
    venv.create(folder, with_pip=True, clear=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return python


def live(python: Path, folder: Path) -> None:
    """A life of an index with what is installed there, and nothing of this checkout on the path."""
    clean = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
    told = run(python, "-I", ROOT / "tools" / "life.py", stage.SAMPLE, "live", folder, **clean)
    say(f"  {len(told.splitlines())} steps of a life passed")


def native_archives(root: debian.Root) -> dict[str, Path]:
    """The liburing that each architecture's library links."""
    machine = platform.machine()
    own = os.environ.get("VELO_LIBURING") or next(
        path
        for folder in (f"/usr/lib/{machine}-linux-gnu", "/usr/lib64", "/usr/lib")
        if (path := f"{folder}/liburing.a") and Path(path).is_file()
    )
    return {machine: Path(own), root.machine: emulate.liburing(root)}


def build(root: debian.Root, epoch: str) -> list[Path]:
    """The sdist and the wheels."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    os.environ["SOURCE_DATE_EPOCH"] = epoch
    say("building the sdist and the wheels")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", DIST)
    emulate.build_wheel(root, DIST)
    return sorted(DIST.iterdir())


def check(files: list[Path], twine: Path) -> None:
    """What an index would refuse, and what the tests of packaging say about each wheel."""
    run(twine, "-m", "twine", "check", "--strict", *files)
    say("twine check passed")
    for file in files:
        size, most = file.stat().st_size, MOST_BYTES[file.suffix]
        if size > most:
            raise SystemExit(f"release: {file.name} has {size} bytes, more than {most}")
        if file.suffix == ".whl":
            told = run(
                *(sys.executable, "-m", "pytest", "-q", "tests/packaging/test_wheel.py"), VELO_WHEEL=str(file)
            )
            say(f"{file.name}, {size} bytes: {told.strip().splitlines()[-1].strip('= ')}")


def parts_list(python: Path, checkers: Path, root: debian.Root) -> bytes:
    """The CycloneDX document of an environment that holds the wheel alone, native parts added, checked."""
    made = run(
        *(checkers, "-m", "cyclonedx_py", "environment", "--pyproject", ROOT / "pyproject.toml"),
        *("--mc-type", "library", "--output-reproducible", "--of", "JSON", python),
    )
    archives = native_archives(root)
    bom = sbom.completed(json.loads(made), sbom.native_parts(archives))
    if faults := sbom.faults_of(bom, archives):
        raise SystemExit(f"release: the parts list is wrong: {'; '.join(faults)}")
    return (json.dumps(bom, indent=2, sort_keys=True) + "\n").encode()


VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())
sys.exit(str(fault) if fault else 0)
"""


def main() -> None:
    epoch = commit_time()
    version = sbom.package_version()
    text = notes.release_notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    root = emulate.arm_root()
    files = build(root, epoch)
    checkers = environment(debian.CACHE / "checkers", *CHECKERS)
    check(files, checkers)
    with tempfile.TemporaryDirectory(prefix="velo-release-") as scratch:
        folder = Path(scratch)
        for file in files:
            say(f"installing {file.name} where nothing else is")
            if root.machine in file.name:
                inside = emulate.Inside(
                    root, {folder: "/made", ROOT / "tools": "/tools", stage.SAMPLE: "/sample"}
                )
                emulate.install_wheel(root, file)
                inside.python("/tools/life.py", "/sample", "live", f"/made/{root.machine}.velo")
            else:
                python = environment(folder / f"{file.suffix[1:]}-environment", file)
                live(python, folder / f"{file.suffix[1:]}.velo")
        name = f"veloann-{version}"
        bom = DIST / f"{name}.cdx.json"
        bom.write_bytes(parts_list(folder / "whl-environment" / "bin" / "python", checkers, root))
    run(checkers, "-c", VALIDATE, bom)
    say(f"{bom.name}: {len(json.loads(bom.read_text())['components'])} components, valid as CycloneDX 1.6")
    (DIST / f"{name}-notes.md").write_text(text, encoding="utf-8")
    made = sorted(DIST.iterdir())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made)
    (DIST / "SHA256SUMS").write_text(sums)
    print(sums, end="")
    title, _ = notes.top_section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    say(
        f"dist/ holds velo {version}"
        + ("; CHANGELOG.md still says unreleased" if "unreleased" in title else "")
    )


if __name__ == "__main__":
    main()
