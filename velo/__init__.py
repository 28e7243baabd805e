"""Vector search over an index that lives on an SSD and answers as if it lived in memory."""
