"""Launchers of this machine: the command, shards and gateways as processes."""
