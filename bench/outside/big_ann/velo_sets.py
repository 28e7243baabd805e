"""Sets of velo's own benches for big-ann-benchmarks; it lies in ``benchmark`` there.

The files are written by ``python -m bench outside place``: nothing is downloaded.
"""

from __future__ import annotations

import os
from typing import Any

import benchmark.datasets as theirs


class VeloSet(theirs.DatasetCompetitionFormat):
    """uint8 vectors in ``data/NAME``, compared by their squared distance."""

    dtype = "uint8"
    base_url = ""
    private_qs_url = None
    private_gt_url = None
    ds_fn, qs_fn, gt_fn = "base.u8bin", "query.u8bin", "truth.bin"

    def __init__(self, name: str) -> None:
        self.basedir = os.path.join(theirs.BASEDIR, name)
        # Every set is made when commands list them, so also where the files of this one are not there.
        self.nb, self.d = self._shape(self.ds_fn)
        self.nq, _ = self._shape(self.qs_fn)

    def _shape(self, name: str) -> tuple[int, int]:
        path = os.path.join(self.basedir, name)
        if not os.path.exists(path):
            return 0, 0
        rows, dim = theirs.np.fromfile(path, dtype="uint32", count=2)
        return int(rows), int(dim)

    def prepare(self, skip_data: bool = False) -> None:
        """Nothing is downloaded."""

    def distance(self) -> str:
        return "euclidean"

    def search_type(self) -> str:
        return "knn"


class VeloFilterSet(VeloSet):
    """The same with words, as the filter track has them."""

    def get_dataset_metadata(self) -> Any:
        return theirs.read_sparse_matrix(os.path.join(self.basedir, "base.spmat"))

    def get_queries_metadata(self) -> Any:
        return theirs.read_sparse_matrix(os.path.join(self.basedir, "query.spmat"))

    def search_type(self) -> str:
        return "knn_filtered"


theirs.DATASETS["sift100k-filter"] = lambda: VeloFilterSet("sift100k-filter")
theirs.DATASETS["sift100k-clustered"] = lambda: VeloSet("sift100k-clustered")
