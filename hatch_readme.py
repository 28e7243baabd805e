"""What a package index shows of the README: it has no files beside it, so relative links would lead nowhere.

Links and pictures become absolute below ``[tool.hatch.metadata.hooks.custom] home``, the address under which
the repository's files can be read. While it names none, a link keeps its text and a picture its description.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, self.config.get("home")),
        }


def absolute(text: str, home: str | None) -> str:
    """The README without relative links."""

    def replaced(match: re.Match[str]) -> str:
        picture, shown, target = match.groups()
        if home:
            return f"{picture}[{shown}]({home.rstrip('/')}/{target})"
        return f"*{shown}*" if picture else shown

    return LINK.sub(replaced, text)
