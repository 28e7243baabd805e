"""One shard at work: an index that answers, its process, what is written to it and looked up in it."""
