"""Parts are made of the delta, of rows of a call, and of other parts, while others write and search."""
