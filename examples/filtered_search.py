"""Search among the rows that pass a filter, written as an expression and as a dict.

python examples/filtered_search.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import velo
from velo.formats import open_vectors

SAMPLE = Path(__file__).resolve().parent / "data"


def main(folder: Path) -> None:
    queries = open_vectors(SAMPLE / "sample_queries.u8bin").read()
    path = folder / "labeled.velo"
    with velo.build(
        path, SAMPLE / "sample.u8bin", metadata=SAMPLE / "sample_labels.parquet", memory="20%", overwrite=True
    ) as index:
        # The same condition twice; both cost the same.
        cheap = (velo.col("price") < 0.2) & velo.col("uniform10").isin([1, 2, 3])
        as_dict = {"price": {"$lt": 0.2}, "uniform10": {"$in": [1, 2, 3]}}
        hit = index.search(queries[0], k=5, filter=cheap, return_metadata=["price", "uniform10", "brand"])
        assert hit.ids.tolist() == index.search(queries[0], k=5, filter=as_dict).ids.tolist()
        print(hit.to_arrow().to_pandas() if _has_pandas() else hit.to_arrow())

        # A filter that few rows pass finds fewer than k: no error, and .counts says how many.
        rare = index.search(queries[:3], k=10, filter=velo.col("price") < 0.0002)
        print("rare:", rare.counts.tolist(), "found of 10")

        # A filter for each query.
        each = [{"uniform10": number % 10} for number in range(len(queries))]
        result = index.search(queries, k=10, filter=each)
        print(f"{result.stats['reads'].mean():.1f} reads a query where 10 % of the rows pass")
        print(index.explain(queries[0], k=10, filter=cheap))


def _has_pandas() -> bool:
    try:
        import pandas  # noqa: F401
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
