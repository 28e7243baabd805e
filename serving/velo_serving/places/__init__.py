"""What is served and where it lies: collections, their folders and places in stores, records of shards."""
