"""Metadata of rows that stand in memory, in the form in which a segment has them on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from velo.folder.metadata import MetadataStore, encoded_columns

__all__ = ["TableColumns"]


class TableColumns(MetadataStore):
    """Metadata of rows in memory, encoded as a segment would hold it."""

    def __init__(self, table: Any, schema: Any) -> None:
        arrays = encoded_columns(table, np.arange(table.num_rows))
        batch = pa.RecordBatch.from_arrays(arrays, names=schema.names)
        self.generation = 1
        self._hold(Path("rows of the delta"), schema, batch)

    @property
    def resident_bytes(self) -> int:
        """Memory beside mapped files: all of it."""
        return int(self._batch.nbytes) + super().resident_bytes

    @property
    def bytes_by_column(self) -> dict[str, int]:
        """Nothing of them is mapped."""
        return dict.fromkeys(self.column_names, 0)
