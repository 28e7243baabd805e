"""The notes of a release: the top section of ``CHANGELOG.md``."""

from __future__ import annotations

import re


def top_section(changelog: str) -> tuple[str, str]:
    """The title of the newest section, without its marks, and its text."""
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)
    if len(sections) < 2:
        raise ValueError("CHANGELOG.md has no section")
    title, _, text = sections[1].partition("\n")
    return title.strip(), text.strip()


def release_notes(changelog: str, version: str) -> str:
    """The notes of this version; ValueError where the newest section is of another one."""
    title, text = top_section(changelog)
    if title.split()[0] != version:
        raise ValueError(f"CHANGELOG.md begins with {title}, but the version is {version}")
    return f"# velo {version}\n\n{text}\n"
