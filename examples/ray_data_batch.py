"""Search as a step of a Ray Data pipeline: every block of queries gets its neighbors as two more columns.

    python examples/ray_data_batch.py [INDEX]

Without an index the sample is built first. Each actor opens the index once, whatever the number of batches.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

import velo
from velo.formats import open_vectors
from velo_serving import VectorSearch

DATA = Path(__file__).resolve().parent / "data"


def main(index: str | None = None) -> None:
    """Search all queries of the sample in batches of 64."""
    with tempfile.TemporaryDirectory() as folder:
        path = index or str(Path(folder) / "sample.velo")
        if index is None:
            velo.build(path, DATA / "sample.u8bin", metadata=DATA / "sample_labels.parquet").close()
        queries = open_vectors(DATA / "sample_queries.u8bin").read()
        ray.data.DataContext.get_current().enable_progress_bars = False
        dataset = ray.data.from_items(
            [{"query": number, "vector": vector.tolist()} for number, vector in enumerate(queries)]
        )
        # --8<-- [start:batch]
        found = dataset.map_batches(
            VectorSearch,
            fn_constructor_kwargs={"path": path, "k": 5, "memory": "20%", "threads": 1},
            batch_size=64,
            compute=ray.data.ActorPoolStrategy(size=1),
        )
        # --8<-- [end:batch]
        rows = sorted(found.take_all(), key=lambda row: row["query"])
        print(f"{len(rows)} queries searched")
        for row in rows[:3]:
            print(f"query {row['query']}: ids {list(row['ids'])}")


if __name__ == "__main__":
    main(*sys.argv[1:])
