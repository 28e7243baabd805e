"""What ``python -m bench`` measures: a module a command, and what serves it alone."""
