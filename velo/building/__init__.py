"""Builds of indexes and collections of shards, and the measurements at the end of a build."""
