"""Indexes of other libraries, read row by row: vectors, ids, and metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from velo.importing.files import Asked, ForeignIndex, open_faiss, open_hnswlib, open_usearch
from velo.importing.lancedb import open_lancedb
from velo.importing.qdrant import open_qdrant

__all__ = ["OPENERS", "Asked", "ForeignIndex"]

#: The function that opens an index of each library.
OPENERS: Final[dict[str, Callable[[Asked], ForeignIndex]]] = {
    "faiss": open_faiss,
    "hnswlib": open_hnswlib,
    "lancedb": open_lancedb,
    "qdrant": open_qdrant,
    "usearch": open_usearch,
}
