"""``hard.md``: what came of what was asked, before and after, beside the peers, and under filters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.commands import hard_rows
from bench.harness import curves, pages, plots, tables
from bench.harness.curves import RECALL
from bench.harness.lines import Line

Row = dict[str, Any]

ASKED = 0.95
ENOUGH = 0.945
NONE = "–"
VELO, EXACT, PEER = "velo", "velo exact", "hnswlib"
#: Pairs of sets with the same rows under two metrics.
SAME_ROWS = (("normal-ip", "normal"), ("lognormal1-ip", "lognormal1"))


@dataclass(frozen=True)
class State:
    """What one version of velo was measured to do, and the peers, which stand beside each.

    Attributes
    ----------
    title : str
        ``before`` or ``after``; empty where there is only one.
    rows, filters, peers : list of dict
    """

    title: str
    rows: list[Row]
    filters: list[Row]
    peers: list[Row]

    def row(self, dataset: str, label: str, **setting: float) -> Row | None:
        """The row of a set, a system and what it was told; None where it was not measured."""
        for row in self.rows:
            same = row["dataset"] == dataset and row["label"] == label and "error" not in row
            if same and all(row["asked"].get(name) == value for name, value in setting.items()):
                return row
        return None

    def curve(self, dataset: str, label: str) -> list[Row]:
        """All rows of a set and a system."""
        return [
            row
            for row in (*self.rows, *self.peers)
            if row["dataset"] == dataset and row["label"] == label and "error" not in row
        ]

    @property
    def exact(self) -> bool:
        return any(row["label"] == EXACT for row in self.rows)

    def head(self, what: str) -> str:
        return f"{what} {self.title}".strip()


def write(out: Path, name: str, before: str) -> Path:
    """Render ``out/name.md`` and its picture from the rows kept there, beside those kept under ``before``."""
    states = states_of(out, name, before)
    files = [file for one in (name, before) for file in files_of(out, one) if file.exists()]
    text = [f"# {name}", "", *intro(next(iter(files), None)), ""]
    got = {state.title: found for state in states if (found := got_by_set(state))}
    if plots.available() and got:
        plots.asked_and_got(got, out / f"{name}.png", title="recall@10 asked and got, a line a set")
        text += [f"![recall asked and got]({name}.png)", ""]
    text += target_table(states)
    if set_names(states):
        text += (
            asked_table(states)
            + curve_table(states)
            + known_table(states)
            + list_table(states)
            + peer_table(states)
            + close_table(states[-1])
        )
    if any(state.filters for state in states):
        text += filter_tables(states)
    text += notes(states)
    path = out / f"{name}.md"
    rows = [row for file in files for row in hard_rows.load_rows(file)]
    line = pages.measured_line(rows, [file.name for file in dict.fromkeys(files)])
    path.write_text(pages.with_line("\n".join(text).rstrip() + "\n", line))
    return path


def files_of(out: Path, name: str) -> list[Path]:
    """Where the rows of a state lie: recalls, filters, and the peers beside every state."""
    names = (name, hard_rows.filters_name(name), hard_rows.peers_name(name))
    return [out / f"{one}.jsonl" for one in names]


def states_of(out: Path, name: str, before: str) -> list[State]:
    def state(title: str, file: str) -> State:
        kept = [hard_rows.load_rows(one) for one in files_of(out, file)]
        return State(title, [as_if_alone(row) for row in kept[0]], kept[1], kept[2])

    now = state("", name)
    then = state("before", before)
    if name == before or not (then.rows or then.filters):
        return [now]
    return [then, replace(now, title="after")] if now.rows or now.filters else [then]


def as_if_alone(row: Row) -> Row:
    """With the reads that the query would have needed alone: those it shared with others are among them."""
    return row | {"reads": row["reads"] + row.get("shared_reads", 0)} if "reads" in row else row


def intro(file: Path | None) -> list[str]:
    head = json.loads(file.read_text().splitlines()[0])["head"] if file else None
    machine = f" {tables.machine_line(head['machine'])}" if head else ""
    return [
        "Sets on which lengths vary, neighbors crowd, or queries are unlike rows (examples of what the "
        f"name says; 20,000 × 64 unless the table says otherwise).{machine}",
        "",
        'velo is built with `search_memory="20%"`, opened in as much, without a cache, and asked for a '
        "recall of the ten nearest. What is as near as the tenth counts as found; truth is float64. "
        "*Expected* is what the build promised. *Reads* are those that a query takes alone; of a batch over "
        "sets this small the device sees fewer, for queries share them. Each system ran in a process of its "
        "own; QPS is one batch on two threads of a machine that had other work, a hint at most. Recall below "
        f"{ENOUGH:g} is bold.",
    ]


def recall_text(value: float | None, enough: float = ENOUGH) -> str:
    if value is None:
        return NONE
    return f"{value:.3f}" if value >= enough else f"**{value:.3f}**"


def number(row: Row | None, name: str, digits: int) -> str:
    return NONE if row is None or row.get(name) is None else f"{row[name]:,.{digits}f}"


def expected_of(row: Row | None, name: str) -> float | None:
    value = ((row or {}).get("facts", {}).get("expected") or {}).get(name)
    return None if value is None else float(value)


def set_names(states: Sequence[State]) -> list[str]:
    """Sets in the order of the last state, real ones first; those that only earlier ones have at the end."""
    rows = [row for state in reversed(states) for row in state.rows if "error" not in row]
    sizes = {row["dataset"]: row["n"] * row["dim"] for row in reversed(rows)}
    return sorted(sizes, key=lambda name: (-sizes[name] if sizes[name] > 4e6 else 0, name))


def shape(states: Sequence[State], name: str) -> str:
    row = next(row for state in states for row in state.rows if row["dataset"] == name and "n" in row)
    size = "" if (row["n"], row["dim"]) == (20_000, 64) else f", {row['n']:,} × {row['dim']}"
    return f"{name} ({row['metric']}{size})"


def by_state(
    states: Sequence[State], what: Sequence[str], cells: Callable[[State, str], Sequence[str]]
) -> list[str]:
    """A table with a row a set; each of ``what`` has a column a state, side by side."""
    head = ["set", *(state.head(one) for one in what for state in states)]
    rows = []
    for name in set_names(states):
        found = [cells(state, name) for state in states]
        rows.append([shape(states, name), *(cell for group in zip(*found, strict=True) for cell in group)])
    return tables.table(head, rows)


def asked_table(states: Sequence[State]) -> list[str]:
    def cells(state: State, name: str) -> list[str]:
        row = state.row(name, VELO, recall=ASKED)
        expected = expected_of(row, "recall")
        return [
            recall_text(None if row is None else row[RECALL]),
            NONE if expected is None else f"{expected:.3f}",
            number(row, "list_size", 0),
            number(row, "reads", 1),
            number(row, "rounds", 1),
            number(row, "qps", 0),
        ]

    what = ["recall", "expected", "list", "reads", "rounds", "QPS"]
    text = [f"## `recall={ASKED:g}`", "", *by_state(states, what, cells), ""]
    for state in states:
        got = {
            name: row[RECALL]
            for name in set_names(states)
            if (row := state.row(name, VELO, recall=ASKED)) is not None
        }
        if got:
            worst = min(got, key=got.__getitem__)
            short = sum(value < ENOUGH for value in got.values())
            text += [
                f"{state.title.capitalize() or 'Now'}: {got[worst]:.3f} at worst ({worst}), "
                f"{sum(got.values()) / len(got):.3f} on average; "
                f"{short} of {len(got)} sets below {ENOUGH:g}.",
                "",
            ]
    return text


def curve_table(states: Sequence[State]) -> list[str]:
    asked = asked_recalls(states)

    def cells(state: State, name: str) -> list[str]:
        found = (state.row(name, VELO, recall=recall) for recall in asked)
        return [NONE if row is None else f"{row[RECALL]:.3f}" for row in found]

    return ["## Got, by what was asked", "", *by_state(states, [f"{one:g}" for one in asked], cells), ""]


def known_table(states: Sequence[State]) -> list[str]:
    """What a sample of queries does for an index, on the sets whose queries are unlike rows."""
    rows = []
    for state in states:
        for name in set_names(states):
            known = [row for row in state.curve(name, hard_rows.QUERIES_KNOWN) if row["asked"].get("recall")]
            for row in sorted(known, key=lambda one: float(one["asked"]["recall"])):
                asked = row["asked"]["recall"]
                plain = state.row(name, VELO, recall=asked)
                cells = [f"{asked:g}"]
                for one in (plain, row):
                    cells += [
                        NONE if one is None else f"{one[RECALL]:.3f}",
                        number(one, "list_size", 0),
                        number(one, "reads", 1),
                    ]
                rows.append([state.head(name), *cells])
    if not rows:
        return []
    head = ["set", "asked", "rows: recall", "list", "reads", "queries: recall", "list", "reads"]
    return [
        "## A sample of queries",
        "",
        "Queries of these sets come from elsewhere than their rows. *Rows*: the build measured with rows, as "
        "above. *Queries*: it was told half of the queries, `queries=`, and asked the other half.",
        "",
        *tables.table(head, rows),
        "",
    ]


def asked_recalls(states: Sequence[State]) -> list[float]:
    rows = (row for state in states for row in state.rows if row["label"] == VELO and "error" not in row)
    return sorted({row["asked"]["recall"] for row in rows if row["asked"].get("recall")})


def list_table(states: Sequence[State]) -> list[str]:
    rows = [row for state in states for row in state.rows if row["system"] == VELO and "error" not in row]
    lists = [size for size in hard_rows.LISTS if any(row["asked"].get("list_size") == size for row in rows)]
    exact = any(state.exact for state in states)

    def cells(state: State, name: str) -> list[str]:
        found = [state.row(name, VELO, list_size=size) for size in lists]
        if exact:
            found += [state.row(name, EXACT, recall=ASKED)]
            found += [state.row(name, EXACT, list_size=size) for size in lists]
            found += [state.row(name, EXACT, recall=recall) for recall in hard_rows.HIGH]
        return [NONE if row is None else f"{row[RECALL]:.3f}, {number(row, 'reads', 0)}" for row in found]

    what = [f"list {size:,}" for size in lists]
    if exact:
        what += [f"exact, {ASKED:g}", *(f"exact, list {size:,}" for size in lists)]
        what += [f"exact, {recall:g}" for recall in hard_rows.HIGH]
    text = ["## By list alone: recall, reads", "", *by_state(states, what, cells), ""]
    if exact:
        text += [
            "*exact*: an index with stored vectors, searched with `exact=True`. "
            "A recall of 1 reads all of them.",
            "",
        ]
    return text


def peer_table(states: Sequence[State]) -> list[str]:
    rows = [row for row in states[-1].peers if "error" not in row]
    if not rows:
        return []
    last = states[-1]
    kept = (0, *hard_rows.PEER_LISTS)
    columns = list(
        dict.fromkeys((row["label"], row["list_size"]) for row in rows if row["list_size"] in kept)
    )
    table = []
    for name in set_names(states):
        cells = [last.row(name, VELO, recall=ASKED)]
        for label, size in columns:
            cells.append(
                next(
                    (
                        row
                        for row in rows
                        if (row["dataset"], row["label"], row["list_size"]) == (name, label, size)
                    ),
                    None,
                )
            )
        table.append(
            [
                shape(states, name),
                *(NONE if row is None else f"{row[RECALL]:.3f}, {row['qps']:,.0f}" for row in cells),
            ]
        )
    head = [label + (f" {size}" if size else "") for label, size in columns]
    return [
        "## Beside others: recall, QPS",
        "",
        *tables.table(["set", f"velo, {ASKED:g}", *head], table),
        "",
        "hnswlib: M = 32, ef_construction = 200, float32 in memory, by ef. numpy computes all distances "
        "in float64.",
        "",
    ]


def close_table(state: State) -> list[str]:
    """The curves that targets at one recall are read from."""
    table = []
    for name in hard_rows.COMPARED:
        for label in (VELO, hard_rows.QUERIES_KNOWN, PEER):
            rows = sorted(state.curve(name, label), key=lambda row: row["list_size"])
            points = [row for row in rows if "list_size" in row["asked"]]
            if len(points) > len(hard_rows.PEER_LISTS):
                table.append(
                    [
                        name,
                        label,
                        "; ".join(
                            f"{row['list_size']:,}: {row[RECALL]:.3f}, {row['qps']:,.0f}" for row in points
                        ),
                    ]
                )
    if not table:
        return []
    head = ["set", "system", "list: recall, QPS"]
    return ["## Curves, where systems are compared at one recall", "", *tables.table(head, table), ""]


def percent(label: str) -> str:
    """``random 0.01`` → ``1 %``."""
    return f"{float(label.split()[-1]) * 100:g} %"


def filter_tables(states: Sequence[State]) -> list[str]:
    """A table for each kind of label, sets by shares; then the sets that have filters of their own."""
    found = {
        (state.title, row["dataset"], row["label"]): row
        for state in states
        for row in state.filters
        if "error" not in row
    }
    labels = list(dict.fromkeys(label for _, _, label in found))
    kinds = list(dict.fromkeys(label.split()[0] for label in labels if is_share(label)))
    own = {dataset for _, dataset, label in found if not is_share(label)}
    names = sorted({dataset for _, dataset, label in found} - own)
    text = ["## Under filters, `recall=0.95`", ""]
    for state in states:
        got = {
            (dataset, label): row["recall"]
            for (title, dataset, label), row in found.items()
            if title == state.title and is_share(label)
        }
        if got:
            worst = min(got, key=got.__getitem__)
            short = sum(value < ENOUGH for value in got.values())
            text += [
                f"{state.title.capitalize() or 'Now'}: {got[worst]:.3f} at worst "
                f"({worst[0]}, {worst[1].split()[0]}, {percent(worst[1])}), "
                f"{sum(got.values()) / len(got):.3f} on average; {short} of {len(got)} below {ENOUGH:g}.",
                "",
            ]
    titles = {
        "random": "A column by chance",
        "cluster": "A label that follows the vectors: the one nearest to the query",
        "far": "The same, one far from the query",
    }
    for kind in kinds:
        own_labels = [label for label in labels if is_share(label) and label.split()[0] == kind]
        own_labels.sort(key=lambda label: -float(label.split()[1]))
        head = ["set", *(state.head(percent(label)) for label in own_labels for state in states)]
        rows = []
        for name in names:
            cells = (found.get((state.title, name, label)) for label in own_labels for state in states)
            rows.append([name, *(recall_text(None if row is None else row["recall"]) for row in cells)])
        text += [f"### {titles.get(kind, kind)}", "", *tables.table(head, rows), ""]
    if own:
        what = ("recall", "expected", "reads")
        head = ["filter", "matches", *(state.head(one) for one in what for state in states)]
        rows = []
        for name, label in dict.fromkeys((dataset, label) for _, dataset, label in found if dataset in own):
            both = [found.get((state.title, name, label)) for state in states]
            known = next(row for row in both if row is not None)
            rows.append(
                [
                    f"{name}: {label}",
                    f"{known['matches']:,.0f}",
                    *(
                        NONE if row is None else recall_text(row["recall"], row["asked"] - ASKED + ENOUGH)
                        for row in both
                    ),
                    *(number(row, "expected", 3) for row in both),
                    *(number(row, "reads", 1) for row in both),
                ]
            )
        text += ["### Points in a thousand blobs with 2,000 Zipf tags", "", *tables.table(head, rows), ""]
    return text


def is_share(label: str) -> bool:
    """Whether a label is a kind and a share, as ``far 0.01``."""
    return label.split()[0] in ("random", "cluster", "far") and len(label.split()) == 2


def notes(states: Sequence[State]) -> list[str]:
    """What was not measured, and why."""
    failed = [
        f"- {state.head(row['dataset'] + ', ' + row['label'])}: {row['error']}"
        for state in states
        for row in (*state.rows, *state.filters, *(state.peers if state is states[-1] else ()))
        if "error" in row
    ]
    return ["## Not measured", "", *failed, ""] if failed else []


def got_by_set(state: State) -> Mapping[str, list[tuple[float, float]]]:
    """(asked, got) of each set."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in state.rows:
        if row["label"] == VELO and "error" not in row and row["asked"].get("recall"):
            found.setdefault(row["dataset"], []).append((row["asked"]["recall"], row[RECALL]))
    return {name: sorted(points) for name, points in found.items()}


# ---- targets ----


def target_table(states: Sequence[State]) -> list[str]:
    """Lines of all states side by side; verdict and note are the last one's."""
    columns = [target_lines(state) for state in states]
    rows = [
        [
            one[-1].what,
            one[-1].target,
            *(NONE if line.value is None else line.measured for line in one),
            one[-1].verdict,
            one[-1].note,
        ]
        for one in zip(*columns, strict=True)
    ]
    titles = [state.title or "measured" for state in states]
    return [*tables.table(["what", "target", *titles, "", "how"], rows), ""]


def target_lines(state: State) -> list[Line]:
    """Against what was set as the aim."""
    names = set_names([state])
    got = {name: row[RECALL] for name in names if (row := state.row(name, VELO, recall=ASKED))}
    table = [
        worst_line("recall@10 at recall=0.95, the worst set", "≥ 0.945", got),
        Line(
            "the same, on average",
            "≥ 0.95",
            sum(got.values()) / len(got) if got else None,
            f"over {len(got)} sets" if got else "no set",
        ),
    ]
    both = (VELO, EXACT)
    table += [
        worst_line("recall@10 by list or tier alone, the worst set", "≥ 0.99", best_of(state, names, both)),
        worst_line("the same with stored vectors", "≥ 0.999", best_of(state, names, (EXACT,))),
    ]
    table += [reads_line(state, "items", 0.95, "≤ 12"), speed_line(state, "items", 0.95, "≥ 0.5")]
    table += [speed_line(state, "items", 0.95, "≥ 0.5", hard_rows.QUERIES_KNOWN)]
    table += [reads_line(state, "lsa", 0.97, "≤ 10"), speed_line(state, "lsa", 0.97, "≥ 0.8")]
    for inner, plain in SAME_ROWS:
        rows = [state.row(name, VELO, recall=ASKED) for name in (inner, plain)]
        what = f"reads at ip ÷ at l2, {plain}, recall=0.95"
        if rows[0] is None or rows[1] is None:
            table.append(Line(what, "≤ 1.3", None, "a set is missing"))
            continue
        note = ", ".join(f"{row['reads']:.1f} at recall {row[RECALL]:.3f}" for row in rows if row)
        table.append(Line(what, "≤ 1.3", rows[0]["reads"] / rows[1]["reads"], note, digits=2))
    filters = {
        f"{row['dataset']}, {row['label']}": row["recall"]
        for row in state.filters
        if "error" not in row and row["asked"] == ASKED and is_share(row["label"])
    }
    table.append(worst_line("recall@10 at recall=0.95 under filters, the worst", "≥ 0.945", filters))
    return table


def worst_line(what: str, target: str, values: Mapping[str, float]) -> Line:
    if not values:
        return Line(what, target, None, "no row")
    worst = min(values, key=values.__getitem__)
    return Line(what, target, values[worst], f"{worst}, of {len(values)}")


def best_of(state: State, names: Sequence[str], labels: Sequence[str]) -> dict[str, float]:
    """Of each set the most that any list finds."""
    found = {}
    for name in names:
        rows = [row for label in labels for row in state.curve(name, label)]
        if rows:
            found[name] = max(row[RECALL] for row in rows)
    return found


def reads_line(state: State, name: str, recall: float, target: str) -> Line:
    rows = state.curve(name, VELO)
    what = f"reads, {name}, recall {recall:g}"
    at = curves.at_recall(rows, "reads", recall)
    if at is None:
        return Line(what, target, None, curves.why_missing(rows, recall))
    return Line(what, target, at.value, at.how, digits=1)


def speed_line(state: State, name: str, recall: float, target: str, label: str = VELO) -> Line:
    rows, peers = state.curve(name, label), state.curve(name, PEER)
    what = f"QPS ÷ hnswlib, {name}, recall {recall:g}"
    if label != VELO:
        what += ", built with a sample of queries"
    mine, theirs = curves.at_recall(rows, "qps", recall), curves.at_recall(peers, "qps", recall)
    if mine is None or theirs is None:
        return Line(what, target, None, curves.why_missing(rows if mine is None else peers, recall))
    note = f"{mine.value:,.0f} ({mine.how}) / {theirs.value:,.0f} ({theirs.how})"
    return Line(what, target, mine.value / theirs.value, note, digits=2)
