"""What every command needs: sets, machines, runs of a system, sections, curves, tables, pictures."""
