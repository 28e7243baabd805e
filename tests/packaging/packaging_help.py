"""What the tests of this folder share."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Run a command to its end and return what it wrote; a failure carries that in its message."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"{' '.join(words)} → {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    )
    return done.stdout


def project_version() -> str:
    """The version as velo/__init__.py has it, where the build takes it from."""
    match = re.search(
        r'^__version__ = "([^"]+)"$', (ROOT / "velo" / "__init__.py").read_text(), flags=re.MULTILINE
    )
    assert match
    return match[1]
