"""What a newcomer has in hand: rows as an array, a table with a row of metadata for each, queries, a folder.

``run.py`` puts it into place before a program starts. A program imports it by this name, so that it reads as
one that somebody wrote over data of their own.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

#: Where the program may write.
folder: str
#: Rows to begin with, float32, and their metadata; ``id`` is a column of it.
vectors: NDArray[np.float32]
table: pa.Table
#: Rows that come later.
new_vectors: NDArray[np.float32]
new_table: pa.Table
#: Ids that go.
gone: list[int]
queries: NDArray[np.float32]
