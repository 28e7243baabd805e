"""Build an index over the sample, search it, measure recall. Takes a few seconds.

python examples/local_search.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import velo
from velo.formats import open_vectors, read_truth
from velo.testing import recall_at_k

SAMPLE = Path(__file__).resolve().parent / "data"


def main(folder: Path) -> float:
    queries = open_vectors(SAMPLE / "sample_queries.u8bin").read()
    truth = read_truth(SAMPLE / "sample_truth.bin")

    # The vectors are given by path: they are streamed, never held in memory whole.
    path = folder / "sample.velo"
    with velo.build(path, SAMPLE / "sample.u8bin", metric="l2", memory="20%", overwrite=True) as index:
        print(index)

    with velo.open(path, memory="20%") as index:
        result = index.search(queries, k=10, recall=0.95)
        ids, distances = result
        print("first query:", *(f"{i} ({d:,.0f})" for i, d in zip(ids[0], distances[0], strict=True)))
        found = recall_at_k(ids, truth.ids[:, :10])
        print(f"recall@10 {found:.3f} with {result.stats['reads'].mean():.1f} reads a query")
        print(index.explain(queries[0], k=10))
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
