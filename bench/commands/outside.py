"""``bench outside``: velo in the benches that others wrote, and what their runners say of it.

``place`` puts velo's adapter into a checkout of a project, tells the project of it, and writes a set in the
project's own format. The project's own command measures; `docs/howto/outside.md` has it. ``page`` collects
what their exports hold.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench.commands import live_runbook
from bench.harness import datasets, machine, pages, tables
from bench.harness.datasets import DataError, Dataset, K

ADAPTERS = Path(__file__).resolve().parents[1] / "outside"
#: The set as their lists name it; its files lie in their folders, so its queries may be fewer.
SET = "sift100k"
#: Neighbors in their truths.
DEPTH = 100
#: The runbook whose steps are taken, scaled to the set.
RUNBOOK, RUNBOOK_SET = "delete_runbook.yaml", "random-xs-clustered"
#: What `place` leaves for `page`: the library that runs use from then on, and the shape of the set.
PLACED = "velo-placed.json"
Row = dict[str, Any]


@dataclass(frozen=True)
class Project:
    """``holds`` is by what a checkout is known, ``files`` where each folder or file of the adapter goes."""

    name: str
    holds: str
    files: Mapping[str, str]
    tell: Callable[[Path], None]
    write: Callable[[Path, Dataset], None]
    rows: Callable[[Path], list[Row]]


def project_of(checkout: Path) -> Project:
    for project in PROJECTS:
        if (checkout / project.holds).exists():
            return project
    names = ", ".join(project.name for project in PROJECTS)
    raise DataError(f"{checkout} is no checkout of one of {names}")


def place(checkout: Path, dataset: Dataset) -> None:
    """Put velo and the set into a checkout; what an earlier call put there is replaced."""
    project = project_of(checkout)
    for source, target in project.files.items():
        here, there = ADAPTERS / source, checkout / target
        if here.is_dir():
            shutil.copytree(here, there, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(here, there)
    project.tell(checkout)
    project.write(checkout, dataset)
    note = {
        "library": pages.library(),
        "set": dataset.name,
        "n": dataset.n,
        "dim": dataset.dim,
        "queries": len(dataset.queries),
    }
    (checkout / PLACED).write_text(json.dumps(note))


def told(path: Path, anchor: str, text: str) -> None:
    """Put ``text`` before the only ``anchor`` of a file, or at its end, unless it is there."""
    before = path.read_text(encoding="utf-8")
    if text in before:
        return
    if not anchor:
        path.write_text(before.rstrip("\n") + "\n" + text, encoding="utf-8")
        return
    if before.count(anchor) != 1:
        raise DataError(f"{path} has {before.count(anchor)} times {anchor.strip()!r}: it has changed")
    path.write_text(before.replace(anchor, text + anchor), encoding="utf-8")


def truth(dataset: Dataset) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids and squared distances of the nearest, as many as their formats hold."""
    near = dataset.truth_ids[:, :DEPTH].astype(np.int64)
    if near.shape[1] < DEPTH:
        near = datasets.nearest(dataset.base, dataset.queries, min(DEPTH, dataset.n), dataset.metric)
    return near, datasets.exact_distances(dataset.base, dataset.queries, near, dataset.metric)


# ---- ann-benchmarks

_PEER, _PEER_GROUP = "hnswlib", "M-16"
_ANN_SET = f"{SET}-128-euclidean"


def _tell_ann(checkout: Path) -> None:
    """Also a folder of definitions for a run of velo and one of their own, with one group of its options."""
    import yaml

    definitions = checkout / "ann_benchmarks" / "algorithms"
    for name in ("velo", _PEER):
        told_of = yaml.safe_load((definitions / name / "config.yml").read_text())
        (entry,) = told_of["float"]["any"]
        if name == _PEER:
            entry["run_groups"] = {_PEER_GROUP: entry["run_groups"][_PEER_GROUP]}
        folder = checkout / "compared" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yml").write_text(yaml.safe_dump(told_of))
    line = f'DATASETS["{_ANN_SET}"] = None  # its file is in data/: python -m bench outside place\n'
    told(checkout / "ann_benchmarks" / "datasets.py", "", line)


def _write_ann(checkout: Path, dataset: Dataset) -> None:
    import h5py

    ids, distances = truth(dataset)
    (checkout / "data").mkdir(exist_ok=True)
    with h5py.File(checkout / "data" / f"{_ANN_SET}.hdf5", "w") as file:
        attributes = {
            "type": "dense",
            "distance": "euclidean",
            "dimension": dataset.dim,
            "point_type": "float",
        }
        file.attrs.update(attributes)
        file["train"] = np.asarray(dataset.base, np.float32)
        file["test"] = np.asarray(dataset.queries, np.float32)
        file["neighbors"] = ids
        file["distances"] = np.sqrt(distances)


def _ann_rows(checkout: Path) -> list[Row]:
    rows: list[Row] = [
        {
            "run": row["parameters"],
            "recall@10": float(row["k-nn"]),
            "queries a second": float(row["qps"]),
            "p99, ms": float(row["p99"]),
            "build, s": float(row["build"]),
        }
        for row in _exported(checkout / "res.csv")
        if row["dataset"] == _ANN_SET
    ]
    return sorted(rows, key=lambda row: (re.sub(r"\d+\)$", "", row["run"]), row["recall@10"]))


def _exported(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        raise DataError(f"{path} is not there: run the project's data_export.py --output {path.name} first")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# ---- VectorDBBench

_CLIENTS = "vectordb_bench/backend/clients"


def _tell_vectordb(checkout: Path) -> None:
    clients = checkout / _CLIENTS / "__init__.py"
    told(clients, '    Zvec = "Zvec"\n', '    Velo = "Velo"\n')
    for module, name, their in (
        ("velo", "Velo", "zvec.zvec import Zvec\n"),
        ("config", "VeloConfig", "zvec.config import ZvecConfig\n"),
        ("config", "VeloIndexConfig", "zvec.config import ZvecHNSWIndexConfig\n"),
    ):
        branch = f"        if self == DB.Velo:\n            from .velo.{module} import {name}\n\n"
        told(
            clients,
            f"        if self == DB.Zvec:\n            from .{their}",
            f"{branch}            return {name}\n\n",
        )
    commands = checkout / "vectordb_bench" / "cli" / "vectordbbench.py"
    told(commands, "from ..backend.clients.zvec.cli", "from ..backend.clients.velo.cli import Velo\n")
    told(commands, "cli.add_command(Zvec)", "cli.add_command(Velo)\n")


def _write_vectordb(checkout: Path, dataset: Dataset) -> None:
    folder = checkout / "data" / SET / "l2"
    folder.mkdir(parents=True, exist_ok=True)
    ids, _ = truth(dataset)

    def lists(rows: Any, kind: pa.DataType) -> Any:
        return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1), kind), rows.shape[1]).cast(
            pa.list_(kind)
        )

    for name, column, rows, kind in (
        ("train", "emb", np.asarray(dataset.base, np.float32), pa.float32()),
        ("test", "emb", np.asarray(dataset.queries, np.float32), pa.float32()),
        ("neighbors", "neighbors_id", ids, pa.int64()),
    ):
        table = pa.table({"id": pa.array(np.arange(len(rows))), column: lists(rows, kind)})
        pq.write_table(table, folder / f"{name}.parquet")


def _vectordb_rows(checkout: Path) -> list[Row]:
    rows = []
    for path in sorted((checkout / "results" / "Velo").glob("*.json")):
        for result in json.loads(path.read_text())["results"]:
            metrics, chosen = result["metrics"], result["task_config"]["db_case_config"]
            if not metrics["qps"]:
                continue  # a run that failed says so with zeros
            rows.append(
                {
                    "run": f"velo, memory {chosen['memory']}, recall {chosen['recall']}",
                    "recall@10": metrics["recall"],
                    "queries a second": metrics["qps"],
                    "by processes": ", ".join(
                        f"{count}: {qps:,.0f}"
                        for count, qps in zip(metrics["conc_num_list"], metrics["conc_qps_list"], strict=True)
                    ),
                    "p99 one at a time, ms": metrics["serial_latency_p99"] * 1e3,
                    "insert, s": metrics["insert_duration"],
                    "optimize, s": metrics["optimize_duration"],
                }
            )
    if not rows:
        raise DataError(f"{checkout / 'results'} has no result of velo: RESULTS_LOCAL_DIR says where they go")
    return rows


# ---- big-ann-benchmarks


def _tell_big_ann(checkout: Path) -> None:
    line = "import benchmark.velo_sets  # at the end: it uses what is above\n"
    told(checkout / "benchmark" / "datasets.py", "", line)


def _write_big_ann(checkout: Path, dataset: Dataset) -> None:
    _write_filters(checkout / "data" / f"{SET}-filter", dataset)
    _write_runbook(checkout, dataset)


def _bin(path: Path, rows: NDArray[Any], *more: NDArray[Any]) -> None:
    """Two uint32 that say the shape, then the rows, and a truth's distances behind its ids."""
    with path.open("wb") as file:
        np.array(rows.shape, np.uint32).tofile(file)
        for one in (rows, *more):
            np.ascontiguousarray(one).tofile(file)


def _sparse(path: Path, starts: NDArray[np.int64], words: NDArray[np.int32], count: int) -> None:
    with path.open("wb") as file:
        np.array([len(starts) - 1, count, len(words)], np.int64).tofile(file)
        starts.astype(np.int64).tofile(file)
        words.astype(np.int32).tofile(file)
        np.ones(len(words), np.float32).tofile(file)


def _write_filters(folder: Path, dataset: Dataset) -> None:
    """Queries ask for both of their words where ten rows have them, else for the first alone."""
    if dataset.labels is None:
        raise DataError(f"{dataset.folder} has no columns: the filter track needs the tags of its rows")
    folder.mkdir(parents=True, exist_ok=True)
    tags = pq.read_table(dataset.labels, columns=["tags"])["tags"].slice(0, dataset.n).combine_chunks()
    filled = pc.fill_null(tags, pa.scalar([], tags.type))
    encoded = filled.flatten().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    number_of = {name: number for number, name in enumerate(names)}
    words = encoded.indices.to_numpy()
    starts = np.concatenate([[0], np.cumsum(pc.list_value_length(filled).to_numpy())])
    owner = np.repeat(np.arange(dataset.n), np.diff(starts))
    order = np.argsort(words, kind="stable")
    rows_of = np.split(owner[order], np.cumsum(np.bincount(words, minlength=len(names)))[:-1])

    asked = pq.read_table(dataset.folder / "query_filters.parquet", columns=["tag_a", "tag_b"]).to_pylist()
    kept, wanted, near = [], [], []
    for query, both in enumerate(asked[: len(dataset.queries)]):
        pair = [number_of[both[name]] for name in ("tag_a", "tag_b")]
        for numbers in (pair, pair[:1]):
            rows = rows_of[numbers[0]]
            for number in numbers[1:]:
                rows = np.intersect1d(rows, rows_of[number])
            if len(rows) >= K:
                one = dataset.queries[query : query + 1]
                near.append(rows[datasets.nearest(dataset.base[rows], one, K, dataset.metric)[0]])
                kept.append(query)
                wanted.append(sorted(numbers))
                break
    queries, ids = dataset.queries[kept], np.array(near)
    distances = datasets.exact_distances(dataset.base, queries, ids, dataset.metric)
    _bin(folder / "base.u8bin", dataset.base)
    _bin(folder / "query.u8bin", queries)
    _bin(folder / "truth.bin", ids.astype(np.int32), distances.astype(np.float32))
    _sparse(folder / "base.spmat", starts, words, len(names))
    ends = np.concatenate([[0], np.cumsum([len(one) for one in wanted])])
    _sparse(folder / "query.spmat", ends, np.concatenate(wanted), len(names))


def _write_runbook(checkout: Path, dataset: Dataset) -> None:
    """The steps of a runbook of theirs, scaled to the set, over its rows by cluster; and their truths."""
    import yaml

    book = checkout / "neurips23" / "runbooks" / RUNBOOK
    points, steps = live_runbook.read(book, RUNBOOK_SET)
    steps = [live_runbook.scaled(step, points, dataset.n) for step in steps]
    base: Any = np.asarray(dataset.base)[live_runbook.by_cluster(dataset)]
    folder = checkout / "data" / f"{SET}-clustered"
    truths = folder / str(dataset.n) / RUNBOOK
    truths.mkdir(parents=True, exist_ok=True)
    _bin(folder / "base.u8bin", base)
    _bin(folder / "query.u8bin", dataset.queries)
    alive = np.zeros(dataset.n, bool)
    entries: dict[Any, Any] = {}
    most = 0
    for number, step in enumerate(steps, 1):
        entries[number] = {"operation": step.operation}
        if step.operation == "search":
            rows = np.flatnonzero(alive)
            near = rows[datasets.nearest(base[rows], dataset.queries, min(DEPTH, len(rows)), dataset.metric)]
            distances = datasets.exact_distances(base, dataset.queries, near, dataset.metric)
            _bin(truths / f"step{number}.gt100", near.astype(np.int32), distances.astype(np.float32))
            continue
        entries[number] |= {"start": step.ids.start, "end": step.ids.stop}
        alive[step.ids.start : step.ids.stop] = step.operation == "insert"
        most = max(most, int(alive.sum()))
    text = yaml.safe_dump({f"{SET}-clustered": {"max_pts": most, **entries}}, sort_keys=False)
    told(book, "", text)


def _big_ann_rows(checkout: Path) -> list[Row]:
    return [
        {
            "track": row["track"],
            "set": row["dataset"],
            "queries": _query_count(checkout, row["dataset"]),
            "run": row["parameters"],
            "recall@10": float(row["recall/ap"]),
            "queries a second": float(row["qps"]) if row["qps"] else None,
            "build, s": float(row["build"]),
        }
        for row in _exported(checkout / "res.csv")
        if row["dataset"].startswith(SET)
    ]


def _query_count(checkout: Path, name: str) -> str:
    """Of a set that was placed; the filter track's has fewer than the others."""
    path = checkout / "data" / name.partition("(")[0] / "query.u8bin"
    return f"{len(datasets.read_u8bin(path)):,}"


# ---- the page


def page(checkouts: Sequence[Path], out: Path, name: str) -> None:
    """Write ``out/name.md`` and ``out/name.jsonl`` from what the projects' exports hold."""
    sections: list[Row] = []
    for checkout in checkouts:
        project = project_of(checkout)
        placed = checkout / PLACED
        if not placed.exists():
            raise DataError(f"{checkout} has no velo: python -m bench outside place {checkout} --data FOLDER")
        sections.append(
            {
                "section": project.name,
                **json.loads(placed.read_text()),
                "commit": _commit_of(checkout),
                "rows": project.rows(checkout),
            }
        )
    head = {"machine": machine.describe(out)}
    pages.write(out, name, [{"head": head}, *sections], _markdown(name, head, sections))


def _commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _markdown(name: str, head: Row, sections: Sequence[Row]) -> str:
    text = [
        f"# {name}",
        "",
        "velo in benches that others wrote, run by their own commands without containers "
        f"([how](../howto/outside.md)). What stands here is what their exports say. "
        f"{tables.machine_line(head['machine'])}",
        "",
        "The machine ran other work beside these: recall and counts hold, times and queries a second do not "
        "compare with other pages.",
    ]
    for section in sections:
        text += [
            "",
            f"## {section['section']}",
            "",
            f"At `{section['commit'][:10]}`; {section['n']:,} × {section['dim']} of {section['set']}, "
            f"its first {section['queries']:,} queries. {NOTES[section['section']]}",
            "",
        ]
        keys = list(section["rows"][0])
        text += tables.table(keys, [[_cell(row[key]) for key in keys] for row in section["rows"]])
    return "\n".join(text) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value.replace("{", "").replace("}", "").replace("'", "")
    return f"{value:,.4f}" if value <= 1 else f"{value:,.1f}"


#: What a reader of each table has to know.
NOTES = {
    "ann-benchmarks": "One query at a time, from Python, the best of its runs. velo reads its index from the "
    "disk with the memory in brackets, a share of the vectors as float32; hnswlib, in one of its groups, "
    "holds all in memory.",
    "VectorDBBench": "Rows are inserted durably, 100 a call, by two threads; `optimize` makes one part of "
    "them.",
    "big-ann-benchmarks": "Filter: each query asks for rows that have both of its words, or one where fewer "
    "than ten rows have both; queries without ten rows are left out. Streaming: the steps of "
    f"`{RUNBOOK}`, `{RUNBOOK_SET}`, scaled to the set over its rows by cluster; recall is the mean of all "
    "searches. Its export has no queries a second for this track.",
}

PROJECTS: Sequence[Project] = (
    Project(
        "ann-benchmarks",
        "ann_benchmarks",
        {"ann_benchmarks": "ann_benchmarks/algorithms/velo"},
        _tell_ann,
        _write_ann,
        _ann_rows,
    ),
    Project(
        "VectorDBBench",
        "vectordb_bench",
        {"vectordbbench": f"{_CLIENTS}/velo"},
        _tell_vectordb,
        _write_vectordb,
        _vectordb_rows,
    ),
    Project(
        "big-ann-benchmarks",
        "neurips23",
        {
            "big_ann/filter": "neurips23/filter/velo",
            "big_ann/streaming": "neurips23/streaming/velo",
            "big_ann/velo_sets.py": "benchmark/velo_sets.py",
        },
        _tell_big_ann,
        _write_big_ann,
        _big_ann_rows,
    ),
)
