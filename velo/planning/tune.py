"""Choice of build and open options by trials on a sample of the vectors, on this machine.

Small indexes are built over the sample for several splits of the bits, then, with the best split, for several
degrees. Rows held out of the sample are searched for with growing candidate lists. The better candidate keeps
the machine less busy with queries at the given recall: the workers by measured processor time, the device
by reads over its rate, or the GPU by its measured time, since the three overlap. (FlashANNS, §4.3, chooses a
degree by random links, so that distances take as long as reads; real graphs also show the reads that a recall
takes.)

No rates are predicted: a sample does not show the value of higher degrees in a much larger graph, and its
codes fit processor caches better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from velo import _native
from velo.errors import BudgetTooSmallError, CancelledError, GpuError, InvalidArgumentError
from velo.formats.files import as_source
from velo.options import (
    BuildOptions,
    fill_search,
    in_range,
    memory_bytes,
    sizes_of,
    whole_number,
)
from velo.planning.proposal import Proposal, TunedCandidate
from velo.planning.sample import (
    Gpu,
    Sample,
    at_recall,
    check_source,
    draw,
    gpu_of,
    links_bytes_grown,
    reads_per_s,
    scratch_folder,
)
from velo.types import Memory, MetricName, PathLike

__all__ = ["DEGREES", "tune"]

#: Degrees that are tried.
DEGREES: Final = (24, 32, 48, 64)

_SAMPLE: Final = 50_000
_SAMPLE_LEAST: Final = 4_000
_SAMPLE_MOST: Final = 1_000_000
_DEGREE_USUAL: Final = BuildOptions.degree

#: Queries whose cost is closer than this are the same, as far as a sample can tell.
_SAME: Final = 1.08

#: Called with (what is done, steps done, steps in all), at least once a step; returning False cancels.
TuneProgress = Callable[[str, int, int], "bool | None"]


def tune(
    vectors: Any,
    *,
    memory: Memory = "20%",
    recall: float = 0.95,
    k: int = 10,
    metric: MetricName = "l2",
    sample: int = _SAMPLE,
    degrees: Sequence[int] = DEGREES,
    threads: int | None = None,
    seed: int = 0,
    scratch: PathLike | None = None,
    device: str = "cpu",
    progress: TuneProgress | None = None,
) -> Proposal:
    """Propose how to build and open an index, by small ones over a sample of its vectors.

    At most three splits of the bits and the given degrees are tried, each with a build over the sample: less
    than a minute for 50,000 vectors of 128 dimensions on two cores. The sample is held in memory.

    Parameters
    ----------
    vectors : array-like of shape (n, d), memmap, path, Arrow list array, or VectorSource
        As for :func:`velo.build`; at least 1,000 rows.
    memory : int, float or str
        The budget that searches will have, as for :func:`velo.open`; a share is one of n·d·4 bytes.
    recall, k : float, int
        The searches to tune for.
    metric : {"l2", "ip", "cosine"}
    sample : int
        Rows to draw, 4,000 to 1,000,000; all if there are no more. More rows represent a large set better
        and take longer.
    degrees : sequence of int
        Of the graph, 4 to 128; the one nearest to 48 is used to compare splits of the bits.
    threads : int, optional
        Of builds and searches; all cores without it.
    seed : int
        Of the draw and the builds.
    scratch : path, optional
        A folder for the sample's indexes, on the device to tune for; they take about 2 KB a row of the sample
        at 128 dimensions. Without it the folder of the file of vectors, or the current one. Its files are
        removed at the end, after errors too.
    device : str
        Of the searches, as for :func:`velo.open`. A GPU takes navigation from the processors, and its free
        memory bounds the links that are kept. If it has no room for codes and the fewest links of all rows,
        ``"auto"`` measures the CPU.
    progress : callable, optional
        Called with (what is done, steps done, steps in all); returning False cancels.

    Returns
    -------
    Proposal

    Raises
    ------
    InvalidArgumentError, EmptyError, DtypeError, NotFiniteError, FormatError
        They name the argument or file.
    BudgetTooSmallError
        The codes do not fit; ``needed_bytes`` is enough for them, with links on disk. Indexes with codes of
        pages alone (`page_codes`) are not tuned.
    GpuError
        With `device`: no GPU, one that fails, or too little of its memory; ``needed_bytes`` is enough.
    NoSpaceError, PermissionDeniedError
        The folder for scratch.
    CancelledError

    Notes
    -----
    Counts are those of the sample; searches of more rows take somewhat more. Disk and memory are those of all
    rows. With links on disk no cache is assumed. A sample has too few queries to keep a large GPU busy, so
    calls of thousands take less of its time each.

    Examples
    --------
    >>> chosen = velo.tune(vectors, memory="50%", sample=4_000, degrees=[24], threads=1)
    >>> velo.build("tuned.velo", vectors, **chosen.build_options).close()
    >>> velo.open("tuned.velo", **chosen.open_options).close()
    """
    fill_search(_native.new("velo_search_options"), k, recall, None, None, None)
    if float(recall) >= 1:
        raise InvalidArgumentError(
            "a recall of 1 reads every vector, whatever the memory: there is nothing to tune",
            argument="recall",
        )
    sample = whole_number(sample, "sample", _SAMPLE_LEAST, _SAMPLE_MOST)
    try:
        tried = sorted({in_range(degree, "degrees", "degree") for degree in degrees})
    except TypeError:
        tried = []
    if not tried:
        raise InvalidArgumentError(f"degrees must be whole numbers, not {degrees!r}", argument="degrees")
    if memory is None:
        raise InvalidArgumentError("memory must be given: options are chosen for it", argument="memory")
    usual = min(tried, key=lambda degree: abs(degree - _DEGREE_USUAL))
    options = BuildOptions(metric=metric, threads=threads, seed=seed, degree=usual)
    source = as_source(vectors)
    check_source(source)
    n, dim = source.shape
    budget = memory_bytes(memory, n, dim)
    gpu = gpu_of(device)
    splits = _splits(budget, n, dim)
    if not splits:
        raise _too_small(budget, n, int(sizes_of(n, dim).codes_least_bytes))
    chosen = sizes_of(n, dim, memory_bytes=budget)
    usual_bits = (int(chosen.memory_bits), int(chosen.record_bits))
    trial = _Trial(options, budget, gpu, float(recall), len(splits) + len(tried), progress)
    trial.tell("drawing the sample")
    drawn = draw(source, sample, metric, k, seed)
    with scratch_folder(source, scratch) as folder:
        by_bits = [trial.take(drawn, folder, usual, split) for split in splits]
        fitting = [one for one in by_bits if one.memory_bytes <= budget]
        if not fitting:
            raise _too_small(budget, n, min(one.memory_bytes for one in by_bits))
        if gpu is not None and device != "auto" and gpu.least_bytes > gpu.free_bytes:
            needed = math.ceil(gpu.least_bytes)
            raise GpuError(
                f"codes and links of {n:,} vectors take {needed:,} bytes of device memory or more; "
                f"{gpu.free_bytes:,} are free",
                argument="device",
                needed_bytes=needed,
            )
        best = _best(fitting, usual_bits)
        bits = (best.memory_bits, best.record_bits)
        by_degree = [best, *(trial.take(drawn, folder, one, bits) for one in tried if one != usual)]
    candidates = [one for one in fitting if one is not best] + by_degree
    return Proposal(
        chosen=_best(by_degree, usual_bits),
        candidates=tuple(sorted(candidates, key=lambda one: (-one.memory_bits, one.degree))),
        n=n,
        dim=dim,
        metric=metric,
        memory=memory,
        budget_bytes=budget,
        recall=float(recall),
        k=k,
        sample_rows=len(drawn.rows),
        query_count=len(drawn.queries),
        threads=trial.threads,
        reads_per_s=trial.reads_per_s,
        device=device,
    )


def _splits(budget: int, n: int, dim: int) -> list[tuple[int, int]]:
    """The bits that a build would choose for a budget, and one step more and one less, if their codes fit."""
    splits: list[tuple[int, int]] = []
    for step in (1, 0, -1):
        with suppress(BudgetTooSmallError):
            sizes = sizes_of(n, dim, memory_bytes=budget, page_codes=False, bits_step=step)
            splits.append((int(sizes.memory_bits), int(sizes.record_bits)))
    return list(dict.fromkeys(splits))


def _too_small(budget: int, n: int, needed: int) -> BudgetTooSmallError:
    return BudgetTooSmallError(
        f"memory is {budget:,} bytes, but the shortest codes of {n:,} vectors take {needed:,}",
        argument="memory",
        needed_bytes=needed,
    )


def _best(candidates: Sequence[TunedCandidate], usual_bits: tuple[int, int]) -> TunedCandidate:
    reached = [one for one in candidates if one.reached]
    if not reached:
        return max(candidates, key=lambda one: one.recall)
    least = min(one.cost_us for one in reached)

    def unusual(one: TunedCandidate) -> tuple[int, bool, float]:
        bits = (one.memory_bits, one.record_bits)
        return abs(one.degree - _DEGREE_USUAL), bits != usual_bits, one.rounds

    return min((one for one in reached if one.cost_us <= _SAME * least), key=unusual)


class _Trial:
    """Builds and searches of candidates, and what they have in common."""

    def __init__(
        self,
        options: BuildOptions,
        budget: int,
        gpu: Gpu | None,
        recall: float,
        steps: int,
        progress: TuneProgress | None,
    ) -> None:
        self._options = options
        self._budget = budget
        self._gpu = gpu
        self._recall = recall
        self._steps = steps
        self._progress = progress
        self._step = ("", -1)
        #: Workers, and what the device answers; known once a candidate was searched.
        self.threads = 0
        self.reads_per_s = 0.0

    def tell(self, name: str) -> None:
        """Begin the next step, unless the progress function cancels."""
        self._step = name, self._step[1] + 1
        if self._go_on() is False:
            raise CancelledError(f"tuning was canceled at {name!r}")

    def _go_on(self) -> bool | None:
        return None if self._progress is None else self._progress(*self._step, self._steps)

    def take(self, sample: Sample, folder: Path, degree: int, bits: tuple[int, int]) -> TunedCandidate:
        """Build one candidate and search it."""
        self.tell(f"degree {degree}, {bits[0]} + {bits[1]} bits")
        n, rows = sample.n, len(sample.rows)
        options = replace(
            self._options,
            degree=degree,
            search_memory=self._budget,
            memory_bits=bits[0],
            record_bits=bits[1],
            page_codes=False,
        ).for_vectors(n, sample.rows.shape[1])
        options = replace(options, search_memory=None)
        folder = folder / f"{degree}-{bits[0]}-{bits[1]}"
        sample.build(folder, options, self._go_on)
        with sample.open_within(folder, self._budget, options.threads, self._gpu) as index:
            points = sample.curve(index, self._recall)
            info, resident = index.info(), sample.resident_bytes(index)
            gpu_bytes = sample.gpu_bytes(index)
        if not self.threads:
            random = np.random.default_rng(options.seed)
            self.threads = int(info["threads"])
            self.reads_per_s = reads_per_s(folder / "pages.bin", info, random)
        own = at_recall(points, self._recall)
        edges = info["edges_per_vertex"] + info["links_built"]
        return TunedCandidate(
            degree=degree,
            memory_bits=bits[0],
            record_bits=bits[1],
            links_built=info["links_built"],
            plan=info["plan"],
            links_kept=info["links_kept"],
            page_links=info["page_links"],
            memory_bytes=math.ceil(resident),
            disk_bytes_per_vector=sum(info["disk_bytes"].values()) / rows + links_bytes_grown(edges, rows, n),
            reached=own.recall >= self._recall,
            cost_us=max(own.busy_us / self.threads, own.reads * 1e6 / self.reads_per_s, own.gpu_us),
            points=tuple(points),
            gpu_bytes=math.ceil(gpu_bytes),
            **vars(own),
        )
