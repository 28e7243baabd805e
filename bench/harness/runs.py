"""One system at some settings, in a process of its own: raw answers first, scores afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import velo
from bench.harness import cgroup, datasets
from bench.harness.datasets import Dataset
from bench.peers import install
from velo.options import BuildOptions

ROOT = Path(__file__).resolve().parents[2]
COUNTERS = ("reads", "rounds", "bytes_read", "shared_reads", "cache_hits", "estimates", "expanded")
#: Options of a build that are files; rows name them without their folder.
FILES = ("metadata", "queries")
RUN_TIMEOUT_S = 4 * 3600
DEFAULT_BITS = "4+6"


@dataclass(frozen=True)
class Job:
    """One system with one set of build options and the settings to measure it at."""

    system: str
    label: str
    build: dict[str, Any]
    points: list[dict[str, Any]]


def velo_job(
    dataset: Dataset,
    budget: str,
    lists: Sequence[str],
    *,
    io: str = "auto",
    plan: str = "auto",
    metadata: bool = True,
) -> Job:
    """velo at a budget such as ``20%``, or ``10%:2+6`` with the bits in memory and in the record."""
    share, _, bits = budget.partition(":")
    share_of(share)
    memory_bits, record_bits = (int(part) for part in (bits or DEFAULT_BITS).split("+"))
    build: dict[str, Any] = {"memory_bits": memory_bits, "record_bits": record_bits}
    options = BuildOptions(search_memory=share, **build).for_vectors(dataset.n, dataset.dim)
    if plan != "links_on_disk" and not options.page_links:
        build["page_links"] = False
    if options.page_codes:
        build["page_codes"] = True
    if dataset.metric != "l2":
        build["metric"] = dataset.metric
    if metadata and dataset.labels is not None:
        build["metadata"] = str(dataset.labels)
    label = " ".join(["velo", share, f"{memory_bits}+{record_bits}", *(x for x in (io, plan) if x != "auto")])
    fixed = {"memory": share, "io": io, "plan": plan}
    return Job("velo", label, build, [velo_point(text) | fixed for text in lists])


def velo_point(text: str) -> dict[str, Any]:
    """``64``, or ``64@1.5``: a list of 64, and a page is read within 1.5 standard deviations of the k-th."""
    size, _, sigma = text.partition("@")
    return {"list_size": int(size), **({"sigma": float(sigma)} if sigma else {})}


def peer_job(name: str, dataset: Dataset, lists: Sequence[int], code_share: float) -> Job:
    """The peer's settings: those its papers and manuals recommend, one place for all."""
    points = [{"list_size": size} for size in lists]
    mapped = [{**point, "mapped": True} for point in points]
    code_bytes = min(int(dataset.dim * 4 * code_share), dataset.dim)
    match name:
        case "hnswlib":
            return Job(name, "hnswlib", {"degree": 32, "build_list_size": 200, "seed": 1}, points)
        case "usearch":
            return Job(name, "usearch", {"degree": 16, "build_list_size": 128}, points)
        case "rabitqlib":
            return Job(name, "rabitqlib SymphonyQG", {"degree": 32, "build_list_size": 128}, points)
        case "diskannpy":
            build = {"degree": 64, "build_list_size": 100, "code_bytes": code_bytes, "build_memory_gb": 8}
            return Job(name, f"diskannpy {code_share:.0%}", build, [{**p, "beam_width": 4} for p in points])
        case "zvec":
            build = {"degree": 64, "build_list_size": 50, "code_bytes": code_bytes}
            return Job(name, f"zvec DiskANN {code_share:.0%}", build, points)
        case "diskannrust":
            build = {"degree": 64, "build_list_size": 100, "code_bytes": code_bytes, "build_memory_gb": 8}
            return Job(name, f"diskannpy-rust {code_share:.0%}", build, points)
        case "qdrantedge":
            return Job(name, "Qdrant Edge int8", {"degree": 16, "build_list_size": 100}, points)
        case "lancedb":
            partitions = max(int(dataset.n**0.5), 1)
            build = {"partitions": partitions, "code_bytes": dataset.dim // 2}
            return Job(name, f"LanceDB IVF_PQ {dataset.dim // 2} B", build, points)
        case "alayalite":
            return Job(name, "alayalite DiskANN", {}, points)
        case "usearch-mapped":
            return Job("usearch", "usearch, mapped", {"degree": 16, "build_list_size": 128}, mapped)
        case "numpy":
            return Job(name, "numpy, exact", {}, [{"list_size": 0}])
    raise install.PeerMissing(f"{name}: no such peer; there are {', '.join(install.NAMES)}")


def share_of(budget: str) -> float:
    """``20%`` → 0.2."""
    if not budget.endswith("%"):
        raise datasets.DataError(f"a budget of the sweep is a share such as 20%, not {budget!r}")
    return float(budget[:-1]) / 100


@dataclass(frozen=True)
class Arrays:
    """npy files of a set that any environment can read; ``raw`` ones are as given, before scaling."""

    base: Path
    queries: Path
    raw_base: Path
    raw_queries: Path


def export_arrays(dataset: Dataset, work: Path) -> Arrays:
    """The set's files, written once: one for the base vectors, one for each choice of queries."""
    folder = work / "arrays" / f"{dataset.name}-{dataset.n}"
    folder.mkdir(parents=True, exist_ok=True)
    own = digest(dataset.queries)

    def saved(name: str, vectors: datasets.Vectors, scaled: bool) -> Path:
        path = folder / f"{name}.npy"
        if not path.exists():
            unfinished = folder / f"{name}.{os.getpid()}.unfinished.npy"
            np.save(unfinished, datasets.for_peers(vectors, dataset.metric) if scaled else vectors)
            unfinished.replace(path)
        return path

    base, queries = saved("base", dataset.base, True), saved(f"queries-{own}", dataset.queries, True)
    if dataset.metric == "l2":
        return Arrays(base, queries, base, queries)
    return Arrays(
        base,
        queries,
        saved("raw_base", dataset.base, False),
        saved(f"raw_queries-{own}", dataset.queries, False),
    )


def digest(array: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:8]


def index_folder(job: Job, dataset: Dataset, work: Path) -> Path:
    options = ",".join(f"{key}={Path(str(value)).name}" for key, value in sorted(job.build.items()))
    name = f"{job.system}-{options}" if options else job.system
    return work / "indexes" / f"{dataset.name}-{dataset.n}" / name


def library_digest() -> str:
    """Of all that a build depends on: the package, and wherever its library may lie."""
    package = Path(velo.__file__).parent
    files = [*sorted(package.rglob("*.py")), *sorted(package.rglob("*.so"))]
    named = os.environ.get("VELO_LIBRARY")
    others = [package.parent / "zig-out" / "lib" / "libvelo.so", *([Path(named)] if named else [])]
    files += [file for file in others if file.is_file()]
    total = hashlib.sha256()
    for file in files:
        total.update(file.read_bytes())
    return total.hexdigest()[:12]


def ready_index(job: Job, dataset: Dataset, work: Path) -> Path | None:
    """velo's index for ``job`` if it is there; one that another library built is removed.

    Results are about builds, too, and name one library.
    """
    folder = index_folder(job, dataset, work)
    if not (folder / "built.json").exists():
        return None
    if json.loads((folder / "built.json").read_text()).get("built_by") != library_digest():
        print(f"{folder.name} is built again: another library built it", file=sys.stderr)
        shutil.rmtree(folder)
        return None
    return folder / "index.velo"


def built_index(job: Job, dataset: Dataset, work: Path, out: Path, *, threads: int) -> Path:
    """velo's index for ``job``, built if it is not there; the build's log lands in ``out``."""
    path = ready_index(job, dataset, work)
    if path is None:
        run_job(Job(job.system, job.label, job.build, []), dataset, work, out, threads=threads)
    return index_folder(job, dataset, work) / "index.velo"


def run_job(
    job: Job,
    dataset: Dataset,
    work: Path,
    out: Path,
    *,
    threads: int,
    single_count: int = 0,
    group: cgroup.Group | None = None,
    timeout_s: float = RUN_TIMEOUT_S,
) -> None:
    """Measure ``job`` in a process of its own; answers and ``points.jsonl`` land in ``out``.

    With ``group`` the process is in it from its first page on.
    """
    arrays = export_arrays(dataset, work)
    mine = job.system == "velo"
    if mine:
        ready_index(job, dataset, work)
    out.mkdir(parents=True, exist_ok=True)
    request = out / "request.json"
    request.write_text(
        json.dumps(
            {
                "system": job.system,
                "label": job.label,
                "base": str(arrays.raw_base if mine else arrays.base),
                "queries": str(arrays.raw_queries if mine else arrays.queries),
                "k": datasets.K,
                "threads": threads,
                "single_count": single_count,
                "folder": str(index_folder(job, dataset, work)),
                "built_by": library_digest() if mine else None,
                "build": job.build,
                "points": job.points,
                "out": str(out),
            },
            indent=1,
        )
    )
    env = dict(os.environ)
    env.update(
        {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    )
    if job.system == "velo":
        python = Path(sys.executable)
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    else:
        python = install.interpreter(job.system, work)
        env.pop("PYTHONPATH", None)
    command = [str(python), str(install.runner(job.system)), str(request)]
    start = subprocess.Popen if group is None else group.popen
    with (out / "log").open("w") as log:
        child = start(command, stdout=log, stderr=subprocess.STDOUT, env=env, cwd=out)
        with child:
            try:
                code = child.wait(timeout=timeout_s)
            finally:
                child.kill()  # one that took too long, or an interrupt
    if code != 0:
        tail = (out / "log").read_text(errors="replace").strip().splitlines()[-12:]
        raise RuntimeError(f"{job.label} failed ({code}); {out / 'log'} ends:\n" + "\n".join(tail))


def score_run(dataset: Dataset, run_folder: Path) -> list[dict[str, Any]]:
    """Rows of the table from the raw answers under ``run_folder``; measures nothing, so it may be run
    again.
    """
    rows = []
    for points in sorted(run_folder.glob("*/points.jsonl")):
        request = json.loads((points.parent / "request.json").read_text())
        for i, line in enumerate(points.read_text().splitlines()):
            with np.load(points.parent / f"{i}.npz") as answer:
                rows.append(
                    score(dataset, request, json.loads(line), {name: answer[name] for name in answer.files})
                )
    return rows


def score(
    dataset: Dataset, request: dict[str, Any], line: dict[str, Any], answer: dict[str, np.ndarray[Any, Any]]
) -> dict[str, Any]:
    ids = answer["ids"].astype(np.int64)
    count = len(ids)
    latency = answer["latency_us"]
    build = request["build"]
    row: dict[str, Any] = {
        "system": request["system"],
        "label": request["label"],
        "version": line["version"],
        "home": line["home"],
        "dataset": dataset.name,
        "n": dataset.n,
        "dim": dataset.dim,
        "threads": request["threads"],
        "build": {key: Path(str(value)).name if key in FILES else value for key, value in build.items()},
        **line["point"],
        "query_count": count,
        f"recall_at_{datasets.K}": float(datasets.recall(dataset, ids).mean()),
        "qps": count / line["batch_s"],
        "latency_mean_us": float(latency.mean()),
        "latency_p50_us": float(np.percentile(latency, 50)),
        "latency_p99_us": float(np.percentile(latency, 99)),
        "cpu_us_per_query": line["batch_cpu_s"] * 1e6 / count,
        "device_bytes_per_query": line["batch_device_bytes"] / count,
        "resident_growth_bytes": line["resident_growth_bytes"],
        "load": line["load"],
        **{
            key: line[key]
            for key in ("build_s", "build_cpu_s", "build_peak_bytes", "build_load", "disk_bytes")
        },
        "facts": line["facts"],
    }
    for name in COUNTERS:
        if name in answer:
            row[name] = float(answer[name].mean())
    if str(line["point"].get("memory", "")).endswith("%"):
        row["budget_bytes"] = int(share_of(line["point"]["memory"]) * dataset.float32_bytes)
    return row
