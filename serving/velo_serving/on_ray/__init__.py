"""Shards as Ray actors, builds as Ray tasks, searches as steps of Ray Data."""
