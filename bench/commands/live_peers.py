"""Other systems under the writes of ``bench live``: each runs its own script, and is scored here."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np

from bench.commands.live_indexes import RECALL, Truth, Work
from bench.harness import tables
from bench.harness.sections import Context, Results
from bench.peers import install

NAMES = ("hnswlib", "lancedb", "zvec")
_MIB = 1 << 20


def peer(name: str, context: Context) -> Results:
    """What ``bench/peers/NAME/live.py`` measures, with the recall of what its searches found."""
    dataset = context.dataset()
    with Work(context, dataset, f"peer-{name}") as work:
        truth = Truth(context, dataset, np.arange(dataset.n))
        np.save(work / "base.npy", np.asarray(dataset.base))
        np.save(work / "queries.npy", truth.queries)
        np.save(work / "truth.npy", dataset.truth_ids[: len(truth.queries)])
        request = {
            "metric": dataset.metric,
            "dim": dataset.dim,
            "capacity": dataset.n,
            "threads": context.threads,
            "recall": RECALL,
            "seconds": context.options["seconds"],
            "turnovers": context.options["turnovers"],
        }
        told = answer(name, context, work, request)
        told["recall"] = truth.recall(np.load(work / "ids-whole.npy"))
        rest = np.setdiff1d(np.arange(dataset.n), np.load(work / "gone.npy"))
        told["recall_tenth_dead"] = Truth(context, dataset, rest).recall(np.load(work / "ids-tenth.npy"))
        lives = Truth(context, dataset, np.load(work / "lives.npy"))
        told["recall_churned"] = lives.recall(np.load(work / "ids-churned.npy"))
        told["float32_bytes"] = told["disk_rows"] * dataset.dim * 4
    return told


def answer(name: str, context: Context, work: Path, request: Results) -> Results:
    """Run ``bench/peers/NAME/live.py`` over the folder ``work``; what it says."""
    python = install.interpreter(name, context.folder)
    shutil.rmtree(work / "index", ignore_errors=True)
    (work / "request.json").write_text(json.dumps(request | {"folder": str(work)}))
    script = install.HERE / name / "live.py"
    done = subprocess.run(
        [str(python), str(script), str(work / "request.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:] or f"{name} ended with {done.returncode}")
    told: Results = json.loads((work / "answer.json").read_text())
    return told


def text(results: dict[str, Results]) -> list[str]:
    """A column a peer."""
    found = {name: results.get(f"peer:{name}", {}) for name in NAMES}
    done = {name: told["result"] for name, told in found.items() if "result" in told}
    lines = []
    if done:
        rows = [
            ["durable", *("yes" if r["durable"] else "no" for r in done.values())],
            [
                "insert of the last fifth: rows a second of processor",
                *(f"{r['rows'] / r['insert_cpu_s']:,.0f}" for r in done.values()),
            ],
            [
                "the same until settled: rows a second of processor; seconds",
                *(f"{r['rows'] / r['settled_cpu_s']:,.0f}; {r['settled_s']:,.1f}" for r in done.values()),
            ],
            ["bytes written ÷ bytes given", *(f"{r['written_share']:.1f}" for r in done.values())],
            ["growth of memory meanwhile, MiB", *(f"{r['growth_bytes'] / _MIB:,.0f}" for r in done.values())],
            [
                "recall then; QPS; setting",
                *(f"{r['recall']:.4f}; {r['qps']:,.0f}; {r['setting']}" for r in done.values()),
            ],
            ["a tenth deleted: seconds", *(f"{r['delete_s']:.2f}" for r in done.values())],
            [
                "a tenth dead: recall; QPS ÷ before",
                *(
                    f"{r['recall_tenth_dead']:.4f}; {r['qps_tenth_dead'] / r['qps']:.2f}"
                    for r in done.values()
                ),
            ],
            ["recall after the turnovers", *(f"{r['recall_churned']:.4f}" for r in done.values())],
            [
                "lone query while it settles ÷ idle: mean; p99",
                *(
                    f"{r['lone']['busy']['mean_us'] / r['lone']['idle']['mean_us']:.2f}; "
                    f"{r['lone']['busy']['p99_us'] / r['lone']['idle']['p99_us']:.2f}"
                    for r in done.values()
                ),
            ],
            [
                "disk after half was deleted ÷ float32 of all rows",
                *(f"{r['disk_bytes'] / (2 * r['float32_bytes']):.2f}" for r in done.values()),
            ],
        ]
        lines = ["", "## Beside others", "", *tables.table(["what", *done], rows)]
    for name, told in found.items():
        if "error" in told and told["error"] != "not asked for":
            lines += ["", f"{name}: {told['error']}"]
    return lines
