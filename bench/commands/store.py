"""``python -m bench store``: what the metadata store takes to write, and filters to check and resolve.

A made table of a million rows and eight columns stands for real ones: a class, a price, a year with nulls, a
time, skewed brands, a bool, lists of a skewed vocabulary of 20,000 words, and sellers that hardly repeat.
Checks go over vertices in random order, which is harder than a search's own order. Times are of one thread,
and the tenth percentile over runs too short to be interrupted often.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from velo import col
from velo.filters import Expr
from velo.filters.compiler import FilterCompiler
from velo.folder.metadata import COLUMNS_FILE, MetadataStore, write_metadata

__all__ = ["run"]

_CHUNK = 20_000
_WORDS = 20_000


def _table(n: int, rng: np.random.Generator) -> Any:
    lengths = rng.integers(0, 10, n)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    words = np.minimum(rng.zipf(1.3, offsets[-1]) - 1, _WORDS - 1).astype(np.int32)
    vocabulary = pa.array([f"word{i:05d}" for i in range(_WORDS)])
    lists: Any = pa.ListArray  # the stubs know lists of Python values only
    tags = pa.DictionaryArray.from_arrays(pa.array(words), vocabulary).dictionary_decode()
    brands = np.array([f"brand{i}" for i in range(5000)])[np.minimum(rng.zipf(1.2, n) - 1, 4999)]
    return pa.table(
        {
            "class": pa.array(rng.integers(0, 10, n).astype(np.int8)),
            "price": pa.array(rng.random(n).astype(np.float32) * 1000),
            "year": pa.array(rng.integers(1950, 2026, n).astype(np.int16), mask=rng.random(n) < 0.05),
            "when": pa.array(rng.integers(0, 10**15, n), pa.timestamp("us")),
            "brand": pa.array(brands),
            "sold": pa.array(rng.random(n) < 0.3),
            "tags": lists.from_arrays(pa.array(offsets), tags),
            "seller": pa.array(rng.integers(0, n // 5, n)),
        }
    )


_FILTERS: dict[str, Expr] = {
    "class = 3": col("class") == 3,
    "brand = 'brand7'": col("brand") == "brand7",
    "price < 20": col("price") < 20,
    "year >= 2020 or null": (col("year") >= 2020) | col("year").is_null(),
    "brand, one of five": col("brand").isin([f"brand{i}" for i in (3, 77, 99, 1000, 4000)]),
    "a frequent tag": col("tags").contains_any(["word00003"]),
    "two frequent tags": col("tags").contains_all(["word00000", "word00001"]),
    "two tags, one frequent": col("tags").contains_all(["word00005", "word00300"]),
    "two rare tags": col("tags").contains_all(["word01000", "word05000"]),
    "class and price": (col("class") == 3) & (col("price") < 100),
}


def _batches(rng: np.random.Generator, n: int) -> Iterator[tuple[str, Callable[[], Expr]]]:
    def word() -> str:
        return f"word{rng.integers(0, _WORDS):05d}"

    yield "a seller", lambda: col("seller") == int(rng.integers(0, n // 5))
    yield "two tags", lambda: col("tags").contains_all([word(), word()])
    yield (
        "brand and class",
        lambda: (
            (col("brand") == f"brand{rng.integers(0, 5000)}") & (col("class") == int(rng.integers(0, 10)))
        ),
    )
    yield (
        "price and year",
        lambda: (col("price") < rng.random() * 1000) & (col("year") >= int(rng.integers(1950, 2026))),
    )


def check_ns(compiled: Any, order: Any) -> float:
    """Nanoseconds a vertex."""
    taken = []
    for start in range(0, len(order), _CHUNK):
        some = order[start : start + _CHUNK]
        began = time.perf_counter()
        compiled.check(some)
        taken.append((time.perf_counter() - began) / len(some))
    return float(np.quantile(taken, 0.1)) * 1e9


def run(n: int = 1_000_000, distinct: int = 1000) -> dict[str, Any]:
    """Print the tables and return what they hold.

    Parameters
    ----------
    n : int
        Rows of the table.
    distinct : int
        Different filters of a batch.

    Returns
    -------
    dict
        ``write``, ``filters`` (a dict a filter) and ``batches``.
    """
    rng = np.random.default_rng(1)
    table = _table(n, rng)
    rows = rng.permutation(n).astype(np.uint32)
    order = rng.permutation(n).astype(np.uint32)
    with tempfile.TemporaryDirectory(prefix="velo-store-") as name:
        folder = Path(name)
        began, used = time.perf_counter(), time.process_time()
        files = write_metadata(folder, table, rows)
        written: dict[str, Any] = {
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - used,
            "bytes_a_row": {file: (folder / file).stat().st_size / n for file in files},
        }
        sizes = ", ".join(f"{file} {size:.1f}" for file, size in written["bytes_a_row"].items())
        taken = f"{written['seconds']:.1f} s ({written['cpu_seconds']:.1f} s of processor)"
        print(f"{n:,} rows of {table.num_columns} columns written in {taken}")
        print(f"bytes a row: {sizes}\n")
        store = MetadataStore(folder / COLUMNS_FILE, n)
        print("| filter | passing | estimate | exact | check, ns | resolve, µs | check resolved, ns |")
        print("|---|---|---|---|---|---|---|")
        filters = [_one(store, name, expr, order) for name, expr in _FILTERS.items()]
        print("\n| distinct filters | compile, µs | matches, µs | bytes each | exact | error p50, p95 |")
        print("|---|---|---|---|---|---|")
        batches = [_batch(store, name, make, distinct) for name, make in _batches(rng, n)]
    return {"write": written, "filters": filters, "batches": batches}


def _one(store: MetadataStore, name: str, expr: Expr, order: Any) -> dict[str, Any]:
    n = len(order)
    compiled = FilterCompiler(n, store).compile(expr)
    asked_ns = check_ns(compiled, order)
    resolve_s = []
    for _ in range(9):
        fresh = FilterCompiler(n, store).compile(expr)
        began = time.perf_counter()
        fresh.resolve()
        resolve_s.append(time.perf_counter() - began)
    row = {
        "name": name,
        "passing": int(fresh.matches().sum()),
        "estimate": compiled.estimate() * n,
        "exact": compiled.is_exact(),
        "check_ns": asked_ns,
        "resolve_us": min(resolve_s) * 1e6,
        "resolved_check_ns": check_ns(fresh, order),
    }
    print(
        f"| {name} | {row['passing']:,} | {row['estimate']:,.0f} | {'yes' if row['exact'] else 'no'} "
        f"| {asked_ns:.1f} | {row['resolve_us']:.0f} | {row['resolved_check_ns']:.1f} |"
    )
    return row


def _batch(store: MetadataStore, name: str, make: Callable[[], Expr], distinct: int) -> dict[str, Any]:
    compiler = FilterCompiler(store.row_count, store)
    compiler.compile(make())  # the columns' postings are summed once
    expressions = [make() for _ in range(distinct)]
    compile_s, resolve_s, answers = [], [], []
    for expr in expressions:
        began = time.perf_counter()
        answers.append(compiler.compile(expr))
        compiled = time.perf_counter()
        answers[-1].count_matches()
        resolve_s.append(time.perf_counter() - compiled)
        compile_s.append(compiled - began)
    errors = [abs(one.estimate() * store.row_count - one.count()) / max(10, one.count()) for one in answers]
    row = {
        "name": name,
        "compile_us": float(np.median(compile_s)) * 1e6,
        "matches_us": float(np.median(resolve_s)) * 1e6,
        "bytes": sum(one.memory_bytes for one in answers) / distinct,
        "exact": float(np.mean([one.is_exact() for one in answers])),
        "error_p50": float(np.median(errors)),
        "error_p95": float(np.quantile(errors, 0.95)),
    }
    print(
        f"| {name} | {row['compile_us']:.0f} | {row['matches_us']:.0f} | {row['bytes']:,.0f} "
        f"| {row['exact']:.0%} | {row['error_p50']:.3f}, {row['error_p95']:.3f} |"
    )
    return row
