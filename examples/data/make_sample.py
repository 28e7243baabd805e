"""Cut the sample in this folder out of the sift1m benchmark set (README.md here says what that is).

    python examples/data/make_sample.py --data DIR_OF_SIFT1M [--out DIR]

The first 20,000 base rows and the first 200 queries; both orders are random in the source. Truth is exact:
squared L2 of uint8 vectors is a whole number, equal distances go by lower id. Running it twice gives the
same bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

ROW_COUNT = 20_000
QUERY_COUNT = 200
TRUTH_K = 100
FILTERED_K = 10
COLUMNS = ["uniform10", "zipf10", "cluster10", "price", "ts", "tags", "brand"]


def read_u8bin(path: Path, row_count: int) -> NDArray[np.uint8]:
    n, dim = np.fromfile(path, dtype="<u4", count=2)
    assert n >= row_count, f"{path} holds {n} rows"
    return np.fromfile(path, dtype=np.uint8, count=row_count * int(dim), offset=8).reshape(
        row_count, int(dim)
    )


def write_u8bin(path: Path, rows: NDArray[np.uint8]) -> None:
    with path.open("wb") as file:
        file.write(np.array(rows.shape, dtype="<u4").tobytes())
        file.write(np.ascontiguousarray(rows).tobytes())


def write_truth(path: Path, ids: NDArray[np.int32], distances: NDArray[np.float32]) -> None:
    with path.open("wb") as file:
        file.write(np.array(ids.shape, dtype="<u4").tobytes())
        file.write(ids.astype("<i4").tobytes())
        file.write(distances.astype("<f4").tobytes())


def nearest(
    base: NDArray[np.uint8], queries: NDArray[np.uint8], k: int, passes: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The k nearest rows of each query by direct computation; ``passes`` (query, row) leaves the others
    out.
    """
    rows = base.astype(np.int64)
    ids = np.empty((len(queries), k), dtype=np.int32)
    distances = np.empty((len(queries), k), dtype=np.float32)
    for i, query in enumerate(queries.astype(np.int64)):
        squared = ((rows - query) ** 2).sum(axis=1)
        if passes is not None:
            squared = np.where(passes[i], squared, np.iinfo(np.int64).max)
        order = np.argsort(squared, kind="stable")[:k]
        assert squared[order[-1]] < np.iinfo(np.int64).max, "fewer than k rows pass"
        ids[i] = order
        distances[i] = squared[order]
    return ids, distances


def main() -> None:
    parser = argparse.ArgumentParser(description="Cut the sample out of sift1m.")
    parser.add_argument("--data", type=Path, required=True, help="folder of sift1m")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)

    base = read_u8bin(arguments.data / "base.u8bin", ROW_COUNT)
    queries = read_u8bin(arguments.data / "query.u8bin", QUERY_COUNT)
    labels = pq.read_table(arguments.data / "labels.parquet", columns=COLUMNS).slice(0, ROW_COUNT)
    asked = pq.read_table(arguments.data / "query_filters.parquet", columns=["uniform10"]).slice(
        0, QUERY_COUNT
    )

    write_u8bin(out / "sample.u8bin", base)
    write_u8bin(out / "sample_queries.u8bin", queries)
    brands = labels.column("brand").combine_chunks().dictionary_decode().dictionary_encode()
    labels = labels.set_column(labels.schema.get_field_index("brand"), "brand", brands)
    pq.write_table(labels, out / "sample_labels.parquet", compression="zstd", compression_level=15)
    pq.write_table(asked, out / "sample_query_filters.parquet", compression="zstd")

    write_truth(out / "sample_truth.bin", *nearest(base, queries, TRUTH_K))
    row_class = labels.column("uniform10").to_numpy()
    passes = asked.column("uniform10").to_numpy()[:, None] == row_class[None, :]
    write_truth(out / "sample_truth_uniform10.bin", *nearest(base, queries, FILTERED_K, passes))
    for path in sorted(out.glob("sample*")):
        print(
            f"{path.name:30} {path.stat().st_size:>9,} bytes",
            pa.__version__ if path.suffix == ".parquet" else "",
        )


if __name__ == "__main__":
    main()
