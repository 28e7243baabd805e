import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from given import folder, gone, new_table, new_vectors, queries, table, vectors
from usearch.index import Index, MetricKind, search

# ---- build
index = Index(ndim=vectors.shape[1], metric="cos", dtype="f32")
index.add(table["id"].to_numpy(), vectors)

# ---- search
found = [index.search(query, 10).keys for query in queries]

# ---- filtered search
passes = pc.and_(pc.equal(table["section"], "python"), pc.less(table["installed_size"], 500))
keys = table["id"].filter(passes).to_numpy()
rows = np.asarray(index.get(keys))
filtered = [keys[search(rows, query, 10, MetricKind.Cos, exact=True).keys] for query in queries]

# ---- insert
index.add(new_table["id"].to_numpy(), new_vectors)
table = pa.concat_tables([table, new_table])

# ---- delete
index.remove(np.array(gone))
table = table.filter(pc.invert(pc.is_in(table["id"], pa.array(gone))))

# ---- update where
section = pc.if_else(pc.equal(table["section"], "games"), "play", table["section"])
table = table.set_column(table.schema.get_field_index("section"), "section", section)
index.save(f"{folder}/packages.usearch")
pq.write_table(table, f"{folder}/packages.parquet")

# ---- open again
index = Index.restore(f"{folder}/packages.usearch")
table = pq.read_table(f"{folder}/packages.parquet")

# ---- search again
found_again = [index.search(query, 10).keys for query in queries]

# ---- count
count = table.filter(pc.equal(table["section"], "play")).num_rows
