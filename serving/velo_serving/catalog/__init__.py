"""The catalog: collections, their folders and places in object stores, records of shards."""
