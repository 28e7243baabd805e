"""Vector search over an index that lives on an SSD."""
