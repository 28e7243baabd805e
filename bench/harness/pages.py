"""The output of a command: a page and its rows, both with the library that was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import velo

Row = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
#: The folder of results: a result written there changes nothing that is measured.
RESULTS = "docs/results"
CHANGES = "+changes"
#: As many parts are named where several libraries were measured; of more their number is said.
NAMED = 6


def library() -> dict[str, str | None]:
    """The library that this process measures: the ``commit`` of its tree, and its build ``mode``.

    The commit ends in ``+changes`` where the tree is not as it was committed or its native library is older
    than what it is compiled from, and is ``unknown`` outside of a repository. The mode is what the native
    library says of itself.
    """
    return {"commit": _commit(), "mode": _mode()}


def is_changed(library: dict[str, str | None]) -> bool:
    """Whether ``library`` is unknown: the commit alone does not identify it."""
    return library["commit"] == "unknown" or str(library["commit"]).endswith(CHANGES)


def _commit() -> str:
    package = Path(velo.__file__).parent

    def git(*words: str) -> str:
        command = ["git", "-C", str(package), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        changes = git("status", "--porcelain", "--", ":/", f":(top,exclude){RESULTS}")
        sources = git("ls-files", "-z", "--", ":/zig", ":/build.zig").split("\0")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + CHANGES if changes or _is_older(package, sources) else commit


def _is_older(package: Path, sources: Sequence[str]) -> bool:
    """Whether the package's native library was compiled before the last change of its sources."""
    made = package / "_native" / "libvelo.so"
    files = [package / name for name in sources if name]
    return made.exists() and any(
        file.stat().st_mtime > made.stat().st_mtime for file in files if file.exists()
    )


def _mode() -> str:
    env = dict(os.environ)  # with VELO_LIBRARY, where another library than the shipped one is measured
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "velo", "doctor", "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    return str(json.loads(told)["library"]["build_mode"])


def measured_line(rows: Iterable[Row], files: Sequence[str] = ()) -> str:
    """The sentence of a page that says which library its ``rows`` were measured with.

    Where there were several it says what was measured with which. ``files``, beside the page, hold the rows.
    """
    groups: dict[str, list[str]] = {}
    for row in rows:
        if told := row.get("library"):
            commit = told["commit"].removesuffix(CHANGES)
            changes = told["commit"].removeprefix(commit)
            text = f"`{commit[:10]}{changes}`, {told['mode'] or 'build mode not recorded'}"
            part = str(row.get("section") or row.get("dataset") or row.get("what"))
            if part not in groups.setdefault(text, []):
                groups[text].append(part)
    if not groups:
        return "Nothing was measured."
    rows_text = f" Rows: {', '.join(f'`{file}`' for file in files)}." if files else ""
    if len(groups) == 1:
        return f"Measured at {next(iter(groups))}.{rows_text}"
    parts = [
        f"{text} ({', '.join(names) if len(names) <= NAMED else f'{len(names)} parts'})"
        for text, names in sorted(groups.items(), key=lambda group: len(group[1]))
    ]
    return f"Measured at {'; '.join(parts)}.{rows_text}"


def with_line(text: str, line: str) -> str:
    """A page with ``line`` below its title."""
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{line}\n{rest}"


def write(out: Path, name: str, rows: Sequence[Row], text: str) -> None:
    """Leave ``rows`` in ``out/name.jsonl`` and the page in ``out/name.md``, which says what was measured."""
    line = measured_line(rows, [f"{name}.jsonl"])
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (out / f"{name}.md").write_text(with_line(text, line))
