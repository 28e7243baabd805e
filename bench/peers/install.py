"""An environment of its own for each peer, from its pinned requirements file."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = ("hnswlib", "diskannpy", "zvec", "usearch", "rabitqlib", "numpy")


class PeerMissing(Exception):
    """A peer that does not install here; the message is the line of the report."""


def runner(name: str) -> Path:
    return HERE / name / "runner.py"


def interpreter(name: str, work: Path) -> Path:
    """The peer's Python, installed first where the requirements have changed. Raises PeerMissing."""
    requirements = HERE / name / "requirements.txt"
    if not requirements.exists():
        raise PeerMissing(f"{name}: no such peer; there are {', '.join(NAMES)}")
    return environment(name, requirements, work / "venvs" / name)


def environment(name: str, requirements: Path, folder: Path) -> Path:
    """The Python of an environment in ``folder`` that has these requirements; the same errors."""
    python = folder / "bin" / "python"
    stamp = folder / "requirements.sha256"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == digest:
        return python
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "pip failed")
        raise PeerMissing(f"{name}: skipped, it does not install on Python {sys.version.split()[0]}: {last}")
    stamp.write_text(digest)
    return python
