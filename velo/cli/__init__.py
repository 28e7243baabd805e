"""The ``velo`` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, which needs the extra ``cli``."""
    try:
        from velo.cli.app import app
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in ("typer", "rich"):
            raise
        sys.exit(f"velo: the command line needs {package}: pip install 'veloann[cli]'")
    app()
