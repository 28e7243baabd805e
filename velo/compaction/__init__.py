"""Compaction: new segments from the delta, from rows of a call and from other segments."""
