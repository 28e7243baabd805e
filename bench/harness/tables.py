"""Cells and rows of Markdown tables, and the line that names a machine."""

from __future__ import annotations

from typing import Any


def machine_line(machine: dict[str, Any]) -> str:
    line = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, {machine['device']}, Python {machine['python']}."
    )
    reads = machine.get("reads") or {}
    if "one_at_a_time_per_s" in reads:
        many = next(
            f"{value:,}/s from {key.split('_')[1]} threads"
            for key, value in reads.items()
            if "threads" in key
        )
        line += (
            f" The device answers {reads['one_at_a_time_per_s']:,} reads of 4 KiB a second one at a time "
            f"(p50 {reads['one_at_a_time_p50_us']} µs) and {many}, asked from Python: a lower bound."
        )
    return line


def list_text(row: dict[str, Any]) -> str:
    sigma = f"@{row['sigma']:g}" if "sigma" in row else ""
    return f"{row['list_size']}{sigma}" if row["list_size"] else "–"


def optional(row: dict[str, Any], name: str, digits: int, divisor: float = 1.0) -> str:
    return f"{row[name] / divisor:.{digits}f}" if name in row else "–"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
