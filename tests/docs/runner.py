"""Runs what a page shows: its blocks of Python and shell, in their order, and compares what they print.

A block ``python`` runs in one namespace for the page, a block ``sh`` in a shell. A block ``text`` right
behind one is what it prints, or the error that ends it; ``…`` stands for any text. Blocks in other languages
(``console``) are not run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A piece of code on a page, and what it is said to print."""

    page: str
    line: int
    language: str
    text: str
    shown: str | None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page that run, in their order."""
    text = page.read_text()
    fences = list(FENCE.finditer(text))
    blocks = []
    for here, behind in zip(fences, [*fences, None][1:], strict=True):
        if here[1] not in ("python", "sh"):
            continue
        shown = None
        if behind is not None and behind[1] == "text" and not text[here.end() : behind.start()].strip():
            shown = behind[2]
        line = text.count("\n", 0, here.start()) + 2
        blocks.append(Block(str(page.relative_to(ROOT)), line, here[1], here[2], shown))
    return blocks


def environment() -> dict[str, str]:
    """This interpreter's commands first, as after activating its environment."""
    path = [str(ROOT), str(ROOT / "serving"), *filter(None, [os.environ.get("PYTHONPATH")])]
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": commands, "PYTHONPATH": os.pathsep.join(path)}


def run_blocks(blocks: list[Block], names: dict[str, Any]) -> None:
    """Run blocks in the current folder; an AssertionError names the one that does not do what it shows."""
    for block in blocks:
        printed = _python(block, names) if block.language == "python" else _shell(block)
        if block.shown is not None:
            assert matches(block.shown, printed), f"{block.place} shows\n{block.shown}\nand prints\n{printed}"


def _python(block: Block, names: dict[str, Any]) -> str:
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, block.page, "exec")
    with contextlib.redirect_stdout(out):
        try:
            exec(code, names)
        except Exception as error:
            if block.shown is None:
                raise
            kind = type(error)
            home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
            print(f"{home}{kind.__qualname__}: {error}")
    return out.getvalue()


def _shell(block: Block) -> str:
    no_server_stays = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
    done = subprocess.run(
        ["bash", "-euc", no_server_stays + block.text],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(),
        check=False,
    )
    if block.shown is None or done.returncode == 0:
        assert done.returncode == 0, (
            f"{block.place} ends with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
        return done.stdout
    return done.stdout + done.stderr


def matches(shown: str, printed: str) -> bool:
    """Whether a text is what is shown, line by line; space at the ends of lines counts for nothing."""

    def lines(text: str) -> str:
        return "\n".join(line.rstrip() for line in text.strip().splitlines())

    pattern = ".*".join(re.escape(part) for part in lines(shown).split("…"))
    return re.fullmatch(pattern, lines(printed), flags=re.DOTALL) is not None
