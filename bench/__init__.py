"""Benchmarks of velo and of its peers: numbers that others can repeat. ``python -m bench --help`` lists the
commands.
"""
