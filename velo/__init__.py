"""Vector search over an index that lives on an SSD and answers as if it lived in memory."""

__version__ = "0.1.0"
__all__ = ["__version__"]
