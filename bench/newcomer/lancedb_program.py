import lancedb
import pyarrow as pa
from given import folder, gone, new_table, new_vectors, queries, table, vectors


def rows(table, vectors):
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    return table.append_column("vector", column)


def ids(query, where=None):
    asked = packages.search(query).distance_type("cosine").select(["id", "_distance"]).limit(10)
    return asked.where(where).to_arrow()["id"] if where else asked.to_arrow()["id"]


# ---- build
packages = lancedb.connect(folder).create_table("packages", rows(table, vectors))
packages.create_index(metric="cosine", vector_column_name="vector")

# ---- search
found = [ids(query) for query in queries]

# ---- filtered search
filtered = [ids(query, "section = 'python' AND installed_size < 500") for query in queries]

# ---- insert
packages.add(rows(new_table, new_vectors))

# ---- delete
packages.delete(f"id IN ({', '.join(map(str, gone))})")

# ---- update where
packages.update(where="section = 'games'", values={"section": "play"})
packages.optimize()

# ---- open again
packages = lancedb.connect(folder).open_table("packages")

# ---- search again
found_again = [ids(query) for query in queries]

# ---- count
count = packages.count_rows("section = 'play'")
