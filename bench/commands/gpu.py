"""``bench gpu``: a GPU against the processors beside it, in six minutes; it needs only the wheel.

Sections, in order: answers next to those of the CPU, over random indexes, in odd batches; navigation, by
list size; whole calls, by size; a build. Data are made from a seed. A section begins only while there is time
for it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import velo
from bench.harness.report import grid
from velo.types import AnyArray, MetricName

#: Neighbors of every search.
K = 10
#: Small indexes of the first section: dimensions, bits in memory, metric, rows.
SHAPES: Final[tuple[tuple[int, int, MetricName, int], ...]] = (
    (16, 1, "l2", 2000),
    (32, 2, "cosine", 3000),
    (48, 6, "ip", 3000),
    (100, 3, "l2", 4000),
    (128, 4, "l2", 20_000),
    (200, 5, "cosine", 4000),
    (384, 4, "ip", 4000),
    (768, 2, "l2", 3000),
)
#: Neighbors that both find: of equally near ones, and of those at the end of a list, either finds others.
SAME_LEAST = 0.99
#: Intrinsic dimensions of these data. With more, all distances are alike: searches find few neighbors, and no
#: two searches find the same ones.
DIM_OWN = 24
LARGEST = max(shape[3] for shape in SHAPES)
#: Batches of the first section, before one of all other queries.
BATCHES = (1, 31, 32, 33)
#: Lists of the first section. Shorter ones depend on the order in which vertices are followed.
LISTS_COMPARED = (40, 400)
LISTS = (20, 50, 100, 200, 400)
#: Fewer cores than all, for whole calls.
CORES = (4, 2)
CALLS = (32, 100, 256, 1000, 3000, 10_000, 100_000)
#: Lists and queries of the comparison of builds.
LISTS_OF_BUILDS = (30, 100)
QUERIES_OF_BUILDS = 1000
#: The list of whole calls: about recall 0.95 over a million clustered rows.
CALL_LIST = 100


@dataclass(frozen=True)
class Plan:
    """The sections to measure, and the time limit."""

    rows: int = 1_000_000
    dim: int = 128
    seconds: float = 480.0
    device: str = "cuda"
    threads: int | None = None
    largest_call: int = CALLS[-1]
    #: Queries of the first section over its largest index, and indexes.
    cases: int = 10_000
    shapes: int = len(SHAPES)


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    section: str
    what: str
    gpu: str
    cpu: str
    verdict: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=Plan.rows)
    parser.add_argument("--seconds", type=float, default=Plan.seconds, help="after which no section begins")
    parser.add_argument("--device", default=Plan.device)
    parser.add_argument("--threads", type=int, default=None, help="workers, and processors of the build")
    parser.add_argument("--largest-call", type=int, default=Plan.largest_call)
    parser.add_argument("--cases", type=int, default=Plan.cases, help="queries over an index of section 1")
    parser.add_argument("--shapes", type=int, default=Plan.shapes, help="indexes of section 1")
    parser.add_argument("--out", type=Path, default=None, help="JSON of the table")


def run(arguments: argparse.Namespace) -> None:
    """Measure, and print the table whatever ends it."""
    given = {name: value for name, value in vars(arguments).items() if name in Plan.__dataclass_fields__}
    plan = Plan(**given)
    lines: list[Line] = []
    try:
        with tempfile.TemporaryDirectory(prefix="velo-gpu-") as folder:
            for line in measured(plan, Path(folder)):
                lines.append(line)
                print(f"[{line.section}] {line.what}: {line.gpu} | {line.cpu} {line.verdict}", flush=True)
    finally:
        cells = [[one.section, one.what, one.gpu, one.cpu, one.verdict] for one in lines]
        print("\n".join(["", *grid(["section", "measurement", "GPU", "CPU", ""], cells)]))
        if arguments.out is not None:
            arguments.out.write_text(json.dumps([asdict(one) for one in lines], indent=1))
    if any(one.verdict == "differs" for one in lines):
        sys.exit("gpu: answers differ")


def measured(plan: Plan, folder: Path) -> Iterator[Line]:
    """All sections, as far as time goes."""
    end = time.monotonic() + plan.seconds
    sections: tuple[tuple[str, float, Callable[[Plan, Path], Iterator[Line]]], ...] = (
        ("1 answers", 0.0, _answers),
        ("2 navigation", 0.35, _navigation),
        ("3 calls", 0.2, _calls),
        ("4 build", 0.15, _build),
    )
    for name, share, section in sections:
        left = end - time.monotonic()
        if left < share * plan.seconds:
            yield Line(name, f"not reached: {left:.0f} s are left of {plan.seconds:.0f}", "", "")
            continue
        began = time.monotonic()
        for line in section(plan, folder):
            yield line
            if time.monotonic() > end:
                yield Line(name, "cut off: time is up", "", "")
                return
        yield Line(name, "seconds", f"{time.monotonic() - began:.1f}", "")


def _machine(plan: Plan, index: velo.Index) -> Line:
    gpu = index.info()["gpu"]
    facts = f"{gpu['name']}, compute {gpu['compute']}, driver for CUDA {gpu['driver']}"
    cores = plan.threads or len(os.sched_getaffinity(0))
    return Line("machine", f"{gpu['total_bytes'] / 2**30:.1f} GiB of device memory", facts, f"{cores} cores")


def _clustered(rng: np.random.Generator, rows: int, dim: int) -> AnyArray:
    """Rows around centers of different density, made in pieces."""
    centers = rng.standard_normal((max(1, rows // 1000), dim), dtype=np.float32) * 1.2
    widths = rng.uniform(0.5, 1.0, len(centers)).astype(np.float32)
    made = np.empty((rows, dim), np.float32)
    for first in range(0, rows, 100_000):
        place = rng.integers(0, len(centers), min(100_000, rows - first))
        noise = rng.standard_normal((len(place), dim), dtype=np.float32)
        made[first : first + len(place)] = centers[place] + noise * widths[place, None]
    return made


def _spread(rng: np.random.Generator, vectors: AnyArray, dim: int) -> AnyArray:
    """The same rows in more dimensions, with a little noise."""
    axes = rng.standard_normal((vectors.shape[1], dim), dtype=np.float32) / np.float32(dim**0.5)
    noise = rng.standard_normal((len(vectors), dim), dtype=np.float32)
    return np.asarray(vectors @ axes + noise * np.float32(0.1 / dim**0.5), np.float32)


def _overlap(expected: AnyArray, found: AnyArray) -> float:
    """The share of neighbors that both have."""
    same = [len(np.intersect1d(a, b)) for a, b in zip(expected, found, strict=True)]
    return float(np.mean(same) / expected.shape[1])


def _pages(result: Any) -> int:
    return int(
        result.stats["reads"].sum() + result.stats["cache_hits"].sum() + result.stats["shared_reads"].sum()
    )


# ---- sections ----


def _answers(plan: Plan, folder: Path) -> Iterator[Line]:
    """Random indexes and queries, in odd batches: lists of the kernel against navigation by the CPU."""
    rng = np.random.default_rng(45)
    tuning = velo.OpenTuning(gpu_queries=1)
    for dim, bits, metric, rows in SHAPES[: plan.shapes]:
        # All of them over the largest, in one call but for the odd ones.
        each = max(sum(BATCHES) + 1, plan.cases if rows == LARGEST else plan.cases // len(SHAPES))
        path = folder / f"{metric}-{dim}-{bits}.velo"
        vectors = _spread(rng, _clustered(rng, rows + each, min(dim, DIM_OWN)), dim)
        velo.build(
            path, vectors[:rows], metric=metric, memory_bits=bits, threads=plan.threads, calibrate=False
        ).close()
        asked = vectors[rows:]
        batches = np.split(asked, np.cumsum(BATCHES))
        list_size = int(rng.integers(*LISTS_COMPARED))
        how: dict[str, Any] = {"k": K, "list_size": list_size}
        with (
            velo.open(path, threads=plan.threads) as cpu,
            velo.open(path, threads=plan.threads, device=plan.device, tuning=tuning) as gpu,
        ):
            if dim == SHAPES[0][0]:
                yield _machine(plan, gpu)
            before = gpu.info()["gpu"]
            expected = [cpu.search(batch, **how) for batch in batches]
            found = [gpu.search(batch, **how) for batch in batches]
            after = gpu.info()["gpu"]
        navigated, failed = (after[name] - before[name] for name in ("queries", "failed_queries"))
        same = _overlap(*(np.concatenate([one.ids for one in some]) for some in (expected, found)))
        pages = [sum(map(_pages, some)) for some in (found, expected)]
        # A query that comes alone is the CPU's once all pages are in memory.
        singles = sum(len(batch) == 1 for batch in batches)
        holds = same >= SAME_LEAST and failed == 0 and len(asked) - navigated <= singles
        holds = holds and abs(pages[0] / pages[1] - 1) <= 0.02
        yield Line(
            "1 answers",
            f"{len(asked)} queries, {dim} d, {bits} bits, {metric}, list {list_size}: same neighbors, pages",
            f"{same:.4f}, {pages[0]}, {failed} failed of {navigated}",
            f"1, {pages[1]}",
            "as the CPU's" if holds else "differs",
        )


def _rows(plan: Plan) -> tuple[AnyArray, AnyArray]:
    """The rows of the other sections, and queries, each near a row."""
    vectors = _clustered(np.random.default_rng(46), plan.rows + plan.largest_call, plan.dim)
    return vectors[: plan.rows], vectors[plan.rows :]


def _large(plan: Plan, folder: Path) -> tuple[Path, AnyArray]:
    """The index of the other sections, and its queries."""
    path, asked = folder / "large.velo", folder / "queries.npy"
    if not asked.exists():
        rows, queries = _rows(plan)
        began = time.monotonic()
        velo.build(path, rows, threads=plan.threads, calibrate=False).close()
        (folder / "seconds").write_text(str(time.monotonic() - began))
        np.save(asked, queries)
    return path, np.load(asked)


def _navigation(plan: Plan, folder: Path) -> Iterator[Line]:
    """The kernel with its copies, in batches of 8,192 at most."""
    path, asked = _large(plan, folder)
    asked = asked[: min(len(asked), 32_768)]
    with velo.open(path, memory=None, threads=plan.threads, device=plan.device) as index:
        info = index.info()["gpu"]
        yield Line(
            "2 navigation",
            "device memory of codes and links, bytes a row",
            f"{info['resident_bytes'] / plan.rows:.0f}",
            "",
        )
        for list_size in LISTS:
            index.search(asked, K, list_size=list_size)  # the first launch may compile and reserve
            before = index.info()["gpu"]
            result = index.search(asked, K, list_size=list_size)
            after = index.info()["gpu"]
            busy = (after["busy_us"] - before["busy_us"]) / 1e6
            met, followed = (result.stats[name].mean() for name in ("estimates", "expanded"))
            yield Line(
                "2 navigation",
                f"list {list_size}: queries/s of navigation; estimates and vertices followed of a query",
                f"{len(asked) / max(busy, 1e-9):,.0f}; {met:.0f}, {followed:.0f}",
                "",
            )


def _calls(plan: Plan, folder: Path) -> Iterator[Line]:
    """Whole calls, side by side: preparation, copies, navigation, pages, answers."""
    path, asked = _large(plan, folder)
    available = plan.threads or len(os.sched_getaffinity(0))
    counts = [one for one in CALLS if one <= plan.largest_call]
    yield from _compared(plan, path, asked, available, CALL_LIST, counts)
    yield from _compared(plan, path, asked, available, LISTS[-1], counts[-3:])
    for cores in CORES:
        if cores < available:
            yield from _compared(plan, path, asked, cores, CALL_LIST, counts[1:-1])


def _compared(
    plan: Plan, path: Path, asked: AnyArray, cores: int, list_size: int, counts: list[int]
) -> Iterator[Line]:
    """Calls of each size on some of the cores, with all pages in memory."""
    memory = 2 * plan.rows * plan.dim * 4
    kept_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(kept_cores)[:cores]))
    try:
        with (
            velo.open(path, memory=memory, threads=cores) as cpu,
            velo.open(
                path,
                memory=memory,
                threads=cores,
                device=plan.device,
                tuning=velo.OpenTuning(gpu_queries=1),
            ) as gpu,
        ):
            for index in (cpu, gpu):
                index.search(asked[:2000], K, list_size=list_size)  # pages are loaded behind `open`
            for count in counts:
                batch = asked[:count]
                rates, used, ids = [], [], []
                for index in (gpu, cpu):
                    repeats = max(1, min(20, 3000 // count))
                    best = float("inf")
                    busy = time.process_time()
                    for _ in range(repeats):
                        began = time.perf_counter()
                        found = index.search(batch, K, list_size=list_size)
                        best = min(best, time.perf_counter() - began)
                    used.append((time.process_time() - busy) / (repeats * count))
                    rates.append(count / best)
                    ids.append(found.ids)
                same = _overlap(ids[1], ids[0])
                yield Line(
                    "3 calls",
                    f"{cores} cores, list {list_size}, {count:,} queries: queries/s, processor time "
                    f"of a query, same neighbors {same:.4f}",
                    f"{rates[0]:,.0f}, {used[0] * 1e6:.1f} us",
                    f"{rates[1]:,.0f}, {used[1] * 1e6:.1f} us",
                    f"× {rates[0] / rates[1]:.2f}" if same >= SAME_LEAST else "differs",
                )
    finally:
        os.sched_setaffinity(0, kept_cores)


def _build(plan: Plan, folder: Path) -> Iterator[Line]:
    """The same rows once more, by the GPU: seconds; recall and pages at equal lists."""
    path, _ = _large(plan, folder)
    expected_seconds = float((folder / "seconds").read_text())
    rows, asked = _rows(plan)
    built = folder / "built.velo"
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("error", velo.GpuWarning)
        velo.build(built, rows, threads=plan.threads, calibrate=False, device=plan.device).close()
    seconds = time.monotonic() - began
    yield Line(
        "4 build",
        f"{plan.rows:,} rows, s",
        f"{seconds:.1f}",
        f"{expected_seconds:.1f}",
        f"× {seconds / expected_seconds:.2f} of the time",
    )
    asked = asked[:QUERIES_OF_BUILDS]
    norms = np.einsum("ij,ij->i", rows, rows)
    pieces = np.array_split(asked, 10)
    nearest = np.concatenate([np.argpartition(norms - 2 * one @ rows.T, K, axis=1)[:, :K] for one in pieces])
    for list_size in LISTS_OF_BUILDS:
        found = []
        for one in (built, path):
            with velo.open(one, threads=plan.threads) as index:
                found.append(index.search(asked, K, list_size=list_size))
        recalls = [_overlap(nearest, one.ids) for one in found]
        pages = [_pages(one) / len(asked) for one in found]
        holds = recalls[0] >= recalls[1] - 0.01 and pages[0] <= 1.05 * pages[1]
        yield Line(
            "4 build",
            f"list {list_size}: recall@{K}, pages of a query",
            f"{recalls[0]:.4f}, {pages[0]:.2f}",
            f"{recalls[1]:.4f}, {pages[1]:.2f}",
            "as the CPU's" if holds else "differs",
        )
