"""Open segments, the delta, dead rows, and the view of them that one search sees."""
