"""Indexes of other libraries, read row by row: vectors, ids, and what stands beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from velo.importing.faiss import open_faiss
from velo.importing.hnswlib import open_hnswlib
from velo.importing.lancedb import open_lancedb
from velo.importing.qdrant import open_qdrant
from velo.importing.rows import Asked, ForeignIndex
from velo.importing.usearch import open_usearch

__all__ = ["OPENERS", "Asked", "ForeignIndex"]

#: What opens the index of each library.
OPENERS: Final[dict[str, Callable[[Asked], ForeignIndex]]] = {
    "faiss": open_faiss,
    "hnswlib": open_hnswlib,
    "lancedb": open_lancedb,
    "qdrant": open_qdrant,
    "usearch": open_usearch,
}
