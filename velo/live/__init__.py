"""Rows that go while an index answers: the handle, what a search sees of it, the verbs of an index."""
