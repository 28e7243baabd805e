from given import folder, gone, new_table, new_vectors, queries, table, vectors

import velo

# ---- build
index = velo.build(f"{folder}/packages.velo", vectors, ids_column="id", metadata=table, metric="cosine")
index.close()
index = velo.open(f"{folder}/packages.velo", writable=True)

# ---- search
found = [index.search(query, k=10).ids for query in queries]

# ---- filtered search
small = (velo.col("section") == "python") & (velo.col("installed_size") < 500)
filtered = [index.search(query, k=10, filter=small).ids for query in queries]

# ---- insert
index.insert(new_vectors, ids_column="id", metadata=new_table)

# ---- delete
index.delete(gone)

# ---- update where
index.update(filter=velo.col("section") == "games", metadata={"section": "play"})
index.close()

# ---- open again
index = velo.open(f"{folder}/packages.velo", writable=True)

# ---- search again
found_again = [index.search(query, k=10).ids for query in queries]

# ---- count
count = index.count(velo.col("section") == "play")
