"""The files of an index that Python reads and writes, and the replacement of whole folders."""
