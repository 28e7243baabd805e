"""``python -m velo`` is the ``velo`` command."""

from velo.cli import main

main()
