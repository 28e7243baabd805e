"""The protocol between routers and shards: frames over sockets."""
