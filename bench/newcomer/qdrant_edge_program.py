from pathlib import Path

import qdrant_edge as qdrant
from given import folder, gone, new_table, new_vectors, queries, table, vectors


def upsert(table, vectors):
    for start in range(0, len(vectors), 1000):
        payloads = table.slice(start, 1000).to_pylist()
        points = [
            qdrant.Point(payload["id"], vector.tolist(), payload)
            for vector, payload in zip(vectors[start:], payloads, strict=False)
        ]
        shard.update(qdrant.UpdateOperation.upsert_points(points))


def is_in(section):
    return qdrant.FieldCondition("section", match=qdrant.MatchValue(section))


def ids(query, where=None):
    asked = qdrant.Query.Nearest(query.tolist())
    return [hit.id for hit in shard.query(qdrant.QueryRequest(10, query=asked, filter=where))]


# ---- build
Path(folder, "packages").mkdir()
kind = qdrant.EdgeVectorParams(vectors.shape[1], qdrant.Distance.Cosine)
shard = qdrant.EdgeShard.create(f"{folder}/packages", qdrant.EdgeConfig(kind))
for field, type_ in (("section", "Keyword"), ("installed_size", "Integer")):
    schema = getattr(qdrant.PayloadSchemaType, type_)
    shard.update(qdrant.UpdateOperation.create_field_index(field, schema))
upsert(table, vectors)
shard.optimize()

# ---- search
found = [ids(query) for query in queries]

# ---- filtered search
small = qdrant.FieldCondition("installed_size", range=qdrant.RangeFloat(lt=500))
filtered = [ids(query, qdrant.Filter(must=[is_in("python"), small])) for query in queries]

# ---- insert
upsert(new_table, new_vectors)

# ---- delete
shard.update(qdrant.UpdateOperation.delete_points(gone))

# ---- update where
games = qdrant.Filter(must=[is_in("games")])
shard.update(qdrant.UpdateOperation.set_payload_by_filter(games, {"section": "play"}))
shard.optimize()
shard.close()

# ---- open again
shard = qdrant.EdgeShard.load(f"{folder}/packages")

# ---- search again
found_again = [ids(query) for query in queries]

# ---- count
count = shard.count(qdrant.CountRequest(filter=qdrant.Filter(must=[is_in("play")])))
