"""The commands of ``python -m bench``: a module with a ``REPORT`` for each, and its parts."""
