"""Full-text index of a column: the rows that contain each word, and BM25 ranking."""
