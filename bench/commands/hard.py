"""``bench hard``: sets that differ from SIFT and from sentence embeddings where it hurts.

A set is a folder with base.npy, query.npy, truth.npz and set.json. velo is built for 20 % and asked for
recalls, then for lists, then under filters; peers are measured beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import velo
from bench.commands import hard_filters
from bench.commands.hard_filters import BUDGET, KINDS, build_options
from bench.commands.hard_labels import SHARES
from bench.harness import curves, datasets, machine, report, runs
from bench.harness.curves import RECALL, Row
from bench.harness.datasets import DataError
from bench.harness.plots import Panel, Picture
from bench.harness.report import Option, Page, Report, Table
from bench.harness.sections import Context, Results, Section
from bench.harness.targets import Found, Missing, Target, Value, at, curve, ratio

ASKED = (0.8, 0.9, 0.95, 0.98, 0.99)
#: A recall below this falls short of 0.95.
ENOUGH = 0.945
#: Lists that show what the index can find at all, and the lists of peers.
LISTS = (1000, 4096)
PEER_LISTS = (40, 200, 1000)
#: Sets on which systems are compared at one recall: between far lists a curve is no straight line.
COMPARED = ("items", "lsa")
CLOSE_LISTS = (24, 32, 48, 64, 96, 128, 192, 256, 384)
CLOSE_PEER_LISTS = (10, 16, 24, 40, 64, 100, 200, 300, 400, 1000)
#: Recalls asked of stored vectors alone; a recall of 1 reads all of them.
HIGH = (0.95, 0.999, 1.0)
#: Sets whose queries are unlike their rows: there an index is also built with half of the queries.
OTHER_QUERIES = ("items", "patches")
#: Queries asked before the clock starts. There is no cache to fill, so they are repeats.
WARM_UP = 50
#: Pairs of sets with the same rows under two metrics.
SAME_ROWS = (("normal-ip", "normal"), ("lognormal1-ip", "lognormal1"))
_LIMIT_S = 1800.0


def sections_of(context: Context) -> Mapping[str, Section]:
    """velo, its peers and its filters on each set."""
    every: dict[str, Callable[[Context], Results]] = {}
    names = chosen_names(Path(context.data), context.options["sets"])
    for name in names:
        every[f"velo:{name}"] = partial(_velo, name)
        if name in OTHER_QUERIES:
            every[f"known:{name}"] = partial(_known, name)
        every |= {f"{peer}:{name}": partial(_peer, peer, name) for peer in context.options["peers"]}
    for name in [*names, hard_filters.ZIPF]:
        every[f"filters:{name}"] = partial(hard_filters.measure_set, name)
    return {name: Section(name, measure, _LIMIT_S) for name, measure in every.items()}


def chosen_names(data: Path, wanted: Sequence[str] | None) -> list[str]:
    """All sets in ``data``, large ones last, or those named."""
    found = {}
    for file in data.glob("*/set.json"):
        info = json.loads(file.read_text())
        found[file.parent.name] = (info["n"] * info["dim"] > 4_000_000, file.parent.name)
    if not found:
        raise DataError(f"{data} holds no folder with a set.json")
    known = sorted(found, key=found.__getitem__)
    for name in wanted or ():
        if name not in known:
            raise DataError(f"{data} holds no set {name!r}; there are {', '.join(known)}")
    return list(wanted or known)


def _measured(context: Context, dataset: datasets.Dataset, job: runs.Job) -> list[Row]:
    repeats = dataset.queries[-WARM_UP:] if len(dataset.queries) >= 4 * WARM_UP else dataset.queries[:0]
    asked = replace(dataset, queries=np.concatenate([dataset.queries, repeats]))
    points = [point | {"warm_up_count": WARM_UP} for point in job.points]
    rows = runs.measured(context, asked, replace(job, points=points))
    return [asked_of(row) | {"metric": dataset.metric} for row in rows]


def asked_of(row: Row) -> Row:
    """``row`` with its request in ``asked``, its list, the reads of a query that runs alone."""
    asked = {name: row[name] for name in ("recall", "list_size") if row.get(name)}
    expected = row["facts"].get("expected")
    row = row | ({"reads": row["reads"] + row.get("shared_reads", 0)} if "reads" in row else {})
    left = {key: value for key, value in row.items() if key not in ("recall", "open_tuning", "warm_up_count")}
    size = row.get("list_size", (expected or {}).get("list_size", 0))
    return left | {"asked": asked, "list_size": size, "facts": {"expected": expected}}


def _job(dataset: datasets.Dataset, label: str, points: Sequence[Row], **build: Any) -> runs.Job:
    # A cache would meet the same queries twice.
    fixed = {"memory": BUDGET, "io": "auto", "plan": "auto", "open_tuning": {"cache_share": 0.0}}
    return runs.Job("velo", label, build_options(dataset) | build, [point | fixed for point in points])


def _velo(name: str, context: Context) -> Results:
    """velo by recall and by list, then from stored vectors alone."""
    dataset = datasets.load(Path(context.data) / name)
    lists = [{"list_size": size} for size in (*LISTS, *(CLOSE_LISTS if name in COMPARED else ()))]
    asked: list[Row] = [{"recall": recall} for recall in ASKED]
    exact: list[Row] = [{"recall": recall} for recall in HIGH] + [{"list_size": size} for size in LISTS]
    jobs = (
        _job(dataset, "velo", asked + lists),
        _job(dataset, "velo exact", [point | {"exact": True} for point in exact], store_vectors=True),
    )
    rows, stored = (_measured(context, dataset, job) for job in jobs)
    return {"rows": rows, "exact": stored}


def _known(name: str, context: Context) -> Results:
    """An index that was built with half of the queries, asked the other half."""
    dataset = datasets.load(Path(context.data) / name)
    half = len(dataset.queries) // 2
    file = context.folder / "queries" / f"{name}-first-{half}.npy"
    file.parent.mkdir(parents=True, exist_ok=True)
    np.save(file, dataset.queries[:half])
    other = replace(dataset, queries=dataset.queries[half:], truth_ids=dataset.truth_ids[half:])
    points = [{"recall": recall} for recall in ASKED] + [{"list_size": size} for size in CLOSE_LISTS]
    job = _job(dataset, "velo, queries known", points, queries=str(file))
    return {"rows": _measured(context, other, job)}


def _peer(peer: str, name: str, context: Context) -> Results:
    dataset = datasets.load(Path(context.data) / name)
    job = runs.peer_job(peer, dataset, CLOSE_PEER_LISTS if name in COMPARED else PEER_LISTS, 0.2)
    if peer == "numpy":  # float32 is not exact on these sets: it finds nothing on `shifted`
        job = replace(job, label="numpy, float64", build={"dtype": "float64"})
    if dataset.metric == "ip":
        job.build["metric"] = "ip"
    return {"rows": _measured(context, dataset, job)}


def row_of(rows: Iterable[Row], **setting: float) -> Row | None:
    """The row of a setting; None where it was not measured."""
    return next((row for row in rows if row["asked"] == setting), None)


def sets_of(found: Found) -> list[str]:
    return [name[5:] for name in found if name.startswith("velo:") and curve(found, name)]


def got(found: Found) -> dict[str, float]:
    """The recall of each set at ``recall=0.95``."""
    rows = {name: row_of(curve(found, f"velo:{name}"), recall=0.95) for name in sets_of(found)}
    return {name: row[RECALL] for name, row in rows.items() if row is not None}


def best(found: Found, *keys: str) -> dict[str, float]:
    """The largest recall of each set in these curves."""
    every = {
        name: [row for key in keys for row in curve(found, f"velo:{name}/{key}")] for name in sets_of(found)
    }
    return {name: curves.best_recall(rows) for name, rows in every.items() if rows}


def filtered(found: Found) -> dict[str, float]:
    """The recall of each set and filter that passes a share of the rows."""
    rows = [row for name in found if name.startswith("filters:") for row in curve(found, name)]
    some = [row for row in rows if row["asked"] == 0.95 and row["label"].split()[0] in KINDS]
    return {f"{row['dataset']}, {row['label']}": row["recall"] for row in some}


def worst(of: Callable[[Found], Mapping[str, float]]) -> Value:
    def value(found: Found) -> tuple[float, str]:
        every = of(found)
        if not every:
            raise Missing("not measured")
        name = min(every, key=every.__getitem__)
        mean, short = sum(every.values()) / len(every), sum(one < ENOUGH for one in every.values())
        return every[name], f"{name}, of {len(every)}; mean {mean:.3f}, {short} below {ENOUGH}"

    return value


def over_metrics(inner: str, plain: str) -> Value:
    def value(found: Found) -> tuple[float, str]:
        rows = [row_of(curve(found, f"velo:{name}"), recall=0.95) for name in (inner, plain)]
        if rows[0] is None or rows[1] is None:
            raise Missing("a set is missing")
        note = ", ".join(f"{row['reads']:.1f} at recall {row[RECALL]:.3f}" for row in rows if row)
        return rows[0]["reads"] / rows[1]["reads"], note

    return value


TARGETS = [
    Target("recall@10 at recall=0.95, the worst set", "≥ 0.945", worst(got), 3),
    Target("recall@10 by list alone, the worst set", "≥ 0.99", worst(lambda f: best(f, "rows", "exact")), 3),
    Target("the same with stored vectors", "≥ 0.999", worst(lambda found: best(found, "exact")), 3),
    Target("reads, items, recall 0.95", "≤ 12", at("velo:items", "reads", 0.95), 1),
    Target("QPS ÷ hnswlib, items, recall 0.95", "≥ 0.5", ratio("velo:items", "hnswlib:items", "qps", 0.95)),
    Target(
        "the same, built with a sample of queries",
        "≥ 0.5",
        ratio("known:items", "hnswlib:items", "qps", 0.95),
    ),
    Target("reads, lsa, recall 0.97", "≤ 10", at("velo:lsa", "reads", 0.97), 1),
    Target("QPS ÷ hnswlib, lsa, recall 0.97", "≥ 0.8", ratio("velo:lsa", "hnswlib:lsa", "qps", 0.97)),
    *(
        Target(f"reads at ip ÷ at l2, {plain}, recall=0.95", "≤ 1.3", over_metrics(inner, plain))
        for inner, plain in SAME_ROWS
    ),
    Target("recall@10 at recall=0.95 under filters, the worst", "≥ 0.945", worst(filtered), 3),
]


def cell(key: str, **setting: float) -> Callable[[Row], str | None]:
    """Recall and reads, or queries a second, of a setting of the rows ``key``."""

    def text(sets: Row) -> str | None:
        row = row_of(sets[key], **setting)
        if row is None:
            return None
        other = f"{row['reads']:.0f}" if "reads" in row else f"{row['qps']:,.0f}"
        return f"{_bold(row[RECALL], setting.get('recall', 0.0))}, {other}"

    return text


def member(key: str) -> Callable[[Row], str | None]:
    """A column by its name, which is no path."""
    return lambda row: row.get(key)


def _bold(value: float, asked: float = 0.95) -> str:
    return f"{value:.3f}" if value >= asked - 0.005 else f"**{value:.3f}**"


def content(page: Page) -> Iterable[Picture | Table]:
    names = sets_of(page.found)
    kinds = dict.fromkeys(name.split(":")[0] for name in page.found)
    peers = [kind for kind in kinds if kind not in ("velo", "known", "filters", "numpy")]
    sets: list[Row] = [
        {"set": name, "first": rows[0], "rows": rows, "exact": curve(page.found, f"velo:{name}/exact")}
        | {peer: curve(page.found, f"{peer}:{name}") for peer in peers}
        | {"known": curve(page.found, f"known:{name}")}
        for name in names
        if (rows := curve(page.found, f"velo:{name}"))
    ]
    recalls = got(page.found)
    lines = {
        name if recalls.get(name, 1.0) < ENOUGH else f"_{name}": [
            (row["asked"]["recall"], row[RECALL]) for row in one["rows"] if row["asked"].get("recall")
        ]
        for name, one in ((one["set"], one) for one in sets)
    }
    title = "Recall asked and got, a line for each set; sets below 0.945 at 0.95 are named"
    asked = [(recall, recall) for recall in ASKED]
    yield Picture("", title, [Panel("recall got", lines | {"as asked": asked}, low=0.6)], x="recall asked")
    yield Table(
        "By recall and by list",
        {
            "set": "set",
            "metric": "first.metric",
            "rows": lambda row: f"{row['first']['n']:,} × {row['first']['dim']}",
            **{f"{recall:g}": cell("rows", recall=recall) for recall in ASKED},
            **{f"list {size:,}": cell("rows", list_size=size) for size in LISTS},
            **{f"exact, {recall:g}": cell("exact", recall=recall) for recall in HIGH},
            **{f"exact, list {size:,}": cell("exact", list_size=size) for size in LISTS},
            "queries known, 0.95": cell("known", recall=0.95),
            **{f"{peer} {size}": cell(peer, list_size=size) for peer in peers for size in PEER_LISTS},
        },
        sets,
        "Recall, then reads of velo or queries a second of a peer. *exact*: an index with stored vectors, "
        "searched with `exact=True`. Reads are those of a query that runs alone. Recall below what was "
        "asked is bold.",
    )
    rows = [row for name in page.found if name.startswith("filters:") for row in curve(page.found, name)]
    of_set: dict[str, Row] = {}
    for row in rows:
        of_set.setdefault(row["dataset"], {"set": row["dataset"]})[row["label"]] = _bold(row["recall"])
    shares = [f"{kind} {share:g}" for kind in KINDS for share in SHARES]
    yield Table(
        "Recall under filters by the share that passes, `recall=0.95`",
        {label: member(label) for label in ("set", *shares)},
        [row for row in of_set.values() if any(label in row for label in shares)],
        "*random*: a column by chance. *cluster* and *far*: a label that follows the vectors, nearest to "
        "the query and far from it.",
    )
    columns: dict[str, report.Cell] = {"set": "dataset", "filter": "label", "matches": "matches:,.0f"}
    columns |= {"recall": "recall:.3f", "expected": "expected:.3f", "reads": "reads:.1f", "list": "list_size"}
    yield Table("Filters by tags", columns, [row for row in rows if row["label"].split()[0] not in KINDS])


REPORT = Report(
    name="hard",
    help="sets with varied norms, outliers, copies: recall asked and got",
    module=__name__,
    title="Hard sets: recall asked and got",
    about="Sets on which lengths vary, neighbors crowd, or queries are unlike rows. velo is built with "
    "`search_memory='20%'`, opened in as much, without a cache, and asked for a recall of the ten nearest. "
    "Rows as near as the tenth count as found; truth is float64. {machine_line}",
    content=content,
    targets=lambda _: TARGETS,
    head=lambda context: {
        "machine": machine.describe(context.folder),
        "version": velo.__version__,
        "budget": BUDGET,
    },
    options=(
        Option("--sets", (), "only these", str),
        Option("--peers", "hnswlib,numpy", "with commas, or none", "names"),
    ),
    defaults={"queries": 0, "single": 10},
)
