"""From vectors to an index: builds, collections of shards, and what a build measures when it is done."""
