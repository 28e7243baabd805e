"""A job on Ray: shards as actors, one search over all of them.

    python examples/ray_job.py [COLLECTION]

Without a collection the sample is built into four shards first. On a cluster, give each node a resource for
the disk it has (``ray start --resources '{"shard-0": 1}'``) and pin the shards:
``pin="resource:shard-{shard}"``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import velo
from velo.formats import open_vectors
from velo_serving import Cluster

DATA = Path(__file__).resolve().parent / "data"


def main(collection: str | None = None) -> None:
    """Search the sample's first queries on every shard."""
    with tempfile.TemporaryDirectory() as folder:
        path = collection or str(
            velo.build_collection(
                Path(folder) / "sample.velo",
                DATA / "sample.u8bin",
                shards=4,
                metadata=DATA / "sample_labels.parquet",
            )
        )
        queries = open_vectors(DATA / "sample_queries.u8bin").read()[:5]
        # --8<-- [start:cluster]
        with Cluster.start(path, threads=1) as cluster:
            answer = cluster.search(queries, k=3, filter={"price": {"$lt": 0.5}}, return_metadata=["brand"])
        print(f"{answer.shards_answered} of {answer.shards_total} shards answered")
        # --8<-- [end:cluster]
        for row, ids in enumerate(answer.ids.tolist()):
            brands = answer.metadata[row].column("brand").to_pylist()
            print(f"query {row}: ids {ids}, brands {brands}")


if __name__ == "__main__":
    main(*sys.argv[1:])
