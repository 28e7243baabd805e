"""A hook of MkDocs: fills the page of the command line with the help that the commands print."""

from __future__ import annotations

import logging
from typing import Any

MARK = "<!-- help of every command -->"

log = logging.getLogger("mkdocs.hooks.commands")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the help in the place of the mark."""
    if MARK not in markdown:
        return markdown
    return markdown.replace(MARK, "\n".join(_sections()))


def _sections() -> list[str]:
    import typer
    from typer.testing import CliRunner

    from velo.cli.app import app

    def lines_of(*words: str) -> list[str]:
        done = CliRunner().invoke(app, [*words, "--help"], prog_name="velo", env={"COLUMNS": "88"})
        if done.exit_code != 0:
            log.warning("velo %s --help ends with %s", " ".join(words), done.exit_code)
        return [f"## velo {' '.join(words)}".rstrip(), "", "```text", done.output.strip(), "```", ""]

    def walk(group: Any, words: tuple[str, ...]) -> list[str]:
        lines: list[str] = []
        for name, command in group.commands.items():
            if not command.hidden:
                below = getattr(command, "commands", None)
                lines += walk(command, (*words, name)) if below else lines_of(*words, name)
        return lines

    return walk(typer.main.get_command(app), ())
