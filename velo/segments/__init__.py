"""Open segments, the delta, deleted rows, and the view that one search sees."""
