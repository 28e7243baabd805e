"""``python -m bench hybrid``: what words, vectors and both find of the set `text`, known item by known item.

An item is a package that somebody has in mind: asked for by its name, by a paraphrase of what it does, or by
its summary, quoted. Vectors of what is asked come from the model that the set's own came from, by the script
that made the set. It needs the packages tokenizers and safetensors.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import velo
from bench.commands.hybrid_asked import PARAPHRASES
from bench.harness import datasets, machine, pages, tables

__all__ = ["Asked", "asked_of", "markdown", "measure", "run"]

K: Final = 10
SEED: Final = 41
#: Of the searches: how they are called, and their fusion; None: vectors alone.
WAYS: Final[Mapping[str, velo.RRF | velo.Weighted | None]] = {
    "vectors": None,
    "words": velo.RRF(vectors=0.0),
    "both, by ranks": velo.RRF(),
    "both, by scores": velo.Weighted(),
    "both, by ranks, 100 of each": velo.RRF(depth=100),
    "both, by scores, 100 of each": velo.Weighted(depth=100),
}
#: What the column of the text holds.
COLUMNS: Final = ("summary", "name and summary")

Asked = Mapping[str, tuple[Sequence[str], Sequence[int]]]
Row = dict[str, Any]


def asked_of(columns: pa.Table, count: int) -> Asked:
    """By its kind what is asked: the texts, and the row that each has in mind."""
    names, summaries = (columns[name].to_pylist() for name in ("package", "summary"))
    rows = np.random.default_rng(SEED).permutation(len(names))[:count].tolist()
    row_of = {name: row for row, name in enumerate(names)}
    known = {text: row_of[name] for name, text in PARAPHRASES.items() if name in row_of}
    return {
        "name": ([names[row] for row in rows], rows),
        "paraphrase": (list(known), list(known.values())),
        "summary": ([summaries[row] for row in rows], rows),
    }


def measure(
    index: velo.Index, column: str, asked: Asked, vectors: Mapping[str, NDArray[np.float32]]
) -> list[Row]:
    """Of each kind and way how often the row in mind is the first, or among ten, and what that takes."""
    found = []
    for kind, (texts, rows) in asked.items():
        for way, fusion in WAYS.items():
            cost_s, ranks, reads = 0.0, [], []
            for text, row, vector in zip(texts, rows, vectors[kind], strict=True):
                before = time.process_time()
                how: dict[str, Any] = {} if fusion is None else {"text": text, "fusion": fusion}
                result = index.search(vector, K, recall=0.95, **how)
                cost_s += time.process_time() - before
                at = np.flatnonzero(result.ids == row)
                ranks.append(int(at[0]) + 1 if len(at) else 0)
                reads.append(int(result.stats["reads"][0]))
            first = np.array([1 / rank if rank else 0.0 for rank in ranks])
            found.append(
                {
                    "column": column,
                    "asked": kind,
                    "way": way,
                    "count": len(texts),
                    "at_1": float(np.mean(np.array(ranks) == 1)),
                    "at_10": float(np.mean(np.array(ranks) > 0)),
                    "mean_reciprocal_rank": float(first.mean()),
                    "reads": float(np.mean(reads)),
                    "cpu_us": cost_s / len(texts) * 1e6,
                }
            )
    return found


def run(data: Path, maker: Path, wheel: Path, work: Path, out: Path, name: str, count: int) -> None:
    """Measure, and write ``out/name.md`` and ``out/name.jsonl``."""
    dataset = datasets.load(data)
    columns = pq.read_table(data / "meta.parquet", columns=["package", "summary", "section"])
    asked = asked_of(columns, count)
    model = _model(maker, wheel)
    vectors = {kind: model.encode(list(texts))[0] for kind, (texts, _) in asked.items()}
    rows: list[Row] = []
    sizes: list[Row] = []
    for column in COLUMNS:
        texts = columns["summary"].to_pylist()
        if column != "summary":
            texts = [
                f"{one}: {text}" for one, text in zip(columns["package"].to_pylist(), texts, strict=True)
            ]
        path = work / f"hybrid-{column.replace(' ', '-')}.velo"
        began = time.process_time()
        velo.build(
            path, dataset.base, metric="cosine", metadata={"text": texts}, text="text", overwrite=True
        ).close()
        build_s = time.process_time() - began
        with velo.open(path, memory="25%") as index:
            rows += measure(index, column, asked, vectors)
            info = index.info()
        sizes.append(
            {
                "column": column,
                "text_bytes": sum(len(str(text).encode()) for text in texts),
                "words_bytes": info["disk_bytes"]["columns.words"],
                "memory_bytes": info["memory_bytes"]["words"],
                "build_cpu_s": build_s,
            }
        )
    head = {
        "machine": machine.describe(work),
        "dataset": dataset.name,
        "n": dataset.n,
        "dim": dataset.dim,
        "library": pages.library(),
        "section": "hybrid",
    }
    kept = [{"head": head, "library": head["library"], "section": "hybrid"}, *sizes, *rows]
    pages.write(out, name, kept, markdown(head, sizes, rows))


def _model(maker: Path, wheel: Path) -> Any:
    """The model of the set, as its script runs it."""
    spec = importlib.util.spec_from_file_location("maker", maker)
    if spec is None or spec.loader is None:
        raise datasets.DataError(f"{maker} is no script")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MiniLM(str(wheel))


def markdown(head: Row, sizes: Sequence[Row], rows: Sequence[Row]) -> str:
    """The page."""
    lines = [
        "# Words beside vectors",
        "",
        f"{head['dataset']}: {head['n']:,} × {head['dim']}, descriptions of packages, cosine, 25 % of the "
        f"vectors in memory, recall 0.95. {tables.machine_line(head['machine'])}",
        "",
        "An item is a package that somebody has in mind. It is asked for by its name, by a paraphrase of "
        "what it does (written by hand, without a look at the summaries), or by its summary, quoted. Vectors "
        "of what is asked come from the model that the set's own came from. Those were made of name, summary "
        "and description together, so vectors alone know more than words of the summary do.",
        "",
    ]
    for size in sizes:
        some = [row for row in rows if row["column"] == size["column"]]
        lines += [
            f"## Words of the {size['column']}",
            "",
            f"{size['text_bytes'] / 1e6:.1f} MB of text, {size['words_bytes'] / 1e6:.1f} MB of words on "
            f"disk, {size['memory_bytes'] >> 10} KiB of memory.",
            "",
            *tables.table(
                ["asked by", "items", "way", "first", "among ten", "mean 1/rank", "reads", "processor, µs"],
                [
                    [
                        row["asked"],
                        f"{row['count']:,}",
                        row["way"],
                        f"{row['at_1']:.3f}",
                        f"{row['at_10']:.3f}",
                        f"{row['mean_reciprocal_rank']:.3f}",
                        f"{row['reads']:.1f}",
                        f"{row['cpu_us']:,.0f}",
                    ]
                    for row in some
                ],
            ),
            "",
        ]
    return "\n".join(lines)
