"""Tables and pictures of ``bench hard``: what was asked, what came, before and after."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.harness.curves import RECALL

Row = dict[str, Any]

#: Lists that ask for what the index can find at all.
LISTS = (1000, 4096)
#: The lists of peers.
PEER_LISTS = (40, 200, 1000)

#: Sets on which velo and a peer are compared at one recall. Between far settings a curve is anything but a
#: straight line, so there both are asked with many lists.
COMPARED = ("items", "lsa")
CLOSE_LISTS = (24, 32, 48, 64, 96, 128, 192, 256, 384)
CLOSE_PEER_LISTS = (10, 16, 24, 40, 64, 100, 200, 300, 400, 1000)

#: Recalls asked of stored vectors alone; a recall of 1 reads all of them.
HIGH = (0.999, 1.0)

#: The label of an index that was built with a sample of queries.
QUERIES_KNOWN = "velo, queries known"


def load_rows(file: Path) -> list[Row]:
    """Rows that earlier runs kept; none where there is no file."""
    if not file.exists():
        return []
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in lines if "head" not in line]


def keep_rows(file: Path, head: Row, rows: Sequence[Row]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text("".join(json.dumps(line) + "\n" for line in ({"head": head}, *rows)))
    unfinished.replace(file)


def replaced(rows: Sequence[Row], fresh: Sequence[Row]) -> list[Row]:
    """``rows`` without those of the sets and labels that ``fresh`` brings anew, and ``fresh`` behind them."""
    again = {(row["dataset"], row["label"]) for row in fresh}
    return [row for row in rows if (row["dataset"], row["label"]) not in again] + list(fresh)


def brief(rows: Iterable[Row]) -> list[str]:
    """A line a setting, for whoever watches."""
    lines = []
    for row in rows:
        if "error" in row:
            lines.append(f"{row['dataset']:<18} {row['label']:<14} {row['error']}")
            continue
        expected = (row["facts"].get("expected") or {}).get("recall")
        asked = " ".join(f"{name.partition('_')[0]} {value:g}" for name, value in row["asked"].items())
        lines.append(
            f"{row['dataset']:<18} {row['label']:<14} {asked:<12} got {row[RECALL]:.4f}"
            + (f" expected {expected:.3f} list {row['list_size']}" if expected is not None else "")
            + (f" reads {row['reads']:.1f} rounds {row['rounds']:.2f}" if "reads" in row else "")
            + f" QPS {row['qps']:,.0f}"
        )
    return lines


def filters_name(name: str) -> str:
    """Of the file of filters beside the file of recalls: ``hard-before`` → ``hard-filters-before``."""
    first, _, rest = name.partition("-")
    return f"{first}-filters" + (f"-{rest}" if rest else "")


def peers_name(name: str) -> str:
    """Of the file of peers, which stand beside every state of velo: ``hard-before`` → ``hard-peers``."""
    return name.partition("-")[0] + "-peers"


def brief_filters(rows: Iterable[Row]) -> list[str]:
    """A line a filter."""
    lines = []
    for row in rows:
        if "error" in row:
            lines.append(f"{row['dataset']:<18} {row['label']:<16} {row['error']}")
            continue
        expected = "" if row["expected"] is None else f" expected {row['expected']:.3f}"
        lines.append(
            f"{row['dataset']:<18} {row['label']:<16} got {row['recall']:.4f}{expected} "
            f"list {row['list_size']} reads {row['reads']:.1f} rounds {row['rounds']:.2f} "
            f"matches {row['matches']:,.0f} {row['plans']}"
        )
    return lines
