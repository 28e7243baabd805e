"""Programs in processes of their own, which find this velo."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import Any


def environment() -> dict[str, str]:
    """This environment with the folders from which this process imports."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder)}


def _command(program: str, arguments: tuple[Any, ...]) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]


def run(program: str, *arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    usual: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 280, "check": False}
    return subprocess.run(_command(program, arguments), **usual | {"env": environment()} | options)


def start(program: str, *arguments: Any, **options: Any) -> subprocess.Popen[str]:
    """Start a program; its output is read line by line."""
    usual: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "env": environment()}
    return subprocess.Popen(_command(program, arguments), **usual | options)
