"""Readers and writers of vector files, all of them in chunks.

| suffix                    | format                                                       |
|---------------------------|--------------------------------------------------------------|
| .fbin .u8bin .i8bin .ibin | big-ann: int32 n, int32 d, then n·d elements                 |
| .fvecs .bvecs .ivecs      | TEXMEX: every row is int32 d, then d elements                |
| .npy                      | numpy, two-dimensional                                       |
| .hdf5 .h5                 | ann-benchmarks; `column` names the data set (else ``train``) |
| .parquet                  | Parquet with a column of lists                               |
| a folder, or a pattern    | Parquet files with the same columns, by their names          |
| .arrow .feather .ipc      | Arrow IPC file or stream with such a column                  |
"""

from __future__ import annotations

from velo.formats.files import SUFFIXES, open_vectors, write_vectors
from velo.formats.source import Source
from velo.formats.truth import Truth, read_truth, write_truth
from velo.types import VectorSource

__all__ = [
    "SUFFIXES",
    "Source",
    "Truth",
    "VectorSource",
    "open_vectors",
    "read_truth",
    "write_truth",
    "write_vectors",
]
