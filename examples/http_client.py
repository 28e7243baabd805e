"""Ask a gateway over HTTP, with the client and with nothing but JSON.

velo serve INDEX &
python examples/http_client.py [URL]
"""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from pathlib import Path

from velo.formats import open_vectors
from velo_serving import Client

DATA = Path(__file__).resolve().parent / "data"


def main(url: str = "http://127.0.0.1:8000") -> None:
    """Search the sample's first queries in four ways."""
    queries = open_vectors(DATA / "sample_queries.u8bin").read()[:4]

    # Many queries in one request; Arrow bodies are the cheapest way to send them.
    with Client(url, body_format="arrow") as client:
        ids, distances = client.search(queries, k=3)
        for row, (found, near) in enumerate(zip(ids.tolist(), distances.tolist(), strict=True)):
            print(f"query {row}: ids {found}, squared distances {near}")

    # A filter for each query, and metadata with the hits.
    with Client(url) as client:
        filters = [
            {"price": {"$lt": 0.1}},
            None,
            {"tags": {"$any": ["tag00000", "tag00001"]}},
            {"uniform10": 3},
        ]
        result = client.search(queries, k=3, filters=filters, return_metadata=["price"])
        print(f"{result.shards_answered} of {result.shards_total} shards answered in {result.took_ms:.1f} ms")
        print("prices below 0.1:", result.metadata[0].column("price").to_pylist())

    # Without blocking an event loop.
    async def several() -> None:
        async with Client(url) as client:
            answers = await asyncio.gather(*(client.search_async(query, k=1) for query in queries))
            print("nearest:", [int(answer.ids[0]) for answer in answers])

    asyncio.run(several())

    # Any language can do this.
    body = json.dumps({"vector": queries[0].tolist(), "k": 3, "filter": {"price": {"$gte": 0.5}}}).encode()
    request = urllib.request.Request(f"{url}/v1/search", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        print("by hand:", json.load(response)["ids"][0])


if __name__ == "__main__":
    main(*sys.argv[1:])
