"""What serves: the command, shards and gateways as processes of this machine."""
