"""The road between routers and shards: frames over sockets, without Ray and without HTTP."""
