"""The files of an index that Python writes and reads, and how one folder takes the place of another."""
