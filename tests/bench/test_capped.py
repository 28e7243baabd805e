"""``bench capped``: searches in a process that the kernel holds to some memory, and what a kill leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.commands import capped
from bench.harness import cgroup
from bench.harness.datasets import DataError
from bench.harness.sections import Context
from tests.bench.small_set import small_set


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    try:
        with cgroup.limited(64 << 20):
            pass
    except DataError as refused:
        pytest.skip(str(refused))
    return small_set(tmp_path, 60, 5)


def rows_of(folder: Path, limit_bytes: int) -> tuple[dict[str, Any], str]:
    work, out = folder.parent / "work", folder.parent / "out"
    options = {
        "limit_bytes": limit_bytes,
        "budget": "40%",
        "lists": ["64", "256"],
        "peer_lists": [],
        "peers": [],
        "beside": True,
    }
    capped.run(Context(str(folder), str(work), None, 40, 5, 1, options), out, "small", None)
    rows = [json.loads(line) for line in (out / "small.jsonl").read_text().splitlines()]
    return next(row for row in rows if row.get("section") == "search:velo"), (out / "small.md").read_text()


def test_a_system_answers_in_the_cap_or_the_kernel_ends_it(folder: Path) -> None:
    told, page = rows_of(folder, 300_000_000)
    assert told["result"]["ended"] == "", told
    assert [row["list_size"] for row in told["result"]["rows"]] == [64, 256]
    assert min(row["recall_at_10"] for row in told["result"]["rows"]) > 0.5
    assert 0 < told["result"]["peak_bytes"] <= 300_000_000
    assert "other work" in page

    told, page = rows_of(folder, 30_000_000)  # less than the interpreter and its libraries take
    assert told["result"]["kills"] > 0
    assert told["result"]["rows"] == []  # not those of the run before
    assert "**the kernel killed it for want of memory**" in page
    assert not list(cgroup.ROOT.glob("*/velo-bench-*"))
