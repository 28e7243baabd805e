"""One system at some settings, in a process of its own: raw answers first, scores afterwards."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import velo
from bench.harness import datasets
from bench.harness.curves import Row
from bench.harness.datasets import Dataset
from bench.harness.sections import Context
from bench.peers import install
from velo.options import BuildOptions

ROOT = Path(__file__).resolve().parents[2]
COUNTERS = ("reads", "rounds", "bytes_read", "shared_reads", "cache_hits", "estimates", "expanded")
#: Options of a build that are files; rows name them without their folder.
FILES = ("metadata", "queries")
RUN_TIMEOUT_S = 4 * 3600
DEFAULT_BITS = "4+6"
_RUNS = itertools.count()


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
    lists: Sequence[str | int],
    *,
    io: str = "auto",
    plan: str = "auto",
    build: dict[str, Any] | None = None,
    **point: Any,
) -> Job:
    """velo at a budget such as ``20%``, or ``10%:2+6`` with the bits in memory and in the record.

    ``build`` goes into the options of the build, ``point`` into every setting.
    """
    share, _, bits = budget.partition(":")
    share_of(share)
    memory_bits, record_bits = (int(part) for part in (bits or DEFAULT_BITS).split("+"))
    chosen: dict[str, Any] = {"memory_bits": memory_bits, "record_bits": record_bits}
    by_budget = BuildOptions(search_memory=share).for_vectors(dataset.n, dataset.dim)
    if (by_budget.memory_bits, by_budget.record_bits) != (memory_bits, record_bits):
        by_budget = BuildOptions(search_memory=share, **chosen).for_vectors(dataset.n, dataset.dim)
    usual = BuildOptions(**chosen).for_vectors(dataset.n, dataset.dim)
    for name in (one.name for one in BuildOptions.public_fields() if one.name != "search_memory"):
        if getattr(by_budget, name) != getattr(usual, name):
            chosen[name] = getattr(by_budget, name)
    if plan == "links_on_disk":
        chosen.pop("page_links", None)
    if dataset.metric != "l2":
        chosen["metric"] = dataset.metric
    label = " ".join(["velo", share, f"{memory_bits}+{record_bits}", *(x for x in (io, plan) if x != "auto")])
    fixed = {"memory": share, "io": io, "plan": plan} | point
    points = [velo_point(str(text)) | fixed for text in lists]
    return Job("velo", label, chosen | (build or {}), points)


def velo_point(text: str) -> dict[str, Any]:
    """``64``, or ``64@1.5``: a list of 64, and a page is read within 1.5 standard deviations of the k-th."""
    size, _, sigma = text.partition("@")
    return {"list_size": int(size), **({"sigma": float(sigma)} if sigma else {})}


def peer_job(name: str, dataset: Dataset, lists: Sequence[int], code_share: float) -> Job:
    """The peer's settings: those its papers and manuals recommend, one place for all."""
    points = [{"list_size": size} for size in lists]
    codes = {"code_bytes": min(int(dataset.dim * 4 * code_share), dataset.dim)}
    share = f"{code_share:.0%}"
    every: dict[str, tuple[str, dict[str, Any], list[Row]]] = {
        "hnswlib": ("hnswlib", {"degree": 32, "build_list_size": 200, "seed": 1}, points),
        "usearch": ("usearch", {"degree": 16, "build_list_size": 128}, points),
        "rabitqlib": ("rabitqlib SymphonyQG", {"degree": 32, "build_list_size": 128}, points),
        "diskannpy": (
            f"diskannpy {share}",
            {"degree": 64, "build_list_size": 100, **codes, "build_memory_gb": 8},
            [point | {"beam_width": 4} for point in points],
        ),
        "zvec": (f"zvec DiskANN {share}", {"degree": 64, "build_list_size": 50, **codes}, points),
        "numpy": ("numpy, exact", {}, [{"list_size": 0}]),
    }
    if name not in every:
        raise install.PeerMissing(f"{name}: no such peer; there are {', '.join(every)}")
    return Job(name, *every[name])


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

    def saved(name: str, vectors: datasets.Vectors, scaled: bool) -> Path:
        path = folder / f"{name}.npy"
        if not path.exists():
            unfinished = folder / f"{name}.{os.getpid()}.unfinished.npy"
            np.save(unfinished, datasets.for_peers(vectors, dataset.metric) if scaled else vectors)
            unfinished.replace(path)
        return path

    queries = f"queries-{digest(dataset.queries)}"
    scaled = saved("base", dataset.base, True), saved(queries, dataset.queries, True)
    if dataset.metric == "l2":
        return Arrays(*scaled, *scaled)
    raw = saved("raw_base", dataset.base, False), saved(f"raw_{queries}", dataset.queries, False)
    return Arrays(*scaled, *raw)


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


def built_index(context: Context, dataset: Dataset, job: Job) -> Path:
    """velo's index for ``job``, built if it is not there."""
    if ready_index(job, dataset, context.folder) is None:
        run_job(context, dataset, replace(job, points=[]), run_folder(context, "build"))
    return index_folder(job, dataset, context.folder) / "index.velo"


def run_folder(context: Context, name: str) -> Path:
    """A folder for the raw answers of a run."""
    return context.folder / "runs" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_RUNS)}"


def measured(context: Context, dataset: Dataset, job: Job) -> list[Row]:
    """The scored rows of a job, measured in a process of its own."""
    return measured_with_answers(context, dataset, job)[0]


def measured_with_answers(
    context: Context, dataset: Dataset, job: Job
) -> tuple[list[Row], list[NDArray[np.int64]]]:
    """The same with the ids that each setting found."""
    folder = run_folder(context, job.system)
    run_job(context, dataset, job, folder)
    request = json.loads((folder / "request.json").read_text())
    rows, answers = [], []
    for number, line in enumerate((folder / "points.jsonl").read_text().splitlines()):
        with np.load(folder / f"{number}.npz") as file:
            answer = {name: file[name] for name in file.files}
        rows.append(score(dataset, request, json.loads(line), answer))
        answers.append(answer["ids"].astype(np.int64))
    return rows, answers


def run_job(context: Context, dataset: Dataset, job: Job, out: Path) -> None:
    """Measure ``job`` in a process of its own; answers and ``points.jsonl`` go to ``out``."""
    work = context.folder
    arrays = export_arrays(dataset, work)
    mine = job.system == "velo"
    if mine:
        ready_index(job, dataset, work)
    out.mkdir(parents=True, exist_ok=True)
    request = out / "request.json"
    told = {
        "system": job.system,
        "label": job.label,
        "base": str(arrays.raw_base if mine else arrays.base),
        "queries": str(arrays.raw_queries if mine else arrays.queries),
        "k": datasets.K,
        "threads": context.threads,
        "single_count": context.single_count,
        "folder": str(index_folder(job, dataset, work)),
        "built_by": library_digest() if mine else None,
        "build": job.build,
        "points": job.points,
        "out": str(out),
    }
    request.write_text(json.dumps(told, indent=1))
    pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    env = dict(os.environ) | dict.fromkeys(pools, str(context.threads))
    if mine:
        python = Path(sys.executable)
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    else:
        python = install.interpreter(job.system, work)
        env.pop("PYTHONPATH", None)
    command = [str(python), str(install.runner(job.system)), str(request)]
    with (out / "log").open("w") as log:
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, cwd=out)
        with child:
            try:
                code = child.wait(timeout=RUN_TIMEOUT_S)
            finally:
                child.kill()  # one that took too long, or an interrupt
    if code != 0:
        tail = (out / "log").read_text(errors="replace").strip().splitlines()[-12:]
        raise RuntimeError(f"{job.label} failed ({code}); {out / 'log'} ends:\n" + "\n".join(tail))


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
