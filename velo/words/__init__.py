"""Words of a column: which rows hold them, how often, and which rows a text is most about."""
