"""``bench hybrid``: words, vectors and both over the set `text`, for items that a user has in mind.

An item is asked for by its name, by a paraphrase (``hybrid_asked.tsv``), or by its summary. Vectors of
the requests come from the model that the set's own came from, by the script that made the set. It needs the
packages tokenizers and safetensors.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import velo
from bench.harness import datasets, machine
from bench.harness.curves import Row
from bench.harness.report import Cell, Option, Page, Report, Table
from bench.harness.sections import Context, Results, Section

K: Final = 10
SEED: Final = 41
_LIMIT_S = 3600.0
#: Fusions of the searches by their label; None: vectors alone.
WAYS: Final[Mapping[str, velo.RRF | velo.Weighted | None]] = {
    "vectors": None,
    "words": velo.RRF(vectors=0.0),
    "both, by ranks": velo.RRF(),
    "both, by scores": velo.Weighted(),
    "both, by ranks, 100 of each": velo.RRF(depth=100),
    "both, by scores, 100 of each": velo.Weighted(depth=100),
}
#: The contents of the column of text.
COLUMNS: Final = ("summary", "name and summary")

Asked = Mapping[str, tuple[Sequence[str], Sequence[int]]]


def sections_of(_: Context) -> Mapping[str, Section]:
    return {column: Section(column, partial(_measured, column), _LIMIT_S) for column in COLUMNS}


def paraphrases() -> dict[str, str]:
    """Written by hand, without a look at the summaries, by the name of the package."""
    text = Path(__file__).with_name("hybrid_asked.tsv").read_text()
    return dict(line.split("\t") for line in text.splitlines())


def asked_of(columns: pa.Table, count: int) -> Asked:
    """The texts of each kind of request, and the rows that they have in mind."""
    names, summaries = (columns[name].to_pylist() for name in ("package", "summary"))
    rows = np.random.default_rng(SEED).permutation(len(names))[:count].tolist()
    row_of = {name: row for row, name in enumerate(names)}
    known = {text: row_of[name] for name, text in paraphrases().items() if name in row_of}
    return {
        "name": ([names[row] for row in rows], rows),
        "paraphrase": (list(known), list(known.values())),
        "summary": ([summaries[row] for row in rows], rows),
    }


def measure(index: velo.Index, asked: Asked, vectors: Mapping[str, NDArray[np.float32]]) -> list[Row]:
    """The rank of the row in mind, by kind of request and fusion, and the cost."""
    found = []
    for kind, (texts, rows) in asked.items():
        for way, fusion in WAYS.items():
            cost_s, ranks, reads = 0.0, [], []
            for text, row, vector in zip(texts, rows, vectors[kind], strict=True):
                before = time.process_time()
                how: dict[str, Any] = {} if fusion is None else {"text": text, "fusion": fusion}
                result = index.search(vector, K, recall=0.95, **how)
                cost_s += time.process_time() - before
                place = np.flatnonzero(result.ids == row)
                ranks.append(int(place[0]) + 1 if len(place) else 0)
                reads.append(int(result.stats["reads"][0]))
            found.append(
                {
                    "asked": kind,
                    "way": way,
                    "count": len(texts),
                    "at_1": float(np.mean(np.array(ranks) == 1)),
                    "at_10": float(np.mean(np.array(ranks) > 0)),
                    "mean_reciprocal_rank": float(np.mean([1 / rank if rank else 0.0 for rank in ranks])),
                    "reads": float(np.mean(reads)),
                    "cpu_us": cost_s / len(texts) * 1e6,
                }
            )
    return found


def _measured(column: str, context: Context) -> Results:
    folder, options = Path(context.data), context.options
    dataset = datasets.load(folder)
    columns = pq.read_table(folder / "meta.parquet", columns=["package", "summary"])
    asked = asked_of(columns, options["count"])
    model = _model(Path(options["maker"]), options["wheel"])
    vectors = {kind: model.encode(list(texts))[0] for kind, (texts, _) in asked.items()}
    names, texts = (columns[name].to_pylist() for name in ("package", "summary"))
    if column != "summary":
        texts = [f"{name}: {text}" for name, text in zip(names, texts, strict=True)]
    path = context.folder / f"hybrid-{column.replace(' ', '-')}.velo"
    how: dict[str, Any] = {"metric": "cosine", "metadata": {"text": texts}, "text": "text", "overwrite": True}
    velo.build(path, dataset.base, **how).close()
    with velo.open(path, memory="25%") as index:
        info = index.info()
        return {
            "text_bytes": sum(len(str(text).encode()) for text in texts),
            "words_bytes": info["disk_bytes"]["columns.words"],
            "memory_bytes": info["memory_bytes"]["words"],
            "rows": measure(index, asked, vectors),
        }


def _model(maker: Path, wheel: str) -> Any:
    """The model of the set, as its script runs it."""
    spec = importlib.util.spec_from_file_location("maker", maker)
    if spec is None or spec.loader is None:
        raise datasets.DataError(f"{maker} is no script")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MiniLM(wheel)


CELLS: Mapping[str, Cell] = {
    "asked by": "asked",
    "items": "count:,",
    "way": "way",
    "first": "at_1:.3f",
    "among ten": "at_10:.3f",
    "mean 1/rank": "mean_reciprocal_rank:.3f",
    "reads": "reads:.1f",
    "processor, µs": "cpu_us:,.0f",
}


def content(page: Page) -> Iterable[Table]:
    for column, told in page.found.items():
        if "result" in told:
            size = told["result"]
            about = (
                f"{size['text_bytes'] / 1e6:.1f} MB of text, {size['words_bytes'] / 1e6:.1f} MB of words on "
                f"disk, {size['memory_bytes'] >> 10} KiB of memory."
            )
            yield Table(f"Words of the {column}", CELLS, size["rows"], about)


REPORT = Report(
    name="hybrid",
    help="known items of the set text, by words, vectors and both",
    module=__name__,
    title="Words beside vectors",
    about="{dataset}: descriptions of packages, cosine, 25 % of the vectors in memory, recall 0.95. An item "
    "is a package that a user has in mind. It is searched for by its name, by a paraphrase (written by hand, "
    "without a look at the summaries), or by its summary, quoted. The set's vectors were made of name, "
    "summary and description together, so vectors alone know more than words of the summary do. "
    "{machine_line}",
    content=content,
    head=lambda context: {"machine": machine.describe(context.folder), "dataset": Path(context.data).name},
    options=(
        Option("--maker", None, "the script that made the set", Path, required=True),
        Option("--wheel", None, "the wheel of its model", Path, required=True),
        Option("--count", 1000, "items asked for by name and by summary"),
    ),
    data="data",
    defaults={"queries": 0},
)
