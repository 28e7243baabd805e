"""The ``velo`` command."""

from __future__ import annotations

from velo.cli.app import main

__all__ = ["main"]
