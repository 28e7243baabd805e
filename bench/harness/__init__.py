"""Parts of every command: sets, machines, runs of a system, sections, curves, targets, reports."""
