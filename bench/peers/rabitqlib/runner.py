"""rabitqlib's SymphonyQG: a graph whose vertices hold 1-bit codes of their neighbors, wholly in memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from rabitqlib import SymqgIndex

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from protocol import System, run


class Rabitqlib(System):
    package = "rabitqlib"
    index: Any

    def build(self, base: np.ndarray) -> None:
        index = SymqgIndex(base.shape[1], self.options["degree"])
        index.build(
            np.asarray(base, dtype=np.float32), self.options["build_list_size"], num_threads=self.threads
        )
        index.save(str(self.folder / "index.symqg"))

    def open(self) -> None:
        self.index = SymqgIndex.load(str(self.folder / "index.symqg"))

    def search_batch(self, queries: np.ndarray) -> Any:
        return self.index.search_batch(queries, self.k, self.point["list_size"], num_threads=self.threads)

    def ids(self, answer: Any) -> np.ndarray:
        return np.asarray(answer[0], dtype=np.int64)


run(Rabitqlib)
