"""Adapters of velo for benches that others wrote, a folder for each project; docs/howto/outside.md."""
